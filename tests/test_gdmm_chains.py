"""GDMM on chains."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pytest
from factor_graphs import Duals, FactorGraph, Task, chain_graph, chain_task
from gdmm_cases import FactorGraphTestCase
from problems import flat, listed_parts

pytest.importorskip("numba")

from torchssvm import GDMM, DualState
from torchssvm.batch import apply_head
from torchssvm.factorwise.chain_rounding import round_chains
from torchssvm.factorwise.ragged import Ragged


def of_list(lists: Ragged, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    at = slice(int(lists.start[i]), int(lists.start[i] + lists.size[i]))
    return lists.key[at], lists.x[at], lists.y[at] if len(lists.y) else lists.x[at]


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

    def check_room(self, gdmm: GDMM) -> None:
        for lists in gdmm.problem.duals:
            assert (lists.size <= np.diff(lists.start)).all()
            assert (lists.size >= 0).all()


class TestChains(ChainTestCase):
    pass


class TestTwoLabels(ChainTestCase):
    """The smallest domain: every list fills up."""

    VARIANTS: ClassVar[list[dict[str, Any]]] = [{}, {"sparse": True, "bias": False, "boundary": False}]

    def make(self, seed: int, **options: Any) -> Task:
        return chain_task(seed, **{"states": 2, "longest": 2, **options})
