"""Faults that once went unseen: each of these trained on, or ended in a false certificate."""

import copy

import pytest
import torch
from cases.problems import assert_same
from torch import nn

from torchssvm import (
    BCFW,
    BlockGap,
    DualState,
    Labelings,
    LinearChain,
    MeanParts,
    Multiclass,
    Potentials,
    Structure,
    Weights,
    certify,
)
from torchssvm.core.batch import Batch


class Rows(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, features))

    def forward(self, x):
        return x @ self.weight.t()


def problem(x, y, lam=0.1, classes=3, storage=None):
    head = Rows(x.shape[1], classes)
    dual = DualState.for_head(head, len(x), lam, structure=Multiclass(classes), storage=storage)
    return head, dual, BlockGap(dual), BCFW(head.parameters(), dual), [Batch(x, y, torch.arange(len(x)))]


def test_an_index_of_other_examples_does_not_pass_for_a_certificate():
    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 3, generator=random), torch.randint(0, 3, (12,), generator=random)
    head, dual, loss, optim, everything = problem(x, y, lam=0.01)
    y[4:] = y[:4].repeat(2)  # others would be noticed at the second visit
    for k in range(30):
        rows = torch.arange(4) + 4 * (k % 3)
        optim.zero_grad()
        loss(head(x[rows]), y[rows], torch.arange(4)).backward()
        optim.step()
    with pytest.warns(UserWarning, match="index"):
        certify(head, dual, everything)


def test_a_negative_gap_is_an_error():
    x, y = torch.randn(6, 3), torch.arange(6) % 3
    head, dual, _, _, everything = problem(x, y, storage=Weights())  # others tell the losses of their blocks
    dual.loss += 1.0
    before = dual.gap_estimates.clone()
    with pytest.raises(RuntimeError, match="gap"):
        certify(head, dual, everything)
    assert torch.equal(dual.gap_estimates, before)


def test_sequences_without_pairs_resume():
    head = LinearChain(4, 3, positions=5)
    dual = DualState.for_head(head, 2, 0.1)
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    loss(head(torch.randn(2, 3, 4), torch.tensor([1, 3])), torch.zeros(2, 3).long(), torch.tensor([1, 0])).backward()
    optim.step()
    optim.load_state_dict(optim.state_dict())


class Careless(Structure):
    """Labels of tokens, whose parts go on beyond the length."""

    def argmax(self, potentials):
        labels = potentials.single.argmax(2)
        padding = torch.arange(labels.shape[1]) >= potentials.lengths.unsqueeze(1)
        return labels.masked_fill(padding, 1)

    def parts(self, labeling):
        return nn.functional.one_hot(labeling, 2).float()

    def loss(self, labeling, target):
        return (labeling != target)[:, 0].double()

    def loss_potentials(self, target):
        delta = torch.zeros(*target.shape, 2)
        delta[:, 0] = 1.0 - nn.functional.one_hot(target[:, 0], 2)
        return delta, torch.zeros(len(target))


@pytest.mark.parametrize("storage", [MeanParts, Weights, Labelings])
def test_parts_in_the_padding_are_refused(storage):
    class Head(Rows):
        def forward(self, x):
            return Potentials(super().forward(x), torch.tensor([1, 3]), ragged={"potentials": 0})

    head = Head(4, 2)
    dual = DualState.for_head(head, 2, 0.1, structure=Careless(), storage=storage())
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    index, target = torch.arange(2), torch.zeros(2, 3, dtype=torch.int64)
    if storage is Weights:  # blocks are weights, and do not know of padding
        loss(head(torch.randn(2, 3, 4)), target, index).backward()
        optim.step()
        return
    with pytest.raises(ValueError, match="padding"):
        loss(head(torch.randn(2, 3, 4)), target, index)
    assert not dual.mailbox.waiting


@pytest.mark.parametrize("storage", [MeanParts, Labelings])
def test_a_pass_that_fails_leaves_the_cache_and_earlier_directions_alone(storage):
    """Outputs of its first batches would go to slots that a pending step writes to."""
    x, y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    head, _, _, _, _ = problem(x, y)
    dual = DualState.for_head(head, 6, 0.1, structure=Multiclass(3), storage=storage())
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    for rows in ([0, 1], [2, 3], [4, 5]):
        optim.zero_grad()
        loss(head(x[rows]), y[rows], torch.tensor(rows)).backward()
        optim.step()
    optim.zero_grad()
    loss(head(x[:2]), y[:2], torch.arange(2)).backward()
    before = copy.deepcopy(dual.state_dict())
    with pytest.raises(ValueError, match="2 of 6"):
        certify(head, dual, [Batch(x[:4], y[:4], torch.arange(4))])
    assert_same(dual.state_dict(), before)
    optim.step()
    assert certify(head, dual, [Batch(x, y, torch.arange(6))]).drift < 1e-5
