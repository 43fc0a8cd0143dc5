"""GDMM on chains."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from cases.factor_graphs import Duals, FactorGraph, Task, chain_graph, chain_task
from cases.gdmm_cases import FactorGraphTestCase, rules
from cases.problems import flat, listed_parts, rng
from torch import nn

from torchssvm import (
    GDMM,
    Batch,
    CompiledBCFW,
    DualState,
    Labelings,
    LinearChain,
    LinearMulticlass,
    LinearMultilabel,
    SparseFeatures,
    SparseLinearChain,
    certify,
)
from torchssvm.core.batch import apply_head
from torchssvm.solvers import primal
from torchssvm.solvers.gdmm import Penalty, ResidualBalancing
from torchssvm.solvers.gdmm.chain_bounds import round_chains
from torchssvm.solvers.gdmm.chain_pass import visit_chains
from torchssvm.solvers.gdmm.chains import ChainProblem
from torchssvm.solvers.gdmm.problem import Problem
from torchssvm.solvers.gdmm.ragged import Ragged
from torchssvm.structures.common import WeightedLabels


def of_list(lists: Ragged, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    at = slice(int(lists.start[i]), int(lists.start[i] + lists.size[i]))
    return lists.key[at], lists.mass[at], (lists.multiplier if len(lists.multiplier) else lists.mass)[at]


def table(lists: Ragged, i: int, shape: tuple[int, ...], *, second: bool = False) -> np.ndarray:
    """One list, written out."""
    key, x, y = of_list(lists, i)
    assert len(np.unique(key)) == len(key), "a key came twice"
    result = np.zeros(int(np.prod(shape)))
    result[key] = y if second else x
    return result.reshape(shape)


class ChainTestCase(FactorGraphTestCase):
    VARIANTS: ClassVar[list[dict[str, Any]]] = [
        {},
        {"sparse": True},
        {"bias": False, "boundary": False},
        {"bias": False, "sparse": True},
        {"boundary": False, "weighted": True},
        {"weighted": True, "class_weight": True, "sparse": True},
        {"class_weight": True, "normalize": False},
        {"states": 2, "longest": 4},
        {"states": 4, "longest": 2, "n": 3},
        {"longest": 1, "n": 2},
        {"states": 1, "n": 2},
    ]

    def make(self, seed: int, **options: Any) -> Task:
        return chain_task(seed, **options)

    def graph(self, task: Task) -> FactorGraph:
        return chain_graph(task)

    def duals(self, gdmm: GDMM, graph: FactorGraph) -> Duals:
        stored, states = gdmm.problem.duals, gdmm.problem.num_states
        variables = [table(stored.variables, t, (states,)) for t in range(len(graph.variables))]
        result = Duals(variables, [])
        for factor in graph.factors:
            t = factor.left
            result.factors.append(table(stored.factors, t, (states, states)))
            sides = [table(stored.sides, 2 * t + s, (states,), second=True) for s in range(2)]
            result.multipliers.append((sides[0], sides[1]))
        return result

    def check_held(self, gdmm: GDMM, graph: FactorGraph, duals: Duals) -> None:
        super().check_held(gdmm, graph, duals)
        sides, states = gdmm.problem.duals.sides, gdmm.problem.num_states
        for place, factor in enumerate(graph.factors):
            for s, excess in enumerate(graph.excesses(duals, place)):
                assert np.abs(table(sides, 2 * factor.left + s, (states,)) - excess).max() <= 1e-12

    def rounded(self, gdmm: GDMM, graph: FactorGraph) -> Duals:
        states, point = gdmm.problem.num_states, self.duals(gdmm, graph)
        pairs = round_chains(gdmm.problem.duals, states)
        assert (pairs.size <= np.diff(pairs.start)).all()
        for place, factor in enumerate(graph.factors):
            key, x, _ = of_list(pairs, factor.left)
            mass = np.zeros(states * states)
            np.add.at(mass, key, x)
            point.factors[place] = mass.reshape(states, states)
        return point

    def parts(self, task: Task, dual: DualState, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        batch, graph = task.batch([i]), chain_graph(task)
        psi = dual.storage.gather(batch.index, apply_head(task.head, batch), batch.y).psi
        variables = [v for v in graph.variables if v.example == i]
        shapes = [tuple(t.shape[1:]) for t in psi.values()]
        outputs = list(itertools.product(range(shapes[0][1]), repeat=len(variables)))
        parts = np.stack([listed_parts(output, shapes) for output in outputs])
        true = listed_parts(tuple(v.target for v in variables), shapes)
        losses = [sum(v.cost[k] for v, k in zip(variables, output, strict=True)) for output in outputs]
        return true - flat(psi.values()).numpy(), parts, np.array(losses)

    def compiled(self) -> Any:
        return visit_chains

    def check_room(self, gdmm: GDMM) -> None:
        for lists in gdmm.problem.duals:
            assert (lists.size <= np.diff(lists.start)).all()
            assert (lists.size >= 0).all()


class TestChains(ChainTestCase):
    pass


@pytest.mark.variant
class TestTwoLabels(ChainTestCase):
    """The smallest domain: every list fills up."""

    VARIANTS: ClassVar[list[dict[str, Any]]] = [{}, {"sparse": True, "bias": False, "boundary": False}]

    def make(self, seed: int, **options: Any) -> Task:
        return chain_task(seed, **{"states": 2, "longest": 2, **options})


def table_of(task: Task) -> GDMM:
    return GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam)


@rules
@pytest.mark.parametrize("cost", [0.3, 1e6, 1e13])
def test_tokens_without_features_go_where_the_loss_is(rule, cost):
    """No weight and no neighbour holds them: all their mass must end on wrong labels, and be exactly 1."""
    task = chain_task(1, n=3, longest=1, bias=False, boundary=False, sparse=True, normalize=False)
    task.x.columns[:] = -1
    task.y = WeightedLabels(task.y, torch.full(task.y.shape, cost, dtype=torch.float64))
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam, rule=rule)
    gdmm.step()
    for t in range(3):
        _, mass, _ = of_list(gdmm.problem.duals.variables, t)
        assert abs(mass.sum() - 1.0) <= 1e-15
    certificate = gdmm.certify()
    assert certificate.primal == pytest.approx(cost, rel=1e-12)
    assert certificate.gap == pytest.approx(0.0, abs=1e-12 * cost)


@rules
def test_costs_of_any_size(rule):
    """Everything in proportion: the same run."""
    runs = []
    for unit in (1.0, 2.0**30, 2.0**-30):
        task = chain_task(2, weighted=True, lam=0.1 / unit)
        task.y = WeightedLabels(task.y.labels, task.y.weights * unit)
        gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=0.1 / unit, rule=rule)
        for _ in range(20):
            gdmm.step()
        runs.append(gdmm.certify().primal / unit)
    assert runs == pytest.approx([runs[0]] * 3, rel=1e-6)


def test_memory_goes_with_what_is_active():
    """2000 labels: four million pairs for each of 60 factors, of which a few are kept."""
    random, states, n = rng(0), 2000, 12
    y = torch.randint(0, 40, (n, 6), generator=random)
    x = torch.randint(0, 50, (n, 6, 3), generator=random)
    head = SparseLinearChain(50, states).double()
    batch = Batch(SparseFeatures(x), y, torch.arange(n), torch.full((n,), 6))
    gdmm = GDMM(head, [batch], num_examples=n, lam=0.05)
    assert len(gdmm.problem.pairs.dense) == 0  # in order: more pairs than are looked at one by one
    for _ in range(4):
        report = gdmm.step()
    stored = sum(array.nbytes for lists in gdmm.problem.duals for array in lists)
    assert stored < 2**20  # n T K^2 numbers would be two gigabytes
    assert sum(array.nbytes for array in gdmm.problem.pairs.entries if isinstance(array, np.ndarray)) < 2**22
    assert report.visited < 0.01 * report.queries * states**2
    assert gdmm.problem.duals.factors.size.mean() < 8
    certificate = gdmm.certify()
    assert certificate.gap >= 0.0
    assert certificate.primal == pytest.approx(primal(head, head.structure, [batch], 0.05).value, abs=1e-9)


def made(head: Any = None, **options: Any) -> GDMM:
    task = chain_task(1)
    given = {"batches": task.everything(), "num_examples": task.n, "lam": 0.1}
    changes = {name: change(task) if name == "batches" else change for name, change in options.items()}
    return GDMM(task.head if head is None else head, **given | changes)


def moving(task: Task) -> Any:
    return [batch.replace(x=batch.x.clone().requires_grad_()) for batch in task.everything()]


def infinite(task: Task) -> Any:
    return [batch.replace(x=batch.x * math.inf) for batch in task.everything()]


DOORS = [
    (lambda: made(nn.Linear(2, 3).double()), (TypeError, ValueError), "head"),
    (lambda: made(LinearMulticlass(2, 3).double()), (TypeError, ValueError), "head"),
    (lambda: made(LinearChain(2, 3).double().to("meta")), TypeError, "head"),
    (lambda: made(LinearMultilabel(2, 3, pairwise=False).double()), TypeError, "interactions"),
    (lambda: made(batches=lambda task: task.everything()[0]), TypeError, "batches"),
    (lambda: made(batches=moving), ValueError, "x requires"),
    (lambda: made(batches=infinite), ValueError, "finite"),
    (lambda: made(batches=lambda task: task.everything()[:-1]), ValueError, "left out"),
    (lambda: made(batches=lambda task: [task.batch([1, 1])]), ValueError, "twice"),
    (lambda: made(batches=lambda task: [1]), TypeError, "Batch"),
    (lambda: made(num_examples=0), ValueError, "num_examples"),
    *((lambda lam=lam: made(lam=lam), ValueError, "lam") for lam in (0.0, math.nan, math.inf)),
    (lambda: made(rule="away"), TypeError, "rule"),
    (lambda: made(penalty=1.0), TypeError, "penalty"),
    (lambda: made(oracle="sorted"), TypeError, "oracle"),
    (lambda: made().visit([0, 1]), ValueError, "index"),
    (lambda: made().visit(torch.tensor([-1])), ValueError, "index"),
    (lambda: made().solve(0.0), ValueError, "tolerance"),
    (lambda: made().dual_state(chain_task(2).everything()), ValueError, "targets"),
    (lambda: made().dual_state(chain_task(1).everything(), storage=Labelings()), ValueError, "storage"),
    (lambda: Penalty(0.0), ValueError, "rho"),
    (lambda: Penalty("a"), TypeError, "rho"),
    (lambda: Penalty(step=2.0), ValueError, "step"),
    (lambda: ResidualBalancing(factor=1.0), ValueError, "factor"),
]


@pytest.mark.parametrize(("call", "error", "argument"), DOORS)
def test_doors(call, error, argument):
    with pytest.raises(error, match=argument):
        call()


def test_a_kind_of_ones_own_is_declared_by_its_class_alone(monkeypatch):
    monkeypatch.setattr(Problem, "of_head", dict(Problem.of_head))

    class Mine(LinearChain):
        pass

    class MineProblem(ChainProblem, heads=(Mine,)):
        pass

    task = chain_task(1)
    results = []
    for head, kind in ((task.head, ChainProblem), (Mine(task.head.in_features, 3).double(), MineProblem)):
        optim = GDMM(head, task.everything(), num_examples=task.n, lam=0.1)
        assert type(optim.problem) is kind
        optim.solve(0.01, progress=False)
        results.append(flat(head.parameters()))
    assert torch.equal(*results)


def test_the_compiled_loop_goes_on():
    task = chain_task(3, n=6)
    gdmm = table_of(task)
    for _ in range(10):
        gdmm.step()
    dual = gdmm.dual_state(task.everything())
    certificate = certify(task.head, dual, task.everything())
    loop = CompiledBCFW(task.head, dual, task.everything())
    value = certificate.dual
    for _ in range(5):
        loop.step(6)
        assert dual.value() >= value - 1e-12
        value = dual.value()
    assert loop.certify().dual == pytest.approx(value, abs=1e-9)


def test_losses_that_are_zero():
    """Of some tokens, and of all: nothing to learn, nothing to divide by."""
    task = chain_task(4, weighted=True)
    task.y.weights[:, 1:] = 0.0
    certificate = table_of(task).solve(1e-5, max_passes=2000)
    assert certificate.gap <= 1e-5
    assert certificate.primal == pytest.approx(chain_graph(task).optimum(), abs=2e-5)
    task = chain_task(4, weighted=True)
    task.y.weights[:] = 0.0
    gdmm = table_of(task)
    for _ in range(3):
        gdmm.step()
    certificate = gdmm.certify()
    assert (certificate.primal, certificate.dual, certificate.violation) == (0.0, 0.0, 0.0)
