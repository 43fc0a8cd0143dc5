"""The model of whole bodies: its tree, its clusters, and training on maps that show where the joints are."""

import pytest
import torch
from cases.problems import flat, rng

from torchssvm import BCFW, BlockGap, DualState, Weights, certify
from torchssvm.core.batch import Batch
from torchssvm.datasets import LSPET
from torchssvm.models import BODY, JOINTS, body_bounds, body_nodes, body_pose, mean_displacements
from torchssvm.structures.pose import PoseMaps


def bodies(count, seed=0, size=12):
    """Joints on a grid: all bodies are alike, up to about two places."""
    random = rng(seed)
    shape = torch.rand(14, 2, generator=random) * (size - 1)
    return (shape + torch.randn(count, 14, 2, generator=random)).clamp(0, size - 1)


def test_the_body_is_a_tree_of_neighbours():
    """Every edge is a limb, a part of one, or joins shoulders, neck and head."""
    assert len(BODY) == 26
    assert BODY.count(-1) == 1
    joints = torch.arange(28.0).view(14, 2) ** 2
    nodes = body_nodes(joints)
    assert torch.equal(nodes[:14], joints)
    limbs = [(8, 7), (7, 6), (8, 2), (2, 1), (1, 0), (9, 10), (10, 11), (9, 3), (3, 4), (4, 5)]
    others = {(12, 13), (8, 12), (9, 12)}
    results = []
    for node, parent in enumerate(BODY):
        if parent < 0 or (node, parent) in others:
            continue
        on = []
        for limb in limbs:
            a, b = joints[limb[0]], joints[limb[1]]
            shares = [float(((nodes[v] - a) @ (b - a)) / ((b - a) @ (b - a))) for v in (parent, node)]
            off = sum(float((nodes[v] - a - s * (b - a)).norm()) for v, s in zip((parent, node), shares, strict=True))
            if off < 1e-3 and -1e-4 < shares[0] < shares[1] < 1 + 1e-4:
                on.append((limb, round(6 * (shares[1] - shares[0]))))
        results += on
        assert len(on) == 1, (node, parent)
    for limb in limbs:  # made of two halves, or of three thirds
        assert sum(length for name, length in results if name == limb) == 6
    assert JOINTS[BODY.index(-1)] == "head top"


def test_clusters_of_displacements():
    """Three groups that are far apart, in every edge."""
    random = rng(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 20.0]])
    which = torch.arange(60) % 3
    child = centres[which] + 0.1 * torch.randn(60, 2, generator=random)
    places = torch.stack([child, torch.zeros(60, 2), child + 5], 1)
    means, spreads = mean_displacements(places, [1, -1, 1], 3, least_spread=0.01)
    assert means.shape == spreads.shape == (2, 2, 3, 2)
    assert torch.equal(means[:, 0], -means[:, 1])
    order = [int((means[0, 0] - centre).norm(dim=1).argmin()) for centre in centres]
    assert sorted(order) == [0, 1, 2]
    for k, kind in enumerate(order):
        points = child[which == k].double()
        torch.testing.assert_close(means[0, 0, kind], points.mean(0))
        torch.testing.assert_close(spreads[0, 0, kind], points.std(0, correction=0))
    again = mean_displacements(places, [1, -1, 1], 3, least_spread=0.01)
    assert torch.equal(means, again[0])
    assert float(mean_displacements(places, [1, -1, 1], 3)[1].min()) == 1.0


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: mean_displacements(torch.zeros(4, 3, 2), [-1, 0], 2), "places"),
        (lambda: mean_displacements(torch.full((4, 2, 2), torch.nan), [-1, 0], 2), "finite"),
        (lambda: mean_displacements(torch.zeros(4, 2, 2), [-1, 0], 5), "num_types="),
        (lambda: mean_displacements(torch.zeros(4, 2, 2), [-1, 0], 2, least_spread=0.0), "least_spread="),
        (lambda: body_nodes(torch.zeros(13, 2)), "14, 2"),
        (lambda: body_bounds(0.0), "strength="),
        (lambda: body_bounds(0.1, types=-1.0), "types="),
    ],
)
def test_what_does_not_fit_is_refused(call, argument):
    with pytest.raises(ValueError, match=argument):
        call()


def test_bodies_are_found_again():
    """Maps with a bump at every node and noise everywhere; trained to a certified gap within the bounds."""
    size, count, types = 12, 6, 3
    places = body_nodes(bodies(count, size=size))
    head = body_pose(places, (size, size), types, least_spread=4.0)
    assert flat(head.parameters()).numel() == 26 + 50 + 50 * types * 4
    assert flat(body_pose(body_nodes(bodies(13)), (size, size)).parameters()).numel() == 2676
    pose, random = head.structure, rng(1)
    y = pose.labeling(places)
    shapes = pose.shapes
    unary, kinds = (torch.rand(count, *shapes[name], generator=random) for name in ("unary", "types"))
    unary += pose.parts(y)["unary"]
    everything = [Batch(PoseMaps(unary, kinds), y, torch.arange(count))]
    dual = DualState.for_head(head, count, 1.0, storage=Weights())
    loss, optim = BlockGap(dual), BCFW(head.groups(), dual)
    for _ in range(50):
        for rows in torch.arange(count).split(2):
            optim.zero_grad()
            loss(head(PoseMaps(unary[rows], kinds[rows])), y[rows], rows).backward()
            optim.step()
    certificate = certify(head, dual, everything)
    assert certificate.gap < 0.05
    assert certificate.exact
    assert bool((head.deformation[..., 1::2] >= 0).all())
    with torch.no_grad():
        labels = pose.argmax(head(everything[0].x)).labeling
    assert float((labels[..., :2] == y[..., :2]).all(2).float().mean()) > 0.9


def test_the_bounds_are_a_head_that_finds_bodies_already():
    """Before any step: within bounds, weights of no dual are the least ones; and training keeps them."""
    size, count, types = 12, 6, 3
    places = body_nodes(bodies(count, size=size))
    head = body_pose(places, (size, size), types)
    pose, bounds = head.structure, body_bounds(0.02, types=0.5)
    assert float(pose.spreads.min()) >= size / 20
    y = pose.labeling(places)
    unary = torch.zeros(count, *pose.shapes["unary"])
    unary[:, :13] = 4.0 * pose.parts(y)["unary"][:, :13]  # the root and all half-way places are seen by springs alone
    maps = PoseMaps(unary, torch.zeros(count, *pose.shapes["types"]))
    dual = DualState.for_head(head, count, 0.1, storage=Weights())
    named = dict(head.named_parameters())
    groups = [{"params": [named[name]], "lower": low, "upper": high} for name, (low, high) in bounds.items()]
    loss, optim = BlockGap(dual), BCFW(groups, dual)
    assert torch.equal(head.unary, torch.full((26,), 0.02))
    assert torch.equal(head.types, torch.full((25, 2), 0.01))
    assert head.deformation.detach().unique().tolist() == pytest.approx([0.0, 0.02])
    with torch.no_grad():
        labels = pose.argmax(head(maps)).labeling
    assert float((labels[..., :2] - y[..., :2]).abs().float().mean()) < 2.0
    before = certify(head, dual, [Batch(maps, y, torch.arange(count))])
    for _ in range(20):
        optim.zero_grad()
        loss(head(maps), y, torch.arange(count)).backward()
        optim.step()
    after = certify(head, dual, [Batch(maps, y, torch.arange(count))])
    assert after.gap < before.gap
    assert bool((head.deformation[..., 1::2] >= 0.02).all())
    assert bool((head.deformation[..., ::2].abs() <= 0.02).all())


def test_real_poses_lie_on_the_grid():
    try:
        train = LSPET(size="small")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    head = body_pose(body_nodes(train.places(4)), (48, 48))
    labeling = head.structure.labeling(body_nodes(train.places(4)))
    assert labeling.shape == (100, 26, 4)
    assert int(labeling[:, head.structure.lower, 2:].amax()) == 12
    assert not head.structure.loss(labeling, labeling).any()
