"""Faults that once went unseen: each of these trained on, or ended in a false certificate."""

import copy
import gc
import weakref

import pytest
import torch
from custom import LabelSets
from problems import assert_same
from tables import each_row
from torch import nn

from torchssvm import (
    BCFW,
    BlockGap,
    Chain,
    DualState,
    GapBatchSampler,
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
from torchssvm.core.max_oracle import find_corner


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


def test_directions_of_an_earlier_state_are_refused():
    x, y = torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([0, 1])
    head, dual, loss, optim, everything = problem(x, y, lam=1.0)
    value = loss(head(x[:1]), y[:1], torch.tensor([0]))
    optim.zero_grad()
    value.backward(retain_graph=True)
    optim.step()
    optim.zero_grad()
    value.backward()
    with pytest.raises(RuntimeError, match="earlier state of the dual"):
        optim.step()
    assert float(dual.loss[0]) <= 0.5
    assert certify(head, dual, everything).gap >= 0.0


def test_clipping_is_seen_where_weights_are_still_zero():
    x, y = torch.eye(4), torch.arange(4) % 3
    head, _, loss, optim, _ = problem(x, y, lam=10.0)
    for i in range(3):
        optim.zero_grad()
        loss(head(x[i : i + 1]), y[i : i + 1], torch.tensor([i])).backward()
        if i:
            nn.utils.clip_grad_norm_(head.parameters(), 0.01)
            with pytest.raises(RuntimeError, match="clipping"):
                optim.step()
            return
        optim.step()


def test_changed_weights_are_refused_until_a_pass_has_recomputed_them():
    x, y = torch.randn(6, 3), torch.arange(6) % 3
    head, dual, loss, optim, everything = problem(x, y)

    def step():
        optim.zero_grad()
        loss(head(x[:2]), y[:2], torch.tensor([0, 1])).backward()
        optim.step()

    with torch.no_grad():
        head.weight.normal_()
    with pytest.raises(RuntimeError, match="weights have changed"):
        step()
    with pytest.warns(UserWarning, match="differ from those of the dual"):
        certify(head, dual, everything)
    step()
    assert certify(head, dual, everything).drift < 1e-4


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
    with pytest.raises(RuntimeError, match="the gap is negative"):
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
    with pytest.raises(ValueError, match="not zero in the padding"):
        loss(head(torch.randn(2, 3, 4)), target, index)
    assert not dual.mailbox.waiting


@pytest.mark.parametrize("storage", [MeanParts, Labelings])
def test_a_pass_that_fails_leaves_the_cache_and_earlier_directions_alone(storage):
    """What its first batches found would go to slots that a pending step writes to."""
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
    with pytest.raises(ValueError, match="left out 2 of 6 examples"):
        certify(head, dual, [Batch(x[:4], y[:4], torch.arange(4))])
    assert_same(dual.state_dict(), before)
    optim.step()
    assert certify(head, dual, [Batch(x, y, torch.arange(6))]).drift < 1e-5


def test_samplers_that_are_gone_are_not_kept():
    _, dual, _, _, _ = problem(torch.randn(6, 3), torch.arange(6) % 3)
    gone = weakref.ref(GapBatchSampler(dual, batch_size=2))
    gc.collect()
    assert gone() is None
    dual.mailbox.notify()


def test_structures_without_a_name_of_their_own_resume():
    a, b = LabelSets(3, 2), LabelSets(3, 2)
    assert repr(a) == repr(b) != repr(LabelSets(4, 2))
    assert "0x" not in repr(a)


def test_another_optimizer_on_the_head_is_named():
    """BCFW sees weights that it did not set, and an exact pass weights that are not those of the dual."""
    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 3, generator=random), torch.randint(0, 3, (12,), generator=random)
    head, dual, loss, optim, everything = problem(x, y)
    other = torch.optim.SGD(head.parameters(), lr=0.1)
    for k in range(3):
        rows = torch.arange(4) + 4 * k
        optim.zero_grad()
        loss(head(x[rows]), y[rows], rows).backward()
        optim.step()
    loss(head(x[:4]), y[:4], torch.arange(4)).backward()
    other.step()
    with pytest.raises(RuntimeError, match="Did another optimizer step them"):
        optim.step()
    with pytest.warns(UserWarning, match="did another optimizer step them"):
        certify(head, dual, everything)


def test_a_loss_called_with_targets_first_says_so():
    x, y = torch.randn(6, 3), torch.arange(6) % 3
    head, _, loss, _, _ = problem(x, y)
    with pytest.raises(TypeError, match=r"potentials are torch.int64: the first argument must be what the head"):
        loss(y, head(x), torch.arange(6))


def test_numbers_of_other_dtypes_are_told_how_to_be_converted():
    x, y = torch.randn(6, 3), torch.arange(6) % 3
    head, _, loss, _, _ = problem(x, y)
    for targets, index in ((y.int(), torch.arange(6)), (y, torch.arange(6).int()), (y > 0, torch.arange(6))):
        with pytest.raises(ValueError, match=r"must be int64 .*: call \.long\(\)"):
            loss(head(x), targets, index)
    with pytest.raises(ValueError, match=r"lengths must be int64 \[2\].*torch.int32 \[2\]: call \.long\(\)"):
        LinearChain(4, 3)(torch.randn(2, 3, 4), torch.tensor([1, 3]).int())
    with pytest.raises(
        ValueError, match=r"lengths must be int64 \[3\], one for each example of a batch of 3 padded to 2"
    ):
        LinearChain(4, 3)(torch.randn(3, 2, 4), torch.tensor([1, 2]))


class Deltas(Multiclass):
    """What ``loss_potentials`` returns is wrong in one way or another."""

    def __init__(self, wrong) -> None:
        super().__init__(3)
        self.wrong = wrong

    def loss_potentials(self, target):
        return self.wrong(*super().loss_potentials(target))


def test_loss_potentials_that_are_wrong_are_named():
    y = torch.arange(6) % 3
    potentials = Potentials(torch.randn(6, 3))
    for wrong in (lambda delta, constant: delta, lambda delta, constant: [delta]):
        with pytest.raises(TypeError, match=r"loss_potentials\(target\) must return \(delta, constant\), got"):
            find_corner(Deltas(wrong), potentials, y)
    better = Potentials(torch.zeros(6, 3).scatter(1, y.unsqueeze(1), 10.0))
    with pytest.raises(ValueError, match=r"loss and loss_potentials disagree, .* run torchssvm\.check"):
        find_corner(Deltas(lambda delta, constant: (30.0 * delta, constant)), better, y)


@each_row(("token", "words"), [(3, r"not finite \(in the padding\): check"), (2, "not finite: check")])
def test_numbers_that_are_not_finite_are_placed(token, words):
    x = torch.randn(2, 4, 4)
    x[0, token] = torch.nan
    potentials = LinearChain(4, 3)(x, torch.tensor([3, 4]))
    with pytest.raises(ValueError, match=rf"the potentials of rows \[0\] are {words}"):
        find_corner(Chain(3), potentials, torch.zeros(2, 4).long())
