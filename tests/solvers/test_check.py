"""torchssvm.check: silent about what is right, and names what is wrong."""

from __future__ import annotations

import pytest
import torch
from custom import Approximate, LabelSets, Scores, label_sets
from problems import assert_same, chain, multiclass
from torch import nn

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    Chain,
    DualState,
    LinearChain,
    LinearMulticlass,
    Multiclass,
    Potentials,
    WeightedLabels,
    certify,
    check,
)
from torchssvm.core.structure import Decoding

NAMES = [
    "head is linear in its weights",
    "head and target fit the structure",
    "adjoint equals autograd",
    "gram_product equals autograd",
    "parts are shaped like the potentials",
    "loss is 0 at the target, else >= 0",
    "loss equals <parts, delta> + constant",
    "labelings keep their size",
    "relative_scores equals the parts",
    "mean_difference equals the parts",
    "argmax finds the best output",
    "augmented_argmax finds the best output",
    "padding changes no answer",
    "compiled form equals the structure",
]


def problems_of(report) -> dict[str, str]:
    return {finding.name: finding.problem for finding in report.findings if finding.problem is not None}


def skipped(report) -> set[str]:
    return {finding.name for finding in report.findings if finding.skipped}


# -- What is right -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [chain, multiclass])
def test_our_own_are_right(make, dtype):
    for seed in range(4):
        problem = make(seed, dtype=dtype)
        report = check(problem.head, problem.structure, problem.batch(range(problem.n)))
        assert report.ok, str(report)
        assert [finding.name for finding in report.findings] == NAMES
        assert skipped(report) == (set() if make is chain else {NAMES[-2]})
        report.raise_if_wrong()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("ragged", [True, False])
def test_chains_of_all_kinds_are_right(shared, ragged):
    problem = chain(1, shared=shared, ragged=ragged)
    structure = Chain(2, shared=shared, normalize=False, class_weight=torch.tensor([1.0, 3.0]))
    batch = problem.batch(range(problem.n))
    for y in (batch.y, WeightedLabels(batch.y, torch.rand(batch.y.shape))):
        report = check(problem.head, structure, batch.replace(y=y))
        assert report.ok, str(report)


def test_costs_are_right():
    cost = torch.tensor([[0.0, 2.0, 0.5], [1.0, 0.0, 0.0], [3.0, 0.1, 0.0]])
    problem = multiclass(1, cost=cost)
    assert check(problem.head, problem.structure, problem.batch([0, 1, 2])).ok


def test_large_problems_are_compared_with_many_outputs(monkeypatch):
    """With as many as there is time for, of 26^9 that could be listed."""
    monkeypatch.setattr("torchssvm.core.requirements._MOST_LABELINGS", 400)
    head = LinearChain(5, 26)
    batch = Batch(torch.randn(3, 9, 5), torch.randint(0, 26, (3, 9)), torch.arange(3), torch.tensor([9, 4, 1]))
    report = check(head, head.structure, batch)
    assert report.ok, str(report)


@pytest.mark.parametrize("structure", [LabelSets, Approximate])
def test_a_custom_head_and_structure_are_right(structure):
    head, _, batch = label_sets()
    report = check(head, structure(4, 2), batch)
    assert report.ok, str(report)
    assert skipped(report) == {
        "adjoint equals autograd",
        "gram_product equals autograd",
        "relative_scores equals the parts",
        "mean_difference equals the parts",
        "padding changes no answer",
    }


def test_a_custom_problem_trains_to_a_certificate():
    head, structure, batch = label_sets(n=8)
    dual = DualState.for_head(head, 8, 1.0, structure=structure)
    optim, loss = BCFW(head.parameters(), dual), BlockGap(dual)
    for k in range(400):
        row = torch.tensor([k % 8])
        optim.zero_grad()
        loss(head(batch.x[row]), batch.y[row], row).backward()
        optim.step()
    found = certify(head, dual, [batch])
    assert found.exact
    assert 0 <= found.gap < 0.01


def test_nothing_is_changed():
    problem = chain(2)
    training = problem.train().run([[0], [1, 2]])
    before, state = training.snapshot(), torch.get_rng_state()
    batch = problem.batch([0, 1, 2])
    x = batch.x.clone()
    check(problem.head, problem.structure, batch)
    assert_same(training.snapshot(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(batch.x, x)
    assert not training.dual.mailbox.waiting


# -- What is wrong -----------------------------------------------------------------------------------------


class Relu(Scores):
    def forward(self, x):
        return super().forward(x).relu()


class Dropout(Scores):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5)


class Constant(Scores):
    def forward(self, x):
        return super().forward(x) + 0.1


class Normalised(Scores):
    def forward(self, x):
        return nn.functional.linear(x, self.weight / (1e-9 + self.weight.norm()))


class WrongAdjoint(Scores):
    def forward(self, x):
        return Potentials(super().forward(x), adjoint=lambda p: [2 * p["potentials"].unsqueeze(2) * x.unsqueeze(1)])


class AdjointOfAnotherShape(Scores):
    def forward(self, x):
        return Potentials(super().forward(x), adjoint=lambda p: [x.unsqueeze(2) * p["potentials"].unsqueeze(1)])


class WrongGramProduct(Scores):
    def forward(self, x):
        return Potentials(super().forward(x), gram_product=lambda p: {k: 2 * t for k, t in p.items()})


class GramProductOfAnotherShape(Scores):
    def forward(self, x):
        return Potentials(super().forward(x), gram_product=lambda p: x)


class WrongWidth(Scores):
    def forward(self, x):
        return super().forward(x)[:, :3]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (Relu, "head is linear in its weights", "not linear"),
        (Dropout, "head is linear in its weights", "not linear"),
        (Normalised, "head is linear in its weights", "not linear"),
        (Constant, "head is linear in its weights", "not zero when all its weights are"),
        (WrongAdjoint, "adjoint equals autograd", "parameter 0, row 0"),
        (AdjointOfAnotherShape, "adjoint equals autograd", "adjoint returned shapes"),
        (WrongGramProduct, "gram_product equals autograd", "'potentials', row 0: differs by"),
        (GramProductOfAnotherShape, "gram_product equals autograd", "the head's gram_product must be shaped like"),
        (WrongWidth, "parts are shaped like the potentials", "shaped like the potentials"),
    ],
)
def test_wrong_heads_are_found(kind, name, words):
    _, structure, batch = label_sets()
    report = check(kind(3, 4).double(), structure, batch)
    found = problems_of(report)
    assert name in found
    assert words in found[name]
    if kind is not WrongWidth:
        assert set(found) == {name}
    assert not report.ok
    assert f"{name}" in str(report)
    assert "WRONG" in str(report)
    with pytest.raises(ValueError, match="WRONG"):
        report.raise_if_wrong()


class SecondBest(LabelSets):
    def argmax(self, potentials):
        chosen = potentials.single.topk(self.size + 1, dim=1).indices[:, 1:]
        return torch.zeros_like(potentials.single, dtype=torch.int64).scatter_(1, chosen, 1)


class WorseAugmented(LabelSets):
    def augmented_argmax(self, potentials, target):
        return Decoding(self.argmax(potentials))  # forgets the loss


class WrongValue(LabelSets):
    def argmax(self, potentials):
        labeling = super().argmax(potentials)
        return Decoding(labeling, (potentials.single * labeling).sum(1) + 1)


class BoundTooLow(LabelSets):
    def argmax(self, potentials):
        labeling = SecondBest.argmax(self, potentials)
        value = (potentials.single * labeling).sum(1)
        return Decoding(labeling, value, bound=value, exact=False)


class WrongDelta(LabelSets):
    def loss_potentials(self, target):
        delta, constant = super().loss_potentials(target)
        return 2 * delta, constant


class WrongConstant(LabelSets):
    def loss_potentials(self, target):
        delta, constant = super().loss_potentials(target)
        return delta, constant + 1


class CostlyTarget(LabelSets):
    def loss(self, labeling, target):
        return super().loss(labeling, target) + 0.5

    def loss_potentials(self, target):
        delta, constant = super().loss_potentials(target)
        return delta, constant + 0.5


class CostlyTargetUnseen(CostlyTarget):
    def check_target(self, target, potentials):
        return target


class NegativeLoss(LabelSets):
    def loss(self, labeling, target):
        return -super().loss(labeling, target)

    def loss_potentials(self, target):
        delta, constant = super().loss_potentials(target)
        return -delta, constant


class FlatParts(LabelSets):
    def parts(self, labeling):
        return super().parts(labeling).flatten()


class WrongScores(LabelSets):
    def relative_scores(self, labelings, target, potentials):
        return super().relative_scores(labelings, target, potentials) + 1


class SingleScores(LabelSets):
    def relative_scores(self, labelings, target, potentials):
        return super().relative_scores(labelings, target, potentials).float()


class ForgetsTheTarget(LabelSets):
    def mean_difference(self, labelings, mass, target, potentials):
        return {"potentials": (mass.unsqueeze(2) * labelings).sum(1)}


class WrongSize(LabelSets):
    def resize(self, labelings, target):
        return labelings[:, :, :-1]


class Broken(LabelSets):
    def loss(self, labeling, target):
        raise KeyError("oops")


@pytest.mark.parametrize(
    ("kind", "names", "words"),
    [
        (SecondBest, {"argmax finds the best output", "augmented_argmax finds the best output"}, "another output has"),
        (WorseAugmented, {"augmented_argmax finds the best output"}, "another output has"),
        (WrongValue, {"argmax finds the best output", "augmented_argmax finds the best output"}, "it says value"),
        (BoundTooLow, {"argmax finds the best output", "augmented_argmax finds the best output"}, "oracle's bound"),
        (WrongDelta, {"loss equals <parts, delta> + constant"}, "loss_potentials gives"),
        (WrongConstant, {"loss equals <parts, delta> + constant"}, "loss_potentials gives"),
        (CostlyTarget, {"head and target fit the structure"}, "own loss is not zero in examples [0, 1, 2, 3, 4]"),
        (CostlyTargetUnseen, {"loss is 0 at the target, else >= 0"}, "loss(target, target) is [0.5"),
        (NegativeLoss, {"loss is 0 at the target, else >= 0"}, "loss is [-"),
        (FlatParts, {"parts are shaped like the potentials"}, "shaped like the potentials"),
        (WrongScores, {"relative_scores equals the parts"}, "row 0: it says"),
        (SingleScores, {"relative_scores equals the parts"}, "float32"),
        (ForgetsTheTarget, {"mean_difference equals the parts"}, "'potentials', row 0: differs by"),
        (WrongSize, {"labelings keep their size"}, "resize changed labelings"),
        (Broken, {"head and target fit the structure"}, "KeyError: 'oops'"),
    ],
)
def test_wrong_structures_are_found(kind, names, words):
    head, _, batch = label_sets()
    found = problems_of(check(head, kind(4, 2), batch))
    assert names <= set(found)
    for name in names:
        assert words in found[name]
    assert "head is linear in its weights" not in found
    if kind in (WorseAugmented, WrongConstant, NegativeLoss):
        assert "argmax finds the best output" not in found


class ReadsPadding(Chain):
    """Forgets the lengths when it decodes, and crops afterwards."""

    def argmax(self, potentials):
        found = super().argmax(Potentials(potentials.tensors))
        real = torch.arange(found.labeling.shape[1]) < potentials.lengths.unsqueeze(1)
        return Decoding(found.labeling.masked_fill(~real, -1))


class PartsInThePadding(Chain):
    def parts(self, labeling):
        labels = labeling.clamp(min=0)
        return super().parts(labels)


@pytest.mark.parametrize("kind", [ReadsPadding, PartsInThePadding])
def test_reading_the_padding_is_found(kind):
    problem = chain(0, n=30)
    assert int(problem.lengths.min()) < int(problem.lengths.max())
    found = problems_of(check(problem.head, kind(2), problem.batch(range(30))))
    assert "padding changes no answer" in found


class Counts(LabelSets):
    """Targets are lists of the labels that are in: nothing says how large a labeling is."""

    def check_target(self, target, potentials):
        return target

    def full(self, target):
        return torch.zeros(len(target), 4, dtype=torch.int64).scatter_(1, target, 1)

    def loss(self, labeling, target):
        labeling = self.full(labeling) if labeling.shape == target.shape else labeling
        return super().loss(labeling, self.full(target))

    def loss_potentials(self, target):
        return super().loss_potentials(self.full(target))

    def parts(self, labeling):
        return super().parts(labeling if labeling.shape[1] == 4 else self.full(labeling))


class Listed(Counts):
    def check_target(self, target, potentials):
        return (target,)

    def loss(self, labeling, target):
        return super().loss(labeling[0] if isinstance(labeling, tuple) else labeling, target[0])

    def loss_potentials(self, target):
        return super().loss_potentials(target[0])

    def parts(self, labeling):
        return super().parts(labeling[0] if isinstance(labeling, tuple) else labeling)

    def enumerate(self, potentials):
        return None


def test_labelings_that_cannot_be_kept_are_named_and_are_no_error():
    """Only Labelings() needs them; MeanParts() trains with such a structure."""
    head, _, batch = label_sets()
    y = batch.y.nonzero()[:, 1].view(-1, 2)
    found = {f.name: f for f in check(head, Counts(4, 2), batch.replace(y=y)).findings}
    assert "became [5, 8, 2]" in found["labelings keep their size"].problem


def test_targets_that_do_not_fit_are_found():
    problem = multiclass(0)
    batch = problem.batch([0, 1])
    report = check(problem.head, problem.structure, batch.replace(y=batch.y + 5))
    assert "label" in problems_of(report)["head and target fit the structure"]
    report = check(LinearMulticlass(7, 3), Multiclass(3), batch)
    assert "x must be [B, 7]" in problems_of(report)["head and target fit the structure"]


def test_weights_are_put_back_after_an_error():
    head, _, batch = label_sets()
    with torch.no_grad():
        head.weight.fill_(3.0)
    check(head, Broken(4, 2), batch)
    check(WrongWidth(3, 4).double(), LabelSets(4, 2), batch)
    assert bool((head.weight == 3.0).all())


class ForOneExample(Multiclass):
    """``enumerate`` yields the labels of one example, not labelings of the batch."""

    def enumerate(self, potentials):
        yield torch.arange(3)


def test_labelings_of_one_example_are_said_to_come_from_enumerate():
    problem = multiclass(0)
    report = check(problem.head, ForOneExample(3), problem.everything()[0])
    assert (
        "enumerate(potentials) must yield labelings of the whole batch"
        in problems_of(report)["argmax finds the best output"]
    )
