"""Losses and oracles compute in float64, whatever torch's default dtype is."""

from __future__ import annotations

import pytest
import torch
from problems import rng

from torchssvm import (
    Arborescence,
    Chain,
    GraphCut,
    HiddenStates,
    Matching,
    Multiclass,
    Multilabel,
    PairwiseGraph,
    Potentials,
    Ranking,
    Segments,
    SlackRescaling,
    Tree,
    WeightedLabels,
)
from torchssvm.core.max_oracle import find_corner
from torchssvm.structures.graph_cut import GraphPotentials
from torchssvm.structures.pairwise_graph import PairwisePotentials
from torchssvm.structures.ranking import NDCG, AveragePrecision, PairSwaps, PrecisionAt
from torchssvm.structures.tree.forest import Forest, ForestPotentials

B = 7


def real(random, *shape):
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def labels(random, high, *shape):
    return torch.randint(0, high, shape, generator=random)


def chains(r):
    return {"emission": real(r, B, 5, 4), "transition": real(r, B, 4, 4)}


def edges():
    return torch.tensor([[0, 1], [1, 2], [0, 2]]).expand(B, 3, 2)


def weights(r):
    return 0.1 + torch.rand(B, 3, generator=r, dtype=torch.float64)


COSTS = torch.tensor([0.1, 1 / 3, 0.7, 1.1], dtype=torch.float64)
KINDS = {
    "chain": lambda r: (Chain(4, class_weight=COSTS), Potentials(chains(r)), labels(r, 4, B, 5)),
    "slack": lambda r: (SlackRescaling(Chain(4)), Potentials(chains(r)), labels(r, 4, B, 5)),
    "hidden": lambda r: (HiddenStates(Chain(4), [0, 0, 1, 1]), Potentials(chains(r)), labels(r, 2, B, 5)),
    "segments": lambda r: (
        Segments(3, 2),
        Potentials({"emission": real(r, B, 5, 3), "segment": real(r, B, 5, 3)}),
        3 + labels(r, 3, B, 5),
    ),
    "tree": lambda r: (
        Tree(3, [-1, 0, 0, 1, 1]),
        Potentials({"node": real(r, B, 5, 3), "edge": real(r, B, 3, 3)}),
        labels(r, 3, B, 5),
    ),
    "forest": lambda r: (
        Forest(4, COSTS),
        ForestPotentials(real(r, B, 3, 4), real(r, B, 3, 4, 4), torch.tensor([[-1, 0, 0]]).repeat(B, 1)),
        labels(r, 4, B, 3),
    ),
    "matching": lambda r: (
        Matching(precision_cost=1 / 3, recall_cost=0.7),
        Potentials(real(r, B, 3, 4)),
        torch.eye(3, 4, dtype=torch.int64).repeat(B, 1, 1),
    ),
    "arborescence": lambda r: (Arborescence(), Potentials(real(r, B, 3, 4)), torch.tensor([[0, 1, 2]]).repeat(B, 1)),
    "label set": lambda r: (
        Multilabel(4),
        Potentials({"unary": real(r, B, 4), "pairwise": real(r, B, 6)}),
        labels(r, 2, B, 4),
    ),
    "pairwise graph": lambda r: (
        PairwiseGraph(3, normalize=True),
        PairwisePotentials(real(r, B, 3, 3), real(r, B, 3, 3, 3), edges()),
        WeightedLabels(labels(r, 3, B, 3), weights(r)),
    ),
    "cut": lambda r: (
        GraphCut(balanced=True),
        GraphPotentials(real(r, B, 3), real(r, B, 3).abs(), edges()),
        WeightedLabels(labels(r, 2, B, 3), weights(r)),
    ),
    "classes": lambda r: (
        Multiclass(4, cost=COSTS * (1.0 - torch.eye(4).double())),
        Potentials(real(r, B, 4)),
        labels(r, 4, B),
    ),
    **{
        repr(measure): lambda r, measure=measure: (
            Ranking(measure),
            Potentials(real(r, B, 5)),
            torch.tensor([[1, 0, 2, 0, 1]]).repeat(B, 1),
        )
        for measure in (PairSwaps(), AveragePrecision(), NDCG(), PrecisionAt(2))
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_dtype_changes_no_bit(kind):
    found = []
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            structure, potentials, target = KINDS[kind](rng(0))
            target = structure.check_target(target, potentials)
            corner = find_corner(structure, potentials, target)
            numbers = [corner.hinge, corner.loss, corner.score, corner.bound]
            numbers += structure.difference(corner.labeling, target, potentials).values()
            try:
                delta, constant = structure.loss_potentials(target)
                numbers += [constant, *(delta.values() if isinstance(delta, dict) else [delta])]
            except NotImplementedError:
                pass
            found.append(numbers)
    finally:
        torch.set_default_dtype(before)
    for single, double in zip(*found, strict=True):
        assert single.dtype == torch.float64
        assert torch.equal(single, double)
