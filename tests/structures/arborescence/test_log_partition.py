"""Log-partitions of arborescences where determinants cancel, and with forbidden arcs, against all outputs."""

import pytest
import torch

from torchssvm import Arborescence, Potentials
from torchssvm.core.potentials import inner
from torchssvm.structures.arborescence import NonProjective, Projective


def listed(structure, potentials):
    """The scores of all outputs, ``[B, outputs]``."""
    parts = (structure.parts(heads).double() for heads in structure.enumerate(potentials))
    finite = {name: tensor.clamp(min=-1e30) for name, tensor in potentials.tensors.items()}
    return torch.stack([inner({"potentials": one}, finite) for one in parts], 1)


@pytest.mark.parametrize("among", [NonProjective(), NonProjective(single_root=True), Projective(), Projective(True)])
@pytest.mark.parametrize("size", [1.0, 20.0, 200.0])
@pytest.mark.parametrize("forbidden", [0.0, 0.4])
def test_scores_of_any_size_and_forbidden_arcs(among, size, forbidden):
    random, structure = torch.Generator().manual_seed(1), Arborescence(among)
    scores = size * torch.randn(40, 4, 5, generator=random, dtype=torch.float64)
    scores[torch.rand(scores.shape, generator=random) < forbidden] = -torch.inf
    potentials = Potentials(scores)
    every = listed(structure, potentials)
    possible = every.amax(1) > -1e29
    assert bool(possible.any())
    marginals = structure.marginals(potentials)
    expected = every.logsumexp(1).where(possible, -torch.inf)
    torch.testing.assert_close(marginals.log_partition, expected, atol=1e-9, rtol=1e-12)
    masses = marginals.parts["potentials"]
    torch.testing.assert_close(masses[possible].sum(2), torch.ones(int(possible.sum()), 4).double())
    assert bool(masses[~possible].isnan().all())


def test_two_tokens_that_prefer_each_other():
    scores = torch.zeros(1, 2, 3, dtype=torch.float64)
    scores[0, 0, 2] = scores[0, 1, 1] = 60.0
    for single in (False, True):
        marginals = Arborescence(NonProjective(single)).marginals(Potentials(scores))
        assert float(marginals.log_partition) == pytest.approx(60.0 + torch.tensor(2.0).log().item())
        torch.testing.assert_close(marginals.parts["potentials"].sum(2), torch.ones(1, 2).double())


@pytest.mark.parametrize("among", [NonProjective(), Projective()])
def test_batches_without_examples_and_inference_mode(among):
    structure = Arborescence(among)
    assert structure.marginals(Potentials(torch.zeros(0, 3, 4))).log_partition.shape == (0,)
    with torch.inference_mode():
        potentials = Potentials(torch.zeros(2, 3, 4), torch.tensor([3, 1]))
        assert bool((structure.entropy(potentials) >= -1e-12).all())
        assert structure.sample(potentials, 2).shape == (2, 2, 3)
