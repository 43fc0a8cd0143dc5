"""torchssvm.check: silent about what is right, and names what is wrong."""

from __future__ import annotations

import pytest
import torch
from cases.compiled_kinds import ARCS, OTHERS
from cases.problems import assert_same, chain, multiclass
from cases.top_label_sets import Approximate, LabelSets, Scores, label_sets
from torch import nn

from torchssvm import Batch, Chain, LinearChain, LinearMulticlass, Multiclass, Potentials, WeightedLabels, check
from torchssvm.core.decoding import Decoding

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
    "argmax can return the target",
    "argmax finds the best output",
    "augmented_argmax finds the best output",
    "padding changes no answer",
    "compiled form equals the structure",
]
LINEAR, FIT, ADJOINT, GRAM, PARTS, LOSS, DELTA, SIZE, RELATIVE, MEAN, AIM, ARGMAX, AUGMENTED, PADDING, COMPILED = NAMES


def problems_of(report) -> dict[str, str]:
    return {finding.name: finding.problem for finding in report.findings if finding.problem is not None}


def skipped(report) -> set[str]:
    return {finding.name for finding in report.findings if finding.skipped}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [chain, multiclass])
def test_our_own_are_right(make, dtype):
    for seed in range(4):
        problem = make(seed, dtype=dtype)
        report = check(problem.head, problem.structure, problem.batch(range(problem.n)))
        assert report.ok, str(report)
        assert [finding.name for finding in report.findings] == NAMES
        assert skipped(report) == (set() if make is chain else {PADDING})
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS | ARCS)
def test_other_kinds_are_right(kind):
    problem = (OTHERS | ARCS)[kind]()
    report = check(problem.head, problem.structure, problem.batch(range(5)))
    assert report.ok, str(report)
    assert skipped(report) <= {DELTA, RELATIVE, MEAN, PADDING, *([AIM] if "known costs" in kind else [])}
    assert problem.lengths is None or PADDING not in skipped(report)


@pytest.mark.parametrize("structure", [LabelSets, Approximate])
def test_a_custom_head_and_structure_are_right(structure):
    head, _, batch = label_sets()
    report = check(head, structure(4, 2), batch)
    assert report.ok, str(report)
    assert skipped(report) == {ADJOINT, GRAM, RELATIVE, MEAN, PADDING}


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


def scores(change):
    """A head that gives what ``change`` makes of its module, its input and right scores."""

    def forward(self, x):
        return change(self, x, Scores.forward(self, x))

    return type("Wrong", (Scores,), {"forward": forward})


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (lambda _, x, scores: scores.relu(), LINEAR, "not linear"),
        (lambda _, x, scores: nn.functional.dropout(scores, 0.5), LINEAR, "not linear"),
        (lambda head, x, _: x @ (head.weight / (1e-9 + head.weight.norm())).T, LINEAR, "not linear"),
        (lambda _, x, scores: scores + 0.1, LINEAR, "not zero"),
        (
            lambda _, x, scores: Potentials(
                scores, adjoint=lambda p: [2 * p["potentials"].unsqueeze(2) * x.unsqueeze(1)]
            ),
            ADJOINT,
            "parameter 0, row 0",
        ),
        (
            lambda _, x, scores: Potentials(scores, adjoint=lambda p: [x.unsqueeze(2) * p["potentials"].unsqueeze(1)]),
            ADJOINT,
            "adjoint returned shapes",
        ),
        (
            lambda _, x, scores: Potentials(scores, gram_product=lambda p: {k: 2 * t for k, t in p.items()}),
            GRAM,
            "'potentials', row 0: differs by",
        ),
        (
            lambda _, x, scores: Potentials(scores, gram_product=lambda p: x),
            GRAM,
            "the head's gram_product must be shaped like",
        ),
        (lambda _, x, scores: scores[:, :3], PARTS, "shaped like the potentials"),
    ],
)
def test_wrong_heads_are_found(change, name, words):
    _, structure, batch = label_sets()
    report = check(scores(change)(3, 4).double(), structure, batch)
    problems = problems_of(report)
    assert words in problems[name]
    if name != PARTS:
        assert set(problems) == {name}
    assert not report.ok
    assert name in str(report)
    with pytest.raises(ValueError, match="WRONG"):
        report.raise_if_wrong()


def second_best(self, potentials):
    chosen = potentials.single.topk(self.size + 1, dim=1).indices[:, 1:]
    return torch.zeros_like(potentials.single, dtype=torch.int64).scatter_(1, chosen, 1)


def with_value(decode, more, **bound):
    """What ``decode`` finds, with a value that is larger by ``more``."""

    def argmax(self, potentials):
        labeling = decode(self, potentials)
        value = (potentials.single * labeling).sum(1) + more
        return Decoding(labeling, value, **({"bound": value, "exact": False} if bound else {}))

    return argmax


def loss_potentials(change):
    return lambda self, target: change(*LabelSets.loss_potentials(self, target))


def broken(self, labeling, target):
    raise KeyError("oops")


RIGHT = LabelSets
COSTLY = {"loss": lambda *a: RIGHT.loss(*a) + 0.5, "loss_potentials": loss_potentials(lambda d, c: (d, c + 0.5))}
NEGATIVE = {"loss": lambda *a: -RIGHT.loss(*a), "loss_potentials": loss_potentials(lambda d, c: (-d, c))}


@pytest.mark.parametrize(
    ("methods", "names", "words"),
    [
        ({"argmax": second_best}, {ARGMAX, AUGMENTED}, "another output has"),
        ({"augmented_argmax": lambda self, p, _: Decoding(self.argmax(p))}, {AUGMENTED}, "another output has"),
        ({"argmax": with_value(RIGHT.argmax, 1)}, {ARGMAX, AUGMENTED}, "it says value"),
        ({"argmax": with_value(second_best, 0, bound=True)}, {ARGMAX, AUGMENTED}, "oracle's bound"),
        ({"loss_potentials": loss_potentials(lambda d, c: (2 * d, c))}, {DELTA}, "loss_potentials gives"),
        ({"loss_potentials": loss_potentials(lambda d, c: (d, c + 1))}, {DELTA}, "loss_potentials gives"),
        (COSTLY, {FIT}, "is not zero in examples [0, 1, 2, 3, 4]"),
        ({**COSTLY, "check_target": lambda self, target, p: target}, {LOSS}, "loss(target, target) is [0.5"),
        (NEGATIVE, {LOSS}, "loss is [-"),
        ({"parts": lambda *a: RIGHT.parts(*a).flatten()}, {PARTS}, "shaped like the potentials"),
        ({"relative_scores": lambda *a: RIGHT.relative_scores(*a) + 1}, {RELATIVE}, "row 0: it says"),
        ({"relative_scores": lambda *a: RIGHT.relative_scores(*a).float()}, {RELATIVE}, "float32"),
        (
            {"mean_difference": lambda self, y, mass, *_: {"potentials": (mass.unsqueeze(2) * y).sum(1)}},
            {MEAN},
            "'potentials', row 0: differs by",
        ),
        ({"resize": lambda self, labelings, target: labelings[:, :, :-1]}, {SIZE}, "resize changed labelings"),
        ({"loss": broken}, {FIT}, "KeyError: 'oops'"),
    ],
)
def test_wrong_structures_are_found(methods, names, words):
    head, _, batch = label_sets()
    result = problems_of(check(head, type("Wrong", (LabelSets,), methods)(4, 2), batch))
    for name in names:
        assert words in result[name]
    assert LINEAR not in result
    if names == {AUGMENTED} or methods is NEGATIVE or names == {DELTA}:
        assert ARGMAX not in result


class Misses(Chain):
    """Never says the last label."""

    def argmax(self, potentials):
        tensors = dict(potentials.tensors)
        tensors["emission"] = tensors["emission"].clone()
        tensors["emission"][..., -1] = -torch.inf
        return Decoding(super().argmax(potentials.replace(tensors)).labeling)


def test_an_oracle_that_misses_outputs_falls_behind_the_targets():
    x, labels = torch.randn(6, 4, 5), torch.randint(0, 3, (6, 4))
    head = LinearChain(5, 3, structure=Misses(3))
    result = problems_of(check(head, head.structure, Batch(x, labels, torch.arange(6))))
    assert "another output has" in result[ARGMAX]


class ReadsPadding(Chain):
    """Forgets the lengths when it decodes, and crops afterwards."""

    def argmax(self, potentials):
        decoded = super().argmax(Potentials(potentials.tensors))
        real = torch.arange(decoded.labeling.shape[1]) < potentials.lengths.unsqueeze(1)
        return Decoding(decoded.labeling.masked_fill(~real, -1))


class PartsInThePadding(Chain):
    def parts(self, labeling):
        labels = labeling.clamp(min=0)
        return super().parts(labels)


@pytest.mark.parametrize("kind", [ReadsPadding, PartsInThePadding])
def test_reading_the_padding_is_found(kind):
    problem = chain(0, n=30)
    assert int(problem.lengths.min()) < int(problem.lengths.max())
    result = problems_of(check(problem.head, kind(2), problem.batch(range(30))))
    assert PADDING in result


def test_targets_that_do_not_fit_are_found():
    problem = multiclass(0)
    batch = problem.batch([0, 1])
    report = check(problem.head, problem.structure, batch.replace(y=batch.y + 5))
    assert "label" in problems_of(report)[FIT]
    report = check(LinearMulticlass(7, 3), Multiclass(3), batch)
    assert "x must be [B, 7]" in problems_of(report)[FIT]
