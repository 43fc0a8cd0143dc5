"""Heads of users in the compiled loop: what a wrong kind does, and where its code is kept."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import pytest
import torch
from numba.core.caching import FunctionCache
from torch import nn

from torchssvm import (
    Batch,
    CompiledBCFW,
    Corrective,
    DualState,
    Labelings,
    MeanParts,
    Relative,
    Solver,
    certify,
    check,
    in_order,
    solve,
)
from torchssvm.compiler.jit import njit
from torchssvm.core.decoding import Decoding
from torchssvm.core.structure import Structure
from torchssvm.datasets import PaddedDataset
from torchssvm.kinds import Form, block
from torchssvm.kinds.adapter import find_adapter
from torchssvm.structures.tree.kind import Trees

compiles = pytest.mark.slow  # users' code is not kept on the disk: every run compiles it


class Subset(Structure):
    """Labels of which any may be on; those of neighbours may be on together or not."""

    def argmax(self, potentials):
        best, value = None, None
        for labels in self.enumerate(potentials):
            score = (potentials["rows"] * labels).sum(1) + (potentials["both"] * labels[:, 1:] * labels[:, :-1]).sum(1)
            better = torch.ones_like(score, dtype=torch.bool) if value is None else score > value
            best = labels if best is None else torch.where(better.unsqueeze(1), labels, best)
            value = score if value is None else torch.where(better, score, value)
        return Decoding(best, value)

    def parts(self, labeling):
        on = labeling.to(torch.get_default_dtype())
        return {"rows": on, "both": on[:, 1:] * on[:, :-1]}

    def loss(self, labeling, target):
        return (labeling != target).sum(1).double()

    def loss_potentials(self, target):
        return {"rows": 1.0 - 2.0 * target}, target.sum(1).double()

    def enumerate(self, potentials):
        batch, size = potentials["rows"].shape
        return (torch.tensor([number >> k & 1 for k in range(size)]).expand(batch, -1) for number in range(2**size))


class Subsets(NamedTuple):
    """One kind, whose code is compiled once in a process, with numbers that make it wrong."""

    size: int
    heard: float = 1.0  # the share of the loss that the decoder hears
    added: float = 1.0  # the share of each part that is added


@block.list_parts.of(Subsets)
@njit
def list_parts(kind, examples, i, labels, other, task):
    total = 0.0
    for k in range(kind.size):
        total += block.amount(task, task.rows, 0, k, labels[k], other[k])
        if k:
            both, other_both = labels[k] * labels[k - 1], other[k] * other[k - 1]
            total += block.amount(task, task.pairs, 0, k - 1, both, other_both)
    return total


@block.add_labeling.of(Subsets)
@njit
def add(kind, examples, i, length, labels, mass, rows, pairs, room):
    y = examples.y[examples.start[i] :]
    list_parts(kind, examples, i, labels, y, block.Add(rows, pairs, kind.added * mass))


@njit
def search(kind, examples, i, cost, scratch, pairs, labels):
    y, best, most = examples.y[examples.start[i] :], 0, -1e300
    for number in range(1 << kind.size):
        total = 0.0
        for k in range(kind.size):
            on, below = number >> k & 1, number >> max(k - 1, 0) & 1
            total += on * scratch.emission[0, k] + (cost if on != y[k] else 0.0)
            if k:
                total += pairs[0, k - 1] * on * below
        if total > most:
            best, most = number, total
    for k in range(kind.size):
        labels[k] = best >> k & 1


@block.decode.of(Subsets)
@njit
def decode(kind, examples, i, length, scratch, pairs, labels):
    search(kind, examples, i, kind.heard, scratch, pairs, labels)
    return block.loss_of(kind, examples, i, labels)


class Head(nn.Module):
    def __init__(self, features: int = 3, size: int = 4, **wrong: float) -> None:
        super().__init__()
        self.kind, self.structure = Subsets(size, **wrong), Subset()
        self.weight = nn.Parameter(torch.zeros(size, features, dtype=torch.float64))
        self.both = nn.Parameter(torch.zeros(size - 1, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return {"rows": x @ self.weight.T + self.bias, "both": self.both.expand(len(x), -1)}

    def compiled_form(self):
        weights = {"bias": self.bias, "pairs": self.both.unsqueeze(0)}
        names = {"emission": "rows", "transition": "both"}
        return Form(self, self.kind, self.weight.T, **weights, **names)


def data(n: int = 12) -> PaddedDataset:
    return PaddedDataset(*drawn(n))


def drawn(n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    x = torch.randn(n, 3, generator=random, dtype=torch.float64)
    return x, torch.randint(0, 2, (n, 4), generator=random)


@pytest.fixture(scope="module", autouse=True)
def kept():
    """The types of all code that is written to the disk while this file's kind is compiled."""
    results: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FunctionCache, "save_overload", lambda cache, sig, data: results.extend(sig))
        yield results


@compiles
def test_both_loops_reach_the_same_optimum():
    results = [
        solve(Head(), data(), lam=0.05, solver=Solver(compiled=compiled), tolerance=Relative(1e-7), max_passes=20_000)
        for compiled in (True, False)
    ]
    assert results[0].exact
    assert results[0].primal == pytest.approx(results[1].primal, rel=1e-6)


@compiles
def test_a_right_kind_passes_the_check():
    head = Head()
    report = check(head, head.structure, next(iter(in_order(data()))))
    assert report.findings[-1].name == "compiled form equals the structure"
    assert report.ok, report


@compiles
@pytest.mark.parametrize("wrong", [{"heard": 0.0}, {"added": 0.5}], ids=str)
def test_a_wrong_kind_does_not(wrong):
    head = Head(**wrong)
    report = check(head, head.structure, next(iter(in_order(data()))))
    assert [finding.name for finding in report.findings if finding.problem] == ["compiled form equals the structure"]


@compiles
def test_a_resumed_run_has_the_bits_of_the_one_left_alone():
    def make() -> CompiledBCFW:
        head = Head()
        dual = DualState.for_head(head, 12, 0.05, storage=Labelings(2))
        return CompiledBCFW(head, dual, in_order(data()), direction=Corrective())

    alone, first, second = make(), make(), make()
    alone.step(40)
    first.step(15)
    second.dual.load_state_dict(first.dual.state_dict())
    second.load_state_dict(first.state_dict())
    second.step(25)
    assert all(torch.equal(a, b) for a, b in zip(alone.head.parameters(), second.head.parameters(), strict=True))
    assert torch.equal(alone.dual.loss, second.dual.loss)


def test_a_subclass_with_another_forward_is_not_taken_for_its_base():
    class Doubled(Head):
        def forward(self, x):
            return super().forward(2.0 * x)

    with pytest.raises(ValueError, match="head"):
        solve(Doubled(), data(), lam=0.05, solver=Solver(compiled=True))


def test_weights_that_are_no_parameters_are_refused():
    head = Head()
    with pytest.raises(TypeError, match="weight, bias and pairs"):
        Form(head, Subsets(4), head.weight.T.clone(), bias=head.bias, pairs=head.both.unsqueeze(0))


@compiles
def test_only_code_of_this_package_is_kept(kept):
    """Numba tells kinds apart by their names, and does not see edits of what a kernel calls."""
    solve(Head(), data(), lam=0.05, solver=Solver(compiled=True), tolerance=Relative(0.1))
    assert not any("Subsets" in str(kind) for kind in kept)


def test_a_kind_has_another_name_than_the_packages():
    with pytest.raises(TypeError, match=Trees.__name__):
        block.list_parts.of(NamedTuple(Trees.__name__, [("size", int)]))(list_parts)


@compiles
def test_copies_train_their_own_weights():
    head = Head()
    dual = DualState.for_head(head, 12, 0.05, storage=MeanParts())
    loop = CompiledBCFW(head, dual, in_order(data()))
    loop.step(12)
    for again in (copy.deepcopy(loop), pickle.loads(pickle.dumps(loop))):
        before = [p.detach().clone() for p in head.parameters()]
        again.step(24)
        assert all(torch.equal(a, b) for a, b in zip(before, head.parameters(), strict=True))
        assert again.certify().drift < 1e-9
    for p in head.parameters():
        p.data = p.data.clone()
    loop.step(24)
    assert loop.certify().primal == pytest.approx(certify(head, dual, in_order(data())).primal)


@compiles
def test_weights_may_be_views_of_another_shape():
    class Cubic(Head):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 2, 3, dtype=torch.float64))

        def forward(self, x):
            return {"rows": x @ self.weight.flatten(0, 1).T + self.bias, "both": self.both.expand(len(x), -1)}

        def compiled_form(self):
            weights = {"bias": self.bias, "pairs": self.both.unsqueeze(0)}
            return Form(self, Subsets(4), self.weight.flatten(0, 1).T, **weights, emission="rows", transition="both")

    results = [
        solve(head, data(), lam=0.05, solver=Solver(compiled=True), tolerance=Relative(1e-6), max_passes=9_000)
        for head in (Head(), Cubic())
    ]
    assert results[0].primal == pytest.approx(results[1].primal, rel=1e-5)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda x, y: (x, y.float()), "int64"),
        (lambda x, y: (x, y + 2), r"Form\(labels=2\)"),
        (lambda x, y: (x, torch.where(torch.arange(4) == 1, -1, y)), "target"),
        (lambda x, y: (x, torch.where(torch.arange(4) == 3, -1, y)), "target"),
        (lambda x, y: (x, y[:, :3]), "target"),
        (lambda x, y: (x, torch.cat([y, y], 1)), "target"),
    ],
)
def test_wrong_examples_are_refused(change, words):
    x, y = change(*drawn())
    head = Head()
    dual = DualState.for_head(head, 12, 0.05, storage=MeanParts())
    with pytest.raises(ValueError, match=words):
        CompiledBCFW(head, dual, [Batch(x, y, torch.arange(12))])


def test_a_form_of_a_subclass_is_that_of_the_forward_before_it():
    class Told(Head):
        def compiled_form(self):
            return super().compiled_form()

    class Unknown(Head):
        def forward(self, x):
            return super().forward(x)

    assert isinstance(find_adapter(Told()), Form)
    with pytest.raises(TypeError, match=r"Unknown.* overrides forward"):
        find_adapter(Unknown())


def test_what_a_form_does_not_say_is_refused():
    class Shifted(Head):
        def forward(self, x):
            return {**super().forward(x), "rows": super().forward(x)["rows"] * 2.0}

        def compiled_form(self):
            return super().compiled_form()

    with pytest.raises(ValueError, match="head=Shifted"):
        solve(Shifted(), data(), lam=0.05, solver=Solver(compiled=True))
