"""A dual refuses examples that have other outputs than those of its training, though features and targets are equal."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
from cases.problems import chain, rng

from torchssvm import (
    BCFW,
    Arborescence,
    Batch,
    BlockGap,
    Chain,
    CompiledBCFW,
    Decisions,
    DualState,
    Edges,
    GraphCut,
    Graphs,
    HiddenStates,
    Labelings,
    LinearChain,
    LinearDecisions,
    LinearEdges,
    LinearGraph,
    LinearPairwiseGraph,
    Matching,
    MeanParts,
    Multiclass,
    Multilabel,
    PairwiseGraph,
    Ranking,
    SlackRescaling,
    Structure,
    Tree,
    Weights,
    certify,
    recompute_weights,
)
from torchssvm.dual.checks import digest_examples
from torchssvm.structures.chain import Transitions
from torchssvm.structures.decisions import DecisionPotentials, Knapsack, Situations
from torchssvm.structures.pairwise_graph import PairwisePotentials
from torchssvm.structures.ranking import NDCG
from torchssvm.structures.tree.forest import Forest, ForestFeatures, LinearForest

N = 4
INDEX = torch.arange(N)
# Fewer right nodes also are other features, which Weights() looks at first.
WORDS = r"4 of 4 examples have other targets .* edges, parents or capacities|\[0, 1, 2, 3\] came with other features"


class Twins(NamedTuple):
    """A head, and two batches that differ in what comes with the features alone."""

    head: torch.nn.Module
    first: Batch
    other: Batch


def pairwise_graphs():
    random = rng(0)
    nodes, y = torch.randn(N, 3, 2, generator=random), torch.randint(0, 2, (N, 3), generator=random)
    first, other = (torch.tensor(edges).expand(N, 2, 2) for edges in ([[0, 1], [1, 2]], [[0, 1], [0, 2]]))
    batches = [Batch(Graphs(nodes, torch.zeros(N, 2, 0), edges), y, INDEX) for edges in (first, other)]
    return Twins(LinearPairwiseGraph(2, 0, 2), *batches)


def cut_graphs():
    random = rng(1)
    nodes, y = torch.randn(N, 3, 2, generator=random), torch.zeros(N, 3, dtype=torch.int64)
    first, other = (torch.tensor(edges).expand(N, 2, 2) for edges in ([[0, 1], [1, 2]], [[0, 1], [0, 2]]))
    batches = [Batch(Graphs(nodes, torch.ones(N, 2, 1), edges), y, INDEX) for edges in (first, other)]
    return Twins(LinearGraph(2, 1), *batches)


def forests():
    random = rng(2)
    nodes, y = torch.randn(N, 3, 2, generator=random), torch.zeros(N, 3, dtype=torch.int64)
    links, forward = torch.ones(N, 3, 1), torch.ones(N, 3).bool()
    parents = (torch.tensor(parent).expand(N, 3) for parent in ([-1, 0, 1], [-1, 0, -1]))
    batches = [Batch(ForestFeatures(nodes, links, parent, forward), y, INDEX) for parent in parents]
    return Twins(LinearForest(2, 1, 2), *batches)


def matchings():
    x, y = torch.randn(N, 2, 3, 2, generator=rng(3)), torch.zeros(N, 2, 3, dtype=torch.int64)
    return Twins(LinearEdges(2), *(Batch(Edges(x, torch.full((N,), width)), y, INDEX) for width in (3, 2)))


def decisions(*, known=False):
    x, values = torch.randn(N, 2, generator=rng(4)), torch.tensor([[1.0, 2.0, 3.0]]).expand(N, 3)
    structure = Decisions(Knapsack([1, 2, 3], 3))
    y = structure.target(values, torch.full((N,), 6)).y
    costs = torch.zeros(N, 3) if known else None
    pairs = [(costs, 6), (None if costs is None else costs + 0.5, 6 if known else 7)]
    batches = [
        Batch(Situations(x, fixed, torch.full((N,), capacity)), (y, values.double()), INDEX)
        for fixed, capacity in pairs
    ]
    return Twins(LinearDecisions(2, structure=structure), *batches)


KINDS = {
    "pairwise graphs": pairwise_graphs,
    "cut graphs": cut_graphs,
    "forests": forests,
    "matchings": matchings,
    "capacities": decisions,
    "known costs": lambda: decisions(known=True),
}


@pytest.mark.parametrize("storage", [MeanParts, Weights, Labelings])
@pytest.mark.parametrize("kind", KINDS)
def test_other_outputs_are_refused_at_every_visit_and_exact_pass(kind, storage):
    head, first, other = KINDS[kind]()
    dual = DualState.for_head(head, N, 0.1, storage=storage())
    loss, optimizer = BlockGap(dual), BCFW(head.parameters(), dual)
    for _ in range(3):
        optimizer.zero_grad()
        loss(head(first.x), first.y, first.index).backward()
        optimizer.step()
    loaded = DualState.for_head(head, N, 0.1, storage=storage())
    loaded.load_state_dict(dual.state_dict())
    for attempt in (
        lambda: loss(head(other.x), other.y, other.index),
        lambda: certify(head, dual, [other]),
        lambda: certify(head, loaded, [other]),
        *([] if storage is Weights else [lambda: recompute_weights(head, dual, [other])]),
    ):
        with pytest.raises(RuntimeError, match=WORDS):
            attempt()
    assert certify(head, dual, [first]).drift < 1e-3


def test_padding_does_not_count_and_the_node_0_does():
    labels = torch.tensor([[1, 0, 1]])

    def digest(*edges):
        potentials = PairwisePotentials(
            torch.zeros(1, 3, 2), torch.zeros(1, len(edges), 2, 2), torch.tensor([list(edges)])
        )
        return int(digest_examples(labels, potentials))

    assert digest((0, 1)) == digest((0, 1), (-1, -1)) != digest((0, 1), (0, 2))
    assert len({digest((0, 1), (1, 2)), digest((1, 2), (0, 1)), digest((0, 1), (0, 2))}) == 3


def test_nothing_given_is_not_0_and_signs_count():
    target = torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2)
    given = [None, *(torch.tensor([number]) for number in (0, 0.5, -0.5, -1, -2, 2))]
    results = {int(digest_examples(target, DecisionPotentials(torch.zeros(1, 2), given=each))) for each in given}
    assert len(results) == len(given)


def trained_chain():
    states = torch.ones(3, 3, dtype=torch.bool)
    problem = chain(3, n=4, states=3)
    head = LinearChain(problem.head.in_features, 3, structure=Chain(3, transitions=Transitions(states))).double()
    dual = DualState.for_head(head, 4, 0.1)
    batches = [batch.replace(y=batch.y.clamp(max=0)) for batch in problem.everything(2)]
    return batches, head, dual, CompiledBCFW(head, dual, batches)


def test_a_structure_that_was_changed_is_refused_by_exact_passes():
    batches, head, dual, loop = trained_chain()
    loop.step(8)
    before, strict = head.structure.transitions, torch.eye(3, dtype=torch.bool)
    for attempt in (lambda: certify(head, dual, batches), loop.certify):
        attempt()
        head.structure.transitions = Transitions(strict)
        with pytest.raises(RuntimeError, match=r"the structure is Chain\(3"):
            attempt()
        head.structure.transitions = before
    before.pairs[0, 1] = False  # in place too
    with pytest.raises(RuntimeError, match="the structure is"):
        certify(head, dual, batches)


@pytest.mark.parametrize(
    ("structure", "name", "value"),
    [
        (Decisions(Knapsack([1, 2, 3], 3)), "oracle", Knapsack([1, 2, 3], 2)),
        (Matching(), "recall_cost", 1.0),
        (Multiclass(3), "cost", 2.0 * (1.0 - torch.eye(3))),
        (Ranking(NDCG(3)), "measure", NDCG(2)),
        (HiddenStates(Multiclass(3), [0, 0, 1]), "shows", torch.tensor([0, 1, 1])),
        (SlackRescaling(Multiclass(3)), "structure", Multiclass(4)),
        (PairwiseGraph(3), "normalize", False),
        (GraphCut(), "balanced", True),
        (Multilabel(3), "weights", torch.ones(3)),
        (Tree(2, [-1, 0, 0]), "parent", torch.tensor([-1, 0, 1])),
        (Arborescence(), "normalize", False),
        (Arborescence(num_labels=2), "label_cost", 1.0),
        (Forest(2), "class_weight", torch.ones(2)),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, Structure) else "",
)
def test_settings_say_what_decides_the_outputs_and_their_losses(structure, name, value):
    before = structure._fingerprint()
    assert before == copy.deepcopy(structure)._fingerprint()
    setattr(structure, name, value)
    assert structure._fingerprint() != before
