"""Blocks with nearly all mass at the target: their parts are small beside the terms that are summed."""

import pytest
import torch
from cases.one_of_each import KINDS, B
from cases.problems import rng

from torchssvm.core.batch import tree_replace, tree_tensors
from torchssvm.core.decoding import as_decoding
from torchssvm.core.structure import loss_by_name

ADDITIVE = [
    *("chain", "classes", "decisions", "cut", "label set", "matching", "arborescence", "labelled arcs"),
    *("tree", "forest"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ADDITIVE)
def test_their_losses_are_those_of_their_outputs(kind, dtype):
    """The target with mass .3, and another output with a mass of 1e-9: the mean loss is exact to its own rounding."""
    structure, potentials, target = KINDS[kind](rng(0))
    potentials = potentials.replace({name: tensor.to(dtype) for name, tensor in potentials.tensors.items()})
    target = structure.check_target(target, potentials)
    costs, nothing = loss_by_name(structure, target, potentials)[0], {n: 0 * t for n, t in potentials.tensors.items()}
    cheapest = potentials.replace({**nothing, **{name: -tensor.to(dtype) for name, tensor in costs.items()}})
    stored = as_decoding(structure.argmax(cheapest)).labeling  # the target, as an output
    labeling = as_decoding(structure.augmented_argmax(potentials.replace(nothing), target)).labeling
    loss = structure.loss(labeling, target).to(torch.float64)
    assert bool((structure.loss(stored, target) == 0).all())
    assert bool((loss > 0).any())
    pairs = zip(tree_tensors(stored), tree_tensors(labeling), strict=True)
    both = tree_replace(stored, [torch.stack(pair, 1) for pair in pairs])
    mass = torch.tensor([[0.3, 1e-9]], dtype=torch.float64).expand(B, 2)
    psi = structure.mean_difference(both, -mass, target, potentials)
    told, size = structure._mean_loss(psi, target, potentials)
    rounding = 20 * torch.finfo(dtype).eps
    assert bool(((told - 1e-9 * loss).abs() <= rounding * (size + 1e-9 * loss)).all())
