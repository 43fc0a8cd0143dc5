"""Random sequences of valid work and refused input end in the same bits as the valid work alone, in every solver."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.items import Items
from cases.kernel_problems import kernel_svm
from cases.problems import PROBLEMS, Problem, assert_same, chain, examples, flat, rng
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import (
    BCFW,
    GDMM,
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    FrankWolfe,
    GapBatchSampler,
    Labelings,
    MeanParts,
    Pairwise,
    Permutation,
    Proportional,
    Solver,
    Weights,
    certify,
    recompute_weights,
)
from torchssvm.path import PathRun
from torchssvm.solvers import WeightedAverage
from torchssvm.solvers.kernel import RBF
from torchssvm.steps import LargestGap

REFUSED = (ValueError, TypeError, RuntimeError)
SEEDS = st.integers(0, 2**31 - 1)
VALID = 10


class Work(ABC):
    """A solver at work: ``valid`` goes on, every method of ``refusals`` must be refused."""

    @abstractmethod
    def valid(self) -> None:
        """The next piece of valid work; what it is depends on the pieces before it only."""

    @abstractmethod
    def refusals(self) -> list[Callable[[], Any]]:
        """Calls that raise; each sets back whatever it has changed itself."""

    @abstractmethod
    def state(self) -> Any:
        """Everything that the next pieces depend on, and what is reported."""


def edited(weights: torch.Tensor, call: Callable[[], Any]) -> None:
    """The call while somebody else has written to the weights; they get their bits back."""
    held = weights.detach().clone()
    with torch.no_grad():
        weights += 1.0
    try:
        call()
    finally:
        with torch.no_grad():
            weights.copy_(held)


def damaged(state: dict[str, Any], *path: str) -> dict[str, Any]:
    """The state without the entry at this path."""
    inner = state = copy.deepcopy(state)
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return state


def others(problem: Problem) -> list[Any]:
    """All examples, one with another target."""
    batch = problem.everything()[0]
    y = batch.y.clone()
    y.view(-1)[0] = (y.view(-1)[0] + 1) % 2
    return [batch.replace(y=y)]


class TorchLoop(Work):
    """The plain loop over a sampler, with an average, exact passes, and a batch that is repeated when refused."""

    def __init__(self, seed: int, kind: str, storage: Any, direction: Any, oracle: Any, order: Any) -> None:
        self.problem = PROBLEMS[kind](seed)
        self.training = self.problem.train(storage=storage(), direction=direction, oracle=oracle)
        self.sampler = GapBatchSampler(self.training.dual, batch_size=2, order=order, chunk=1)
        self.average = WeightedAverage.following(self.training.dual)
        self.batches = itertools.chain.from_iterable(self.sampler for _ in itertools.count())
        self.rows = next(self.batches)
        self.done = 0

    def valid(self) -> None:
        self.training.step(self.rows)
        self.done += 1
        if self.done % 4 == 1:
            self.certify()
        self.rows = next(self.batches)

    def certify(self, batches: list[Any] | None = None) -> None:
        certify(self.problem.head, self.training.dual, batches or self.problem.everything())

    def state(self) -> Any:
        training = self.training
        return [training.optim.state_dict(), self.sampler.state_dict(), self.average.state_dict(), self.rows]

    def refusals(self) -> list[Callable[[], Any]]:
        problem, training, dual = self.problem, self.training, self.training.dual
        batch, state = problem.batch(self.rows), training.optim.state_dict()
        nan = batch.x.clone()
        nan[0] = torch.nan
        sampler = self.sampler.state_dict()
        found = [
            lambda: training.step(batch.replace(x=nan)),
            lambda: training.step(batch.replace(index=batch.index + problem.n)),
            lambda: training.step(batch.replace(index=batch.index.double())),
            lambda: training.step(batch.replace(y=batch.y + 7)),
            lambda: training.step(batch.replace(x=batch.x[..., :1])),
            lambda: (training.optim.zero_grad(), training.optim.step()),
            lambda: training.optim.load_state_dict(damaged(state, "dual", "loss")),
            lambda: training.optim.load_state_dict(damaged(state, "param_groups")),
            lambda: dual.load_state_dict({**dual.state_dict(), "lam": 3.0}),
            lambda: dual.rescale(1.5),
            lambda: dual.change_lam(-1.0),
            lambda: self.sampler.load_state_dict(damaged(sampler, "drawn")),
            lambda: self.sampler.load_state_dict({**sampler, "used": 99}),
            lambda: self.average.load_state_dict({"kind": "UniformAverage"}),
            lambda: recompute_weights(problem.head, dual, [problem.batch([0])]),
            lambda: BCFW(list(problem.head.parameters())[:1], dual),
            lambda: self.certify([problem.batch([0])]),
        ]
        if dual.steps:
            found.append(lambda: BCFW([{"params": list(problem.head.parameters()), "lower": 0.0}], dual))
        return found


class RefusedSteps(TorchLoop):
    """The same, refused when the batch has been through its backward pass; then it is trained again."""

    def refusals(self) -> list[Callable[[], Any]]:
        training, parameters = self.training, list(self.problem.head.parameters())

        def step(spoil: Callable[[], Any]) -> None:
            training.optim.zero_grad()
            training.backward(self.rows)
            spoil()
            try:
                training.optim.step()
            finally:
                training.optim.zero_grad()

        def clip() -> None:
            for parameter in parameters:
                parameter.grad = 0.5 * parameter.grad + 1.0  # of weights that are zero too

        def infinite() -> None:
            parameters[0].grad = torch.full_like(parameters[0], torch.inf)

        def descend() -> None:
            training.backward(self.rows, scale=-1.0)

        return [lambda: step(clip), lambda: step(infinite), lambda: step(descend)]


class CompiledLoop(Work):
    def __init__(self, seed: int, kind: str, storage: Any, direction: Any, oracle: Any, order: Any) -> None:
        self.problem = PROBLEMS[kind](seed)
        self.dual = DualState.for_head(self.problem.head, self.problem.n, self.problem.lam, storage=storage())
        everything = self.problem.everything()
        rules = {"direction": direction, "oracle": oracle, "order": order}
        self.loop = CompiledBCFW(self.problem.head, self.dual, everything, **rules)
        self.done = 0

    def valid(self) -> None:
        self.done += 1
        if self.done % 5 == 2:
            self.loop.certify()
        elif self.done % 5 == 4:
            self.loop.visit(torch.tensor([self.done % self.problem.n, 0]))
        else:
            self.loop.step(1 + self.done % 3)

    def state(self) -> Any:
        return [self.dual.state_dict(), self.loop.state_dict()]

    def refusals(self) -> list[Callable[[], Any]]:
        loop, dual, problem = self.loop, self.dual, self.problem
        weights = next(problem.head.parameters())
        found = [
            lambda: loop.step(-1),
            lambda: loop.step(2.0),  # type: ignore[arg-type]
            lambda: loop.visit(torch.tensor([problem.n])),
            lambda: loop.visit(torch.tensor([0.0])),
            lambda: loop.visit([0]),  # type: ignore[arg-type]
            lambda: loop.solve(-1.0),
            lambda: loop.load_state_dict(damaged(loop.state_dict(), "generator")),
            lambda: loop.load_state_dict({**loop.state_dict(), "order": "Nothing"}),
            lambda: dual.load_state_dict(damaged(dual.state_dict(), "loss")),
            lambda: dual.rescale(0.0),
            lambda: CompiledBCFW(problem.head, dual, [problem.batch([0])]),
        ]
        if dual.steps and dual.targets is not None:
            found.append(lambda: CompiledBCFW(problem.head, dual, others(problem)))
        if dual.recomputed is None:  # else the next step starts from there, and never looks at these
            found += [lambda: edited(weights, lambda: loop.step(3)), lambda: edited(weights, loop.certify)]
        return found


class Factorwise(Work):
    def __init__(self, seed: int) -> None:
        self.problem = chain(seed)
        self.gdmm = GDMM(
            self.problem.head, self.problem.everything(), num_examples=self.problem.n, lam=self.problem.lam
        )
        self.done = 0

    def valid(self) -> None:
        self.done += 1
        if self.done % 4 == 2:
            self.gdmm.visit(torch.tensor([self.done % self.problem.n]))
        elif self.done % 4 == 0:
            self.gdmm.certify()
        else:
            self.gdmm.step()

    def state(self) -> Any:
        return [self.gdmm.state_dict(), flat(self.problem.head.parameters())]

    def refusals(self) -> list[Callable[[], Any]]:
        gdmm, problem = self.gdmm, self.problem

        def set_back(call: Callable[[], Any]) -> None:
            """While weights were written to; then as the error says."""
            with torch.no_grad():
                problem.head.transition += 1.0
            try:
                call()
            finally:
                gdmm.load_state_dict(gdmm.state_dict())

        found = [
            lambda: gdmm.visit(torch.tensor([problem.n])),
            lambda: gdmm.visit(torch.tensor([0.0])),
            lambda: gdmm.solve(-1.0),
            lambda: gdmm.solve(0.1, max_passes=0),
            lambda: gdmm.dual_state(others(problem)),
            lambda: gdmm.dual_state(problem.everything(), storage=Labelings()),
            lambda: gdmm.load_state_dict(damaged(gdmm.state_dict(), "gdmm", "rho")),
            lambda: gdmm.load_state_dict(damaged(gdmm.state_dict(), "gdmm", "problem")),
        ]
        if self.done % 4 != 2:  # within a pass the head holds the weights of its start, and would get newer ones
            calls = [gdmm.step, gdmm.end_pass, gdmm.certify, lambda: gdmm.visit(torch.tensor([0]))]
            found += [lambda call=call: set_back(call) for call in calls]  # type: ignore[misc]
        return found


class Kernels(Work):
    def __init__(self, seed: int, kind: str) -> None:
        self.problem = PROBLEMS[kind](seed)
        self.spoilt = False
        exact = RBF(0.7)
        self.svm = kernel_svm(
            self.problem,
            lambda a, b: exact(a, b) * (torch.nan if self.spoilt else 1.0),
            memory_limit=None,
        )
        self.sampler = GapBatchSampler(self.svm.dual, batch_size=2, chunk=1)
        self.batches = itertools.chain.from_iterable(self.sampler for _ in itertools.count())
        self.rows = next(self.batches)
        self.done = 0

    def valid(self) -> None:
        self.done += 1
        self.svm.visit(self.rows)
        if self.done % 4 == 2:
            self.svm.certify()
        self.rows = next(self.batches)

    def state(self) -> Any:
        head = self.svm.update_head()
        return [self.svm.state_dict(), self.sampler.state_dict(), self.rows, head.support, head.coefficients]

    def refusals(self) -> list[Callable[[], Any]]:
        svm, problem = self.svm, self.problem

        def spoilt(call: Callable[[], Any]) -> None:
            self.spoilt = True
            try:
                call()
            finally:
                self.spoilt = False

        found = [
            lambda: svm.visit([problem.n]),
            lambda: svm.visit([]),
            lambda: svm.visit([0.5]),  # type: ignore[list-item]
            lambda: svm.solve(0.1, max_passes=0),
            lambda: svm.decode(problem.x[..., :1]),
            lambda: svm.load_state_dict(damaged(svm.state_dict(), "dual")),
            lambda: svm.load_state_dict(damaged(svm.state_dict(), "dual", "kernel_squared_norm")),
            lambda: edited(svm.dual.parameters[-1], lambda: svm.visit(self.rows)),
        ]
        if not svm.gram.nbytes():  # else the rows are known
            found.append(lambda: spoilt(lambda: svm.visit(self.rows)))
        return found


class Path(Work):
    def __init__(self) -> None:
        problem = chain(5, lam=0.3)
        solver = Solver(batch_size=2, compiled=False)
        self.run = PathRun(problem.head, Items(problem), epsilon=0.1, lam_min=0.02, solver=solver)

    def valid(self) -> None:
        self.run.advance()

    def state(self) -> Any:
        points = self.run.path.points if self.run.dual.steps else []
        return [self.run.dual.state_dict(), [point.weights for point in points]]

    def refusals(self) -> list[Callable[[], Any]]:
        run, state = self.run, self.run.state_dict()
        return [
            lambda: run.load_state_dict(damaged(state, "rule")),
            lambda: run.load_state_dict(damaged(state, "dual", "loss")),
            lambda: run.load_state_dict({**state, "rule": "Nothing()"}),
            lambda: run.load_state_dict({**state, "dual": {**state["dual"], "lam": 9.0}}),
        ]


def check(make: Callable[[], Work], seed: int) -> set[int]:
    """Both runs, in the same bits after every piece; which refusals there were."""
    random, plain, disturbed, tried = rng(seed), make(), make(), set()
    for _ in range(VALID):
        for _ in range(int(torch.randint(0, 4, (), generator=random))):
            refusals = disturbed.refusals()
            which = int(torch.randint(0, len(refusals), (), generator=random))
            with pytest.raises(REFUSED):
                refusals[which]()
            tried.add(which)
        assert_same(disturbed.state(), plain.state(), f"after refusals {sorted(tried)}")
        plain.valid()
        disturbed.valid()
        assert_same(disturbed.state(), plain.state())
    return tried


RULES = st.sampled_from(
    [
        (MeanParts, FrankWolfe(), None),
        (Labelings, Pairwise(), None),
        (Labelings, Corrective(), CacheOracle()),
        (lambda: Labelings(2), FrankWolfe(), None),
    ]
)
KINDS = st.sampled_from(sorted(PROBLEMS))


@examples(12)
@given(
    seed=SEEDS,
    kind=KINDS,
    rules=st.one_of(RULES, st.just((Weights, FrankWolfe(), None))),
    order=st.sampled_from([Proportional(), LargestGap(), Permutation()]),
    after_backward=st.booleans(),
)
def test_the_torch_loop(seed, kind, rules, order, after_backward):
    loop = RefusedSteps if after_backward else TorchLoop
    check(lambda: loop(seed, kind, *rules, order), seed)


@examples(12)
@given(seed=SEEDS, kind=KINDS, rules=RULES, order=st.sampled_from([Proportional(), Permutation()]))
def test_the_compiled_loop(seed, kind, rules, order):
    check(lambda: CompiledLoop(seed, kind, *rules, order), seed)


@examples(8)
@given(seed=SEEDS)
def test_gdmm(seed):
    check(lambda: Factorwise(seed), seed)


@examples(8)
@given(seed=SEEDS, kind=KINDS)
def test_kernels(seed, kind):
    check(lambda: Kernels(seed, kind), seed)


EACH = {
    "torch loop": lambda: TorchLoop(0, "chain", MeanParts, FrankWolfe(), None, Permutation()),
    "refused steps": lambda: RefusedSteps(0, "chain", MeanParts, FrankWolfe(), None, Permutation()),
    "compiled loop": lambda: CompiledLoop(0, "chain", Labelings, Pairwise(), None, Permutation()),
    "GDMM": lambda: Factorwise(0),
    "kernels": lambda: Kernels(0, "chain"),
    "path": Path,
}


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("make", EACH.values(), ids=EACH)
def test_each_refusal_leaves_no_trace(make, before):
    """Every one of them."""
    for which in itertools.count():
        plain, disturbed = make(), make()
        for work in (plain, disturbed):
            for _ in range(before):
                work.valid()
        refusals = disturbed.refusals()
        if which == len(refusals):
            break
        with pytest.raises(REFUSED):
            refusals[which]()
        assert_same(disturbed.state(), plain.state(), f"after refusal {which}")
        plain.valid()
        disturbed.valid()
        assert_same(disturbed.state(), plain.state(), f"after refusal {which}, and valid work")
