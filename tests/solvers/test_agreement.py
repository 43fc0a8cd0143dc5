"""One optimum: what every solver of the package says of it, against a QP over all outputs and against each other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from baselines import CuttingPlane, ExponentiatedGradient, NSlack, OneSlack, Subgradient
from cases.kernel_problems import kernel_svm
from cases.problem_data import Items
from cases.problems import PROBLEMS, Problem, Training, chain, flat, multiclass, reference, rng

from torchssvm import (
    BCFW,
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    FrankWolfe,
    Labelings,
    MeanParts,
    Pairwise,
    Solver,
    StructuredHinge,
    Weights,
    certify,
    regularization_path,
)
from torchssvm.core.batch import apply_head
from torchssvm.solvers import Certificate, SuffixAverage, WeightedAverage, primal
from torchssvm.solvers.kernel import KernelSSVM, Linear
from torchssvm.steps import Away, ExactSearch, Hybrid, MaxOracle, PredefinedStep

pytest.importorskip("clarabel")

VISITS = 8  # of every block
KINDS: dict[str, Callable[..., Problem]] = {
    **PROBLEMS,
    "multiclass with costs": functools.partial(
        multiclass, cost=torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.5], [1.0, 1.0, 0.0]])
    ),
    "multiclass without bias or adjoint": functools.partial(multiclass, bias=False, adjoint=False),
    "bare chain with positions": functools.partial(chain, shared=False, ragged=False, bias=False, boundary=False),
}


class Interval(NamedTuple):
    """What a solver says: the optimum is at least ``dual``, and its weights, ``w``, have this ``primal``."""

    dual: float
    primal: float
    w: torch.Tensor | None = None


Solves = Callable[[Problem], Interval]


def interval(problem: Problem, certificate: Certificate) -> Interval:
    assert certificate.exact
    return Interval(certificate.dual, certificate.primal, flat(problem.head.parameters()))


def visits(n: int, size: int) -> list[list[int]]:
    """Random batches until every block has been visited ``VISITS`` times, on average."""
    random = rng(0)
    return [torch.randperm(n, generator=random)[:size].tolist() for _ in range(VISITS * n // size)]


def bcfw(problem: Problem, storage=MeanParts, direction=None, oracle=None, search=None, size=2, sweeps=5) -> Interval:
    training = Training(problem, storage=storage(), direction=direction, oracle=oracle, sweeps=sweeps)
    training.optim = BCFW(problem.head.parameters(), training.dual, line_search=search)
    for k, rows in enumerate(visits(problem.n, min(size, problem.n))):
        training.step(rows)
        if k == 4:
            certify(problem.head, training.dual, problem.everything(2))  # fills caches, and takes drift away
    return interval(problem, certify(problem.head, training.dual, problem.everything(2)))


def batch_frank_wolfe(problem: Problem, search) -> Interval:
    return bcfw(problem, search=search, size=problem.n, sweeps=0)


def averaged(problem: Problem, average: type) -> Interval:
    training = problem.train()
    mean = average.following(training.dual)
    training.run(visits(problem.n, 1))
    with mean.apply():
        return interval(problem, certify(problem.head, training.dual, problem.everything(2), refresh=False))


def compiled(problem: Problem, direction, oracle) -> Interval:
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=Labelings(3))
    loop = CompiledBCFW(problem.head, dual, problem.everything(), direction=direction, oracle=oracle)
    for _ in range(3):
        loop.step(VISITS * problem.n // 3)
        certificate = loop.certify()
    return interval(problem, certificate)


def cutting_plane(problem: Problem, slack: type) -> Interval:
    method = CuttingPlane(problem.head, problem.everything(2), num_examples=problem.n, lam=problem.lam, slack=slack())
    for _ in range(VISITS):
        result = method.step()
    return interval(problem, result)


def exponentiated_gradient(problem: Problem) -> Interval:
    method = ExponentiatedGradient(problem.head, problem.everything(), num_examples=problem.n, lam=problem.lam)
    for rows in visits(problem.n, 1):
        method.visit(problem.batch(rows))
    return interval(problem, method.certify())


def subgradient(problem: Problem, average: type) -> Interval:
    parameters = list(problem.head.parameters())
    optimizer, hinge, mean = (
        Subgradient(parameters, problem.lam),
        StructuredHinge(problem.structure),
        average(parameters),
    )
    for rows in visits(problem.n, 1) * 4:
        batch = problem.batch(rows)
        optimizer.zero_grad()
        hinge(apply_head(problem.head, batch), batch.y).backward()
        optimizer.step()
        mean.update()
    with mean.apply():
        result = primal(problem.head, problem.structure, problem.everything(2), problem.lam)
        assert result.exact
        return Interval(-torch.inf, result.value, flat(parameters))


def kernel(problem: Problem) -> Interval:
    svm: KernelSSVM = kernel_svm(problem, Linear())
    for rows in visits(problem.n, 2):
        svm.visit(rows)
    certificate = svm.certify()
    assert certificate.exact
    return Interval(certificate.dual, certificate.primal)


def path(problem: Problem) -> Interval:
    """Followed past lam; its weights are those of another lambda, and so is its certificate."""
    options = {"epsilon": 0.1, "lam_min": 0.9 * problem.lam, "max_passes": 2000, "solver": Solver(batch_size=2)}
    result = regularization_path(problem.head, Items(problem), **options)
    result.apply(problem.head, problem.lam)
    value = primal(problem.head, problem.structure, problem.everything(2), problem.lam).value
    return Interval(value - result.gap(problem.lam), value, flat(problem.head.parameters()))


DIRECTIONS = [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()]
ORACLES = [MaxOracle(), CacheOracle()]

SOLVERS: dict[str, Solves] = {
    **{
        f"BCFW, {storage.__name__}, {search}, batches of {size}, {sweeps} sweeps": functools.partial(
            bcfw, storage=storage, search=search, size=size, sweeps=sweeps
        )
        for storage in (MeanParts, Weights)
        for search, size, sweeps in ((ExactSearch(), 2, 5), (ExactSearch(), 3, 0), (PredefinedStep(), 1, 0))
    },
    **{
        f"BCFW, Labelings, {direction}, {oracle}, {search}": functools.partial(
            bcfw, storage=storage, direction=direction, oracle=oracle, search=search, sweeps=sweeps
        )
        for direction, oracle, (search, storage, sweeps) in itertools.product(
            DIRECTIONS, ORACLES, [(ExactSearch(), Labelings, 5), (PredefinedStep(), functools.partial(Labelings, 2), 0)]
        )
    },
    **{
        f"batch Frank-Wolfe, {s}": functools.partial(batch_frank_wolfe, search=s)
        for s in (ExactSearch(), PredefinedStep())
    },
    **{f"BCFW, {a.__name__}": functools.partial(averaged, average=a) for a in (WeightedAverage, SuffixAverage)},
    **{
        f"CompiledBCFW, {direction}, {oracle}": functools.partial(compiled, direction=direction, oracle=oracle)
        for direction, oracle in itertools.product(DIRECTIONS, ORACLES)
    },
    "OneSlack": functools.partial(cutting_plane, slack=OneSlack),
    "NSlack": functools.partial(cutting_plane, slack=NSlack),
    "ExponentiatedGradient": exponentiated_gradient,
    **{
        f"Subgradient, {a.__name__}": functools.partial(subgradient, average=a)
        for a in (WeightedAverage, SuffixAverage)
    },
    "KernelSSVM, linear": kernel,
    "regularisation path": path,
}


LABELINGS = [name for name in SOLVERS if name.startswith("BCFW, Labelings")]


def chosen(name: str, kind: str) -> bool:
    """All combinations on the plain kinds; on others every direction, with oracle and search by turns."""
    if name not in LABELINGS or kind in PROBLEMS:
        return True
    direction, rest = divmod(LABELINGS.index(name), len(LABELINGS) // len(DIRECTIONS))
    return rest == (direction + list(KINDS).index(kind)) % 4


def applies(name: str, kind: str) -> bool:
    """The compiled loop is for chains with shared transitions, kernel heads are made for the package's heads."""
    if name.startswith("CompiledBCFW"):
        return kind == "chain"
    return not (name.startswith("KernelSSVM") and "adjoint" in kind)


@functools.cache
def listed(kind: str, seed: int = 3):
    truth = reference(KINDS[kind](seed, lam=0.3))
    return truth, truth.optimum()


def check(proved: Interval, truth, optimum: float) -> None:
    assert proved.dual <= optimum + 1e-7
    assert proved.primal >= optimum - 1e-7
    if proved.w is not None:
        assert proved.primal == pytest.approx(truth.primal(proved.w), abs=1e-9)


def by_turns(kind: str, name: str):
    """Every solver on one of the kinds that it applies to, by turns; its other kinds are slow."""
    kinds = [other for other in KINDS if applies(name, other) and chosen(name, other)]
    first = kinds[list(SOLVERS).index(name) % len(kinds)] == kind
    return pytest.param(kind, name, marks=() if first else pytest.mark.slow)


@pytest.mark.parametrize(
    "kind, name",
    [
        by_turns(kind, name)
        for kind, name in itertools.product(KINDS, SOLVERS)
        if applies(name, kind) and chosen(name, kind)
    ],
)
def test_every_interval_holds_the_optimum_of_the_qp(kind, name):
    truth, optimum = listed(kind)
    result = SOLVERS[name](KINDS[kind](3, lam=0.3))
    check(result, truth, optimum)
    if result.dual > -torch.inf:
        assert result.dual > 0.3 * optimum
    else:
        assert result.primal < truth.primal(0.0 * truth.changes[0][0]), "no better than zero weights"
