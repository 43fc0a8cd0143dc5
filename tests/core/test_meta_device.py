"""Models that are made on the meta device, as transformers makes them."""

from __future__ import annotations

import copy

import pytest
import torch

from torchssvm import (
    Chain,
    Decisions,
    HiddenStates,
    LinearArcs,
    LinearChain,
    LinearDecisions,
    LinearEdges,
    LinearGraph,
    LinearMulticlass,
    LinearMultilabel,
    LinearPairwiseGraph,
    LinearPose,
    LinearRanking,
    LinearSegments,
    LinearTree,
    Pose,
    SparseLinearChain,
    SparseLinearMultilabel,
)
from torchssvm.datasets import bio_transitions
from torchssvm.structures.decisions import Selection
from torchssvm.structures.tree.forest import LinearForest

SHIFT = torch.zeros(1, 2, 1, 2)
HEADS = {
    "chain": lambda: LinearChain(3, 3, structure=Chain(3, transitions=bio_transitions(["O", "B-X", "I-X"]))),
    "hidden": lambda: LinearChain(3, 4, structure=HiddenStates(Chain(4), [0, 0, 1, 1]).structure),
    "sparse chain": lambda: SparseLinearChain(3, 3),
    "classes": lambda: LinearMulticlass(3, 3),
    "label sets": lambda: LinearMultilabel(3, 3),
    "sparse label sets": lambda: SparseLinearMultilabel(3, 3),
    "ranking": lambda: LinearRanking(3),
    "matching": lambda: LinearEdges(3),
    "arcs": lambda: LinearArcs(3),
    "graph": lambda: LinearGraph(3, 1),
    "labels of graphs": lambda: LinearPairwiseGraph(3, 1, 3),
    "segments": lambda: LinearSegments(3, 3, 2),
    "tree": lambda: LinearTree(3, 3, [-1, 0, 0]),
    "forest": lambda: LinearForest(3, 1, 3),
    "decisions": lambda: LinearDecisions(3, structure=Decisions(Selection(3, 1))),
    "pose": lambda: LinearPose(Pose([-1, 0], SHIFT, (3, 3), size=1.0)),
}


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_weights_are_zero_where_they_get_memory_and_structures_hold_numbers(make):
    with torch.device("meta"):
        head = make()
    assert all(weights.is_meta for weights in head.parameters())
    assert repr(head.structure) == repr(make().structure)
    copied = copy.deepcopy(head)
    for own in (head, copied):
        with torch.no_grad():
            waste = [torch.full_like(weights, 1e38, device="cpu") for weights in own.parameters()]
        del waste
        own.to_empty(device="cpu")
        assert not any(bool(weights.any()) for weights in own.parameters())
        assert {type(weights) for weights in own.parameters()} == {torch.nn.Parameter}


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_reset_parameters_sets_all_weights_to_zero(make):
    head = make()
    with torch.no_grad():
        for weights in head.parameters():
            weights.fill_(1e38)
    head.reset_parameters()
    assert not any(bool(weights.any()) for weights in head.parameters())


def test_labels_are_shown_by_hidden_states_of_a_model_on_the_meta_device():
    with torch.device("meta"):
        structure = HiddenStates(Chain(4), [0, 0, 1, 1])
    assert structure.num_labels == 2
