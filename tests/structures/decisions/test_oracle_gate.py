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
    """A user's oracle."""

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


ONES, RAGGED = np.ones((3, 4)), [[1.0], [1.0, 2.0]]


@pytest.mark.parametrize(
    ("arguments", "error", "argument"),
    [
        *(([costs], ValueError, "costs") for costs in (np.ones((3, 5)), np.ones(4), 1.0, ONES * np.nan, ONES * np.inf)),
        *(([costs], TypeError, "costs") for costs in (np.ones((1, 4), complex), [["a"] * 4], RAGGED, None)),
        *(([ONES, None, start], ValueError, "start") for start in (np.ones((2, 4)), np.ones((3, 5)), np.ones(4))),
        *(([ONES, limit], ValueError, "given") for limit in (np.ones(2), np.float64(1.0))),
    ],
)
def test_what_does_not_fit_is_refused(oracle, arguments, error, argument):
    with pytest.raises(error, match=argument):
        oracle.solve(*arguments)


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
