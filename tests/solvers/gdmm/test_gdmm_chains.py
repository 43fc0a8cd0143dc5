"""GDMM on chains."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from cases.factor_graphs import Duals, FactorGraph, Task, chain_graph, chain_task, label_set_task
from cases.gdmm_cases import FactorGraphTestCase, rules
from cases.problems import flat, listed_parts, rng
from torch import nn

from torchssvm import (
    GDMM,
    Batch,
    Chain,
    CompiledBCFW,
    DualState,
    LinearChain,
    LinearMulticlass,
    LinearMultilabel,
    Multilabel,
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
    found = np.zeros(int(np.prod(shape)))
    found[key] = y if second else x
    return found.reshape(shape)


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
        held, states = gdmm.problem.duals, gdmm.problem.num_states
        variables = [table(held.variables, t, (states,)) for t in range(len(graph.variables))]
        found = Duals(variables, [])
        for factor in graph.factors:
            t = factor.left
            found.factors.append(table(held.factors, t, (states, states)))
            sides = [table(held.sides, 2 * t + s, (states,), second=True) for s in range(2)]
            found.multipliers.append((sides[0], sides[1]))
        return found

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
    found = gdmm.certify()
    assert found.primal == pytest.approx(cost, rel=1e-12)
    assert found.gap == pytest.approx(0.0, abs=1e-12 * cost)


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
    held = sum(array.nbytes for lists in gdmm.problem.duals for array in lists)
    assert held < 2**20  # n T K^2 numbers would be two gigabytes
    assert sum(array.nbytes for array in gdmm.problem.pairs.entries if isinstance(array, np.ndarray)) < 2**22
    assert report.visited < 0.01 * report.queries * states**2
    assert gdmm.problem.duals.factors.size.mean() < 8
    found = gdmm.certify()
    assert found.gap >= 0.0
    assert found.primal == pytest.approx(primal(head, head.structure, [batch], 0.05).value, abs=1e-9)


class Own(LinearChain):
    """A head that computes something else."""

    def forward(self, x, lengths=None):
        return super().forward(2.0 * x, lengths)


def test_heads_that_are_not_for_it():
    task, sets = chain_task(1), label_set_task(1)
    for head, words in (
        (nn.Linear(2, 3).double(), "LinearChain"),
        (LinearMulticlass(2, 3).double(), "LinearChain"),
        (LinearChain(2, 3, positions=3, structure=Chain(3, shared=False)).double(), "transitions"),
        (Own(2, 3).double(), "LinearChain"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            GDMM(head, task.everything(), num_examples=task.n, lam=0.1)
    with pytest.raises(TypeError, match="interactions"):
        GDMM(LinearMultilabel(2, 3, pairwise=False).double(), sets.everything(), num_examples=sets.n, lam=0.1)
    few = LinearMultilabel(2, 3, structure=Multilabel(3, pairs=torch.tensor([[0, 1]])))
    with pytest.raises(TypeError, match="pairs"):
        GDMM(few.double(), sets.everything(), num_examples=sets.n, lam=0.1)
    with pytest.raises(TypeError, match="CPU"):
        GDMM(LinearChain(2, 3).double().to("meta"), task.everything(), num_examples=task.n, lam=0.1)
    for made in (task, sets):
        made.head.register_forward_hook(lambda *_: None)
        with pytest.raises(TypeError, match="hooks"):
            GDMM(made.head, made.everything(), num_examples=made.n, lam=0.1)


def test_a_kind_of_ones_own_is_declared_by_its_class_alone(monkeypatch):
    monkeypatch.setattr(Problem, "of_head", dict(Problem.of_head))

    class Mine(LinearChain):
        pass

    class MineProblem(ChainProblem, heads=(Mine,)):
        pass

    task = chain_task(1)
    found = []
    for head, kind in ((task.head, ChainProblem), (Mine(task.head.in_features, 3).double(), MineProblem)):
        optim = GDMM(head, task.everything(), num_examples=task.n, lam=0.1)
        assert type(optim.problem) is kind
        optim.solve(0.01, progress=False)
        found.append(flat(head.parameters()))
    assert torch.equal(*found)


def test_targets_and_sizes_that_do_not_fit():
    task = chain_task(1)
    for change in ({"y": task.y.clamp(min=3)}, {"y": task.y.double()}, {"x": torch.zeros(2, 3, 5).double()}):
        batches = [task.batch([0, 1]).replace(**{k: v[:2] for k, v in change.items()}), task.batch([2, 3])]
        with pytest.raises((ValueError, TypeError)):
            GDMM(task.head, batches, num_examples=task.n, lam=0.1)
    gdmm = table_of(task)
    other = chain_task(2)
    before = flat(task.head.parameters()).clone()
    with pytest.raises(ValueError, match="targets"):
        gdmm.dual_state(other.everything())
    assert torch.equal(flat(task.head.parameters()), before)


def test_objects_of_rules():
    for make, words in (
        (lambda: Penalty(0.0), "rho"),
        (lambda: Penalty(math.nan), "rho"),
        (lambda: Penalty(step=2.0), "step"),
        (lambda: Penalty(step=0.0), "step"),
        (lambda: ResidualBalancing(factor=1.0), "factor"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    for make, words in (
        (lambda: Penalty("a"), "rho"),
        (lambda: Penalty(step=None), "step"),
        (lambda: ResidualBalancing(factor="b"), "factor"),
    ):
        with pytest.raises(TypeError, match=words):
            make()


def test_the_compiled_loop_goes_on():
    task = chain_task(3, n=6)
    gdmm = table_of(task)
    for _ in range(10):
        gdmm.step()
    dual = gdmm.dual_state(task.everything())
    found = certify(task.head, dual, task.everything())
    loop = CompiledBCFW(task.head, dual, task.everything())
    value = found.dual
    for _ in range(5):
        loop.step(6)
        assert dual.value() >= value - 1e-12
        value = dual.value()
    assert loop.certify().dual == pytest.approx(value, abs=1e-9)


def test_losses_that_are_zero():
    """Of some tokens, and of all: nothing to learn, nothing to divide by."""
    task = chain_task(4, weighted=True)
    task.y.weights[:, 1:] = 0.0
    found = table_of(task).solve(1e-5, max_passes=2000)
    assert found.gap <= 1e-5
    assert found.primal == pytest.approx(chain_graph(task).optimum(), abs=2e-5)
    task = chain_task(4, weighted=True)
    task.y.weights[:] = 0.0
    gdmm = table_of(task)
    for _ in range(3):
        gdmm.step()
    found = gdmm.certify()
    assert (found.primal, found.dual, found.violation) == (0.0, 0.0, 0.0)
