"""The network below the pose model: shapes, losses by definition, and gradients through the head and the hinge."""

import pytest
import torch
from cases.poses import tiny_pose
from cases.problems import rng

from torchssvm import LinearPose, StructuredHinge, check
from torchssvm.core.batch import Batch
from torchssvm.models import PoseNetwork


def tiny_network(seed=0, grid=(4, 4), widths=(8, 8, 8), **options):
    torch.manual_seed(seed)
    return PoseNetwork(tiny_pose((-1, 0, 1), grid, 2, spreads=True), widths, **options)


def test_maps_are_log_probabilities():
    network = tiny_network().eval()
    images = torch.rand(3, 3, 16, 16, generator=rng(0))
    maps = network(images)
    shapes = network.structure.shapes
    assert (maps.unary.shape, maps.types.shape) == ((3, *shapes["unary"]), (3, *shapes["types"]))
    torch.testing.assert_close(maps.unary.flatten(2).exp().sum(2), torch.ones(3, 3))
    torch.testing.assert_close(maps.types.exp().sum(3), torch.ones(3, 2, 2, 4, 4))
    torch.testing.assert_close(network(images[1:2]).unary, maps.unary[1:2])  # a batch changes nothing


@pytest.mark.parametrize(
    "call",
    [
        lambda: tiny_network(widths=(8, 12)),
        lambda: tiny_network(widths=(8,) * 4),
        lambda: tiny_network()(torch.zeros(1, 3, 16, 12)),
    ],
)
def test_networks_that_cannot_be(call):
    with pytest.raises(ValueError, match=r"widths|images"):
        call()


def test_the_cross_entropies_by_definition():
    """Without blur and jitter: the mean of -log p over the places inside, and over the arcs with both ends inside."""
    network = tiny_network().eval()
    structure, random = network.structure, rng(2)
    images = torch.rand(2, 3, 16, 16, generator=random)
    places = torch.tensor([[[0.0, 1.0], [3.0, 2.0], [1.0, 1.0]], [[2.0, 0.0], [1.0, 3.0], [5.0, 1.0]]])
    maps, kinds = network(images), structure.nearest_types(places)
    of_places, of_types = [], []
    for b in range(2):
        inside = [bool(((p >= 0) & (p < 4)).all()) for p in places[b]]
        at = places[b].long().tolist()
        of_places += [-maps.unary[b, p, at[p][1], at[p][0]] for p in range(3) if inside[p]]
        for e, (v, u) in enumerate(((1, 0), (2, 1))):
            for arc, first in enumerate((v, u)):
                if inside[v] and inside[u]:
                    of_types.append(-maps.types[b, e, arc, kinds[b, e, arc], at[first][1], at[first][0]])
    assert (len(of_places), len(of_types)) == (5, 6)
    result = network.loss(images, places, blur=1e-3, jitter=0.0)
    torch.testing.assert_close(result, (torch.stack(of_places).mean(), torch.stack(of_types).mean()))
    blurred, _ = network.loss(images, places, blur=1.0, jitter=0.0)
    assert not torch.allclose(blurred, result[0])
    nothing = network.loss(images, places + 100.0)
    assert [x.item() for x in nothing] == [0.0, 0.0]


def joint_problem(n=2):
    network = tiny_network().double().eval()
    head, random = LinearPose(network.structure).double(), rng(3)
    images = torch.rand(n, 3, 16, 16, generator=random, dtype=torch.float64)
    places = torch.randint(0, 4, (n, 3, 2), generator=random)
    return network, head, images, network.structure.labeling(places)


def test_gradients_of_the_hinge_below_the_head():
    """Against central differences, in every parameter of the network, in two random directions each."""
    network, head, images, y = joint_problem()
    hinge, random = StructuredHinge(network.structure), rng(4)
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.rand(p.shape, generator=random, dtype=torch.float64))
    loss = hinge(head(network(images)), y)
    assert float(loss) > 0.1
    names, parameters = zip(*network.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    assert all(bool(g.any()) for g in gradients), names
    step = 1e-6
    for p, gradient in zip(parameters, gradients, strict=True):
        for _ in range(2):
            direction = torch.randn(p.shape, generator=random, dtype=torch.float64)
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    p += sign * step * direction
                    values.append(float(hinge(head(network(images)), y)))
                    p -= sign * step * direction
            slope = (values[0] - values[1]) / (2 * step)
            assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-4, abs=1e-7)


@pytest.mark.slow
def test_the_head_on_the_network_is_as_check_wants_it():
    network, head, images, y = joint_problem(2)
    with torch.no_grad():
        maps = network(images)
    check(head, head.structure, Batch(maps, y, torch.arange(2))).raise_if_wrong()
