"""The averages of [B13]: their formulas, and what they are good for."""

from __future__ import annotations

import pytest
import torch
from cases.average_cases import AverageTestCase
from cases.problems import chain, flat

from torchssvm import CompiledBCFW, DualState, Labelings
from torchssvm.solvers import SuffixAverage, UniformAverage, WeightedAverage


class TestWeightedAverage(AverageTestCase):
    kind = WeightedAverage

    def shares(self, count):
        return [2 * t / (count * (count + 1)) for t in range(1, count + 1)]

    def test_the_recursion_of_the_paper(self):
        """``wbar <- k/(k+2) wbar + 2/(k+2) w`` after step k = 0, 1, ..."""
        for k in range(20):
            assert self.kind([torch.zeros(1)]).coefficient(k + 1) == pytest.approx(2 / (k + 2))


@pytest.mark.variant
class TestSuffixAverage(AverageTestCase):
    kind = SuffixAverage

    def shares(self, count):
        start = max(2**e for e in range(20) if 2**e <= count)
        return [1 / (count - start + 1) if t >= start else 0.0 for t in range(1, count + 1)]


@pytest.mark.variant
class TestUniformAverage(AverageTestCase):
    kind = UniformAverage

    def shares(self, count):
        return [1 / count] * count


def test_the_compiled_loop_tells_of_its_last_step():
    problem = chain(2, boundary=True)
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=Labelings())
    solver = CompiledBCFW(problem.head, dual, problem.everything())
    average, iterates = UniformAverage.following(dual), []
    for _ in range(5):
        solver.step(4)
        iterates.append(flat(dual.parameters).clone())
    assert (average.count, dual.steps) == (5, 20)
    torch.testing.assert_close(flat(average.weights), sum(iterates) / 5)
