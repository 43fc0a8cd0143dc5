"""Forests: what comes with their features is checked before a compiled loop reads it."""

import pytest
import torch

from torchssvm import Batch, CompiledBCFW, DualState
from torchssvm.structures.tree import ForestFeatures, LinearForest

LENGTHS = torch.tensor([3, 2])


def forests(parent: list[int], labels: list[int]) -> tuple[LinearForest, Batch]:
    """A forest of three nodes, and one of the first two."""
    x = torch.ones(2, 3, 2), torch.ones(2, 3, 1)
    parents, y = torch.tensor([parent, [-1, 0, -1]]), torch.tensor([labels, [0, 1, -100]])
    return LinearForest(2, 1, 2), Batch(ForestFeatures(*x, parents, parents > -2), y, torch.arange(2), LENGTHS)


@pytest.mark.parametrize(
    "parent, labels, argument",
    [
        ([-1, 0, 1], [0, -1, 1], "target"),
        ([-1, 0, 1], [-100, 1, 1], "target"),
        ([-1, 0, 1], [0, 1, 2], "target"),
        ([-1, 3, 1], [0, 1, 1], "parent"),
        ([-1, -2, 1], [0, 1, 1], "parent"),
        ([-1, 2**40, 1], [0, 1, 1], "parent"),
        ([-1, 2, 1], [0, 1, 1], "parent"),
        ([0, 0, 1], [0, 1, 1], "parent"),
    ],
)
def test_wrong_labels_and_parents_are_refused(parent, labels, argument):
    head, batch = forests(parent, labels)
    potentials = head(batch.x, batch.lengths)
    with pytest.raises(ValueError, match=argument):
        head.structure.check_target(batch.y, potentials)
    with pytest.raises(ValueError, match=argument):
        CompiledBCFW(head, DualState.for_head(head, 2, 0.1), [batch])
