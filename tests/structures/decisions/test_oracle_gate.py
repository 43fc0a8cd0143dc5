"""What every oracle of decisions takes and refuses, called by hand or by the structure: its kernels do not look."""

import numpy as np
import pytest
import torch

from torchssvm import Decisions
from torchssvm.structures.decisions import (
    Assignment,
    DecisionOracle,
    IntegerProgram,
    Knapsack,
    OptModel,
    Selection,
    ShortestPath,
    SpanningTree,
)


class Cheapest(DecisionOracle):
    """An oracle of one's own."""

    num_costs = 4

    def solve(self, costs, given=None, start=None):
        return np.eye(4, dtype=np.int64)[costs.argmin(1)], costs.min(1), None


class Model:
    modelSense, num_cost = 1, 4

    def setObj(self, c):
        self.c = c

    def solve(self):
        return np.eye(4)[self.c.argmin()], self.c.min()


def by_function(costs, given=None):
    return Cheapest().solve(costs)


ORACLES = [
    ShortestPath.grid(2, 2),
    Selection(4, 2),
    Knapsack([3, 2, 2, 1], 4),
    Assignment(2),
    SpanningTree([[0, 1], [1, 2], [0, 2], [2, 3]]),
    IntegerProgram([[3, 2, 2, 1]], [4], maximize=True),
    OptModel(Model()),
    Cheapest(),
    Decisions(by_function, num_costs=4).oracle,
]


@pytest.fixture(params=ORACLES, ids=lambda oracle: type(oracle).__name__)
def oracle(request):
    return request.param


@pytest.mark.parametrize("width", [0, 3, 5, 1004])
def test_costs_of_another_number_are_refused(oracle, width):
    with pytest.raises(ValueError, match="costs"):
        oracle.solve(np.ones((3, width)))
    with pytest.raises(ValueError, match=r"costs|potentials"):
        Decisions(oracle).decode(torch.ones(3, width))


def test_what_is_no_matrix_of_finite_numbers_is_refused(oracle):
    infinite = np.array([[1.0, 2.0, -np.inf, 0.0]])
    for wrong in (np.ones(4), np.ones((1, 1, 4)), 1.0, np.array([[1.0] * 4, [np.nan] * 4]), infinite):
        with pytest.raises(ValueError, match="costs"):
            oracle.solve(wrong)
    for wrong in (np.ones((1, 4), complex), [["a"] * 4], torch.ones(1, 4).to_sparse(), [[1.0], [1.0, 2.0]], None):
        with pytest.raises(TypeError, match="costs"):
            oracle.solve(wrong)
    costs = np.ones((3, 4))
    for start in (np.ones((2, 4)), np.ones((3, 5)), np.ones(4)):
        with pytest.raises(ValueError, match="start"):
            oracle.solve(costs, None, start)
    for given in (np.ones(2), np.ones((1003, 1)), np.float64(1.0)):
        with pytest.raises(ValueError, match="given"):
            oracle.solve(costs, given)


def test_numbers_of_every_kind_give_the_same_decisions(oracle):
    costs = np.random.default_rng(0).integers(-9, 10, (5, 4)).astype(np.float64)
    y, value, _ = oracle.solve(costs)
    several = [
        costs.tolist(),
        torch.from_numpy(costs).requires_grad_(),
        np.asfortranarray(costs),
        costs[:, ::-1][:, ::-1],
    ]
    for same in (*several, *(costs.astype(kind) for kind in (np.float16, np.float32, np.int8, np.longdouble))):
        certificate = oracle.solve(same)
        np.testing.assert_array_equal(certificate[0], y)
        np.testing.assert_array_equal(certificate[1], value)


def test_a_batch_may_be_empty(oracle):
    assert oracle.solve(np.ones((0, 4)))[0].shape == (0, 4)
