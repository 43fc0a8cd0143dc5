"""Blocks that hold their own target: what is left of their parts is small beside what was summed."""

from __future__ import annotations

import pytest
import torch
from problems import rng

from torchssvm import Arborescence, Chain, Decisions, GraphCut, Matching, Multiclass, Multilabel, Potentials
from torchssvm.core.batch import tree_replace, tree_tensors
from torchssvm.core.structure import as_decoding, loss_by_name
from torchssvm.structures import GraphPotentials
from torchssvm.structures.decisions import Selection


def chain(random):
    tensors = {"emission": torch.randn(8, 5, 3, generator=random), "transition": torch.randn(8, 3, 3, generator=random)}
    return Chain(3), Potentials(tensors), torch.randint(0, 3, (8, 5), generator=random)


def graph_cut(random):
    edges = torch.tensor([[0, 1], [1, 2], [2, 3]]).expand(8, 3, 2)
    tensors = torch.randn(8, 4, generator=random), torch.rand(8, 3, generator=random)
    return GraphCut(), GraphPotentials(*tensors, edges), torch.randint(0, 2, (8, 4), generator=random)


def multilabel(random):
    tensors = {"unary": torch.randn(8, 4, generator=random), "pairwise": torch.rand(8, 6, generator=random)}
    return Multilabel(4), Potentials(tensors), torch.randint(0, 2, (8, 4), generator=random)


def matching(random):
    return (
        Matching(),
        Potentials(torch.randn(8, 3, 3, generator=random)),
        torch.eye(3, dtype=torch.int64).repeat(8, 1, 1),
    )


def decisions(random):
    structure = Decisions(Selection(5, 2))
    return (
        structure,
        Potentials(torch.randn(8, 5, generator=random)),
        structure.target(torch.rand(8, 5, generator=random)),
    )


KINDS = {
    "chain": chain,
    "classes": lambda random: (Multiclass(4), Potentials(torch.randn(8, 4, generator=random)), torch.arange(8) % 4),
    "decisions": decisions,
    "graph cut": graph_cut,
    "label sets": multilabel,
    "matching": matching,
    "trees": lambda random: (
        Arborescence(),
        Potentials(torch.randn(8, 3, 4, generator=random)),
        torch.zeros(8, 3).long(),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_their_losses_are_those_of_their_outputs(kind, dtype):
    """The target with mass .3, and another output with a mass of 1e-9: the mean loss is exact to its own rounding."""
    structure, potentials, target = KINDS[kind](rng(0))
    potentials = potentials.replace({name: tensor.to(dtype) for name, tensor in potentials.tensors.items()})
    target = structure.check_target(target, potentials)
    costs, nothing = loss_by_name(structure, target, potentials)[0], {n: 0 * t for n, t in potentials.tensors.items()}
    cheapest = potentials.replace({**nothing, **{name: -tensor.to(dtype) for name, tensor in costs.items()}})
    held = as_decoding(structure.argmax(cheapest)).labeling  # the target, as an output
    found = as_decoding(structure.augmented_argmax(potentials.replace(nothing), target)).labeling
    loss = structure.loss(found, target).to(torch.float64)
    assert bool((structure.loss(held, target) == 0).all())
    assert bool((loss > 0).any())
    pairs = zip(tree_tensors(held), tree_tensors(found), strict=True)
    both = tree_replace(held, [torch.stack(pair, 1) for pair in pairs])
    mass = torch.tensor([[0.3, 1e-9]], dtype=torch.float64).expand(8, 2)
    psi = structure.mean_difference(both, -mass, target, potentials)
    told, size = structure.mean_loss(psi, target, potentials)
    rounding = 20 * torch.finfo(dtype).eps
    assert bool(((told - 1e-9 * loss).abs() <= rounding * (size + 1e-9 * loss)).all())
