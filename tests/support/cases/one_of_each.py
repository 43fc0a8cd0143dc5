"""A small problem of each kind of structure: the structure, random potentials in float64, and a target."""

from __future__ import annotations

import torch

from torchssvm import (
    Arborescence,
    Chain,
    Decisions,
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
from torchssvm.structures.decisions import Selection
from torchssvm.structures.graph_cut import GraphPotentials
from torchssvm.structures.pairwise_graph import PairwisePotentials
from torchssvm.structures.ranking import NDCG, PairSwaps, PrecisionAt
from torchssvm.structures.tree.forest import Forest, ForestPotentials

B = 7
EDGES = torch.tensor([[0, 1], [1, 2], [0, 2]]).expand(B, 3, 2)
COSTS = torch.tensor([0.1, 1 / 3, 0.7, 1.1], dtype=torch.float64)
MEASURES = PairSwaps(), NDCG(), PrecisionAt(2)


def real(random, *shape):
    return torch.randn(B, *shape, generator=random, dtype=torch.float64)


def labels(random, high, *shape):
    return torch.randint(0, high, (B, *shape), generator=random)


def weighted(random, high):
    weights = 0.1 + torch.rand(B, 3, generator=random, dtype=torch.float64)
    return WeightedLabels(labels(random, high, 3), weights)


def chains(r):
    return Potentials({"emission": real(r, 5, 4), "transition": real(r, 4, 4)})


def decisions(r):
    structure = Decisions(Selection(5, 2))
    return structure, Potentials(real(r, 5)), structure.target(real(r, 5).abs())


def forest(r):
    parent = torch.tensor([[-1, 0, 0]]).repeat(B, 1)
    return Forest(4, COSTS), ForestPotentials(real(r, 3, 4), real(r, 3, 4, 4), parent), labels(r, 4, 3)


def graph(r):
    potentials = PairwisePotentials(real(r, 3, 3), real(r, 3, 3, 3), EDGES)
    return PairwiseGraph(3, normalize=True), potentials, weighted(r, 3)


def matching(r):
    structure = Matching(precision_cost=1 / 3, recall_cost=0.7)
    return structure, Potentials(real(r, 3, 4)), torch.eye(3, 4, dtype=torch.int64).repeat(B, 1, 1)


def tree(r):
    potentials = Potentials({"node": real(r, 5, 3), "edge": real(r, 3, 3)})
    return Tree(3, [-1, 0, 0, 1, 1]), potentials, labels(r, 3, 5)


def segments(r):
    potentials = Potentials({"emission": real(r, 5, 3), "segment": real(r, 5, 3)})
    return Segments(3, 2), potentials, 3 + labels(r, 3, 5)


KINDS = {
    "chain": lambda r: (Chain(4, class_weight=COSTS), chains(r), labels(r, 4, 5)),
    "slack": lambda r: (SlackRescaling(Chain(4)), chains(r), labels(r, 4, 5)),
    "segments": segments,
    "hidden": lambda r: (HiddenStates(Chain(4), [0, 0, 1, 1]), chains(r), labels(r, 2, 5)),
    "tree": tree,
    "forest": forest,
    "matching": matching,
    "arborescence": lambda r: (Arborescence(), Potentials(real(r, 3, 4)), torch.tensor([[0, 1, 2]]).repeat(B, 1)),
    "labelled arcs": lambda r: (
        Arborescence(num_labels=2),
        Potentials(real(r, 3, 4, 2)),
        torch.tensor([[0, 3, 4]]).repeat(B, 1),
    ),
    "label set": lambda r: (Multilabel(4), Potentials({"unary": real(r, 4), "pairwise": real(r, 6)}), labels(r, 2, 4)),
    "pairwise graph": graph,
    "cut": lambda r: (GraphCut(balanced=True), GraphPotentials(real(r, 3), real(r, 3).abs(), EDGES), weighted(r, 2)),
    "classes": lambda r: (Multiclass(4, COSTS * (1.0 - torch.eye(4).double())), Potentials(real(r, 4)), labels(r, 4)),
    "decisions": decisions,
    **{
        repr(measure): lambda r, measure=measure: (
            Ranking(measure),
            Potentials(real(r, 5)),
            torch.tensor([[1, 0, 2, 0, 1]]).repeat(B, 1),
        )
        for measure in MEASURES
    },
}
