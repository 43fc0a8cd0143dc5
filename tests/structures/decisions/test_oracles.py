"""The oracles of decisions against enumeration, on many random problems at once."""

import numpy as np
import pytest

from torchssvm.structures.decisions import Assignment, Knapsack, Selection, ShortestPath, SpanningTree

SIDE_STREETS = [[0, 1], [3, 1], [1, 2], [0, 2], [2, 4], [0, 3], [0, 3]]  # not in order, with two parallel arcs
KITE = [[0, 1], [1, 2], [0, 2], [2, 3], [3, 0], [0, 1]]
ORACLES = [
    (ShortestPath.grid(3, 3), 6),
    (ShortestPath.grid(1, 4), 1),
    (ShortestPath(SIDE_STREETS, 0, 4), 4),
    (Selection(6, 2), 15),
    (Selection(6, 3, at_most=True, maximize=False), 42),
    (Knapsack([3, 2, 2, 0, 5, 7], capacity=7), 24),
    (Knapsack([3, 2, 2], capacity=10**9), 8),
    (Assignment(3), 6),
    (Assignment(2, 4, maximize=True), 12),
    (SpanningTree(KITE), 13),
    (SpanningTree(KITE, maximize=True), 13),
]


def best_of_all(oracle, costs, given=None):
    shared, best = oracle.decisions(), np.max if oracle.maximize else np.min
    each = [shared] * len(costs) if given is None else [oracle.decisions(one) for one in given]
    return np.array([best(decisions @ one) for decisions, one in zip(each, costs, strict=True)])


@pytest.mark.parametrize("oracle, count", ORACLES, ids=lambda value: repr(value)[:24])
def test_decisions_are_the_best_of_all(oracle, count):
    random = np.random.default_rng(0)
    assert len(np.unique(oracle.decisions(), axis=0)) == len(oracle.decisions()) == count
    feasible = {tuple(y) for y in oracle.decisions()}
    whole = random.integers(-3, 4, (2000, oracle.num_costs)).astype(float)  # many ties
    for costs in (random.normal(size=whole.shape), whole, 1e9 * random.normal(size=whole.shape)):
        y, value, bound = oracle.solve(costs)
        assert bound is None
        np.testing.assert_allclose(value, best_of_all(oracle, costs), atol=1e-9, rtol=1e-12)
        np.testing.assert_allclose(value, (y * costs).sum(1), atol=1e-9, rtol=1e-12)
        assert {tuple(one) for one in y} <= feasible
        for row in range(3):
            assert (oracle.solve(costs[row : row + 1])[0] == y[row]).all()


@pytest.mark.parametrize("oracle, most", [(Selection(6, 2), 7), (Knapsack([3, 2, 2, 1], 4), 10)], ids=["k", "capacity"])
def test_every_example_may_have_its_own_limit(oracle, most):
    random = np.random.default_rng(1)
    costs, given = random.normal(size=(500, oracle.num_costs)), random.integers(0, most, 500)
    value = oracle.solve(costs, given)[1]
    np.testing.assert_allclose(value, best_of_all(oracle, costs, given), atol=1e-12)
    np.testing.assert_allclose(oracle.solve(costs, given.reshape(-1, 1))[1], value)


def test_many_decisions_are_not_listed():
    assert len(ShortestPath.grid(5, 5).decisions()) == 70
    for oracle in (ShortestPath.grid(20, 20), Selection(30, 15), Knapsack([1] * 30, 9), Assignment(9)):
        assert oracle.decisions() is None


def test_only_paths_to_the_sink_are_followed():
    long = ShortestPath([[k, k + 1] for k in range(1200)], 0, 1200)  # longer than a stack
    assert long.decisions().shape == (1, 1200)
    grid = ShortestPath.grid(15, 15)
    assert len(ShortestPath(grid.arcs, 0, 16).decisions()) == 2  # 40 million ways pass the sink by
    assert len(ShortestPath(grid.arcs, 208, 224).decisions()) == 2  # and as many begin elsewhere


@pytest.mark.parametrize(
    "make, argument",
    [
        (lambda: ShortestPath([[0, 1], [1, 2], [2, 0]], 0, 2), "arcs"),
        (lambda: ShortestPath([[0, 1], [1, 2]], 1, 0), "source=1"),
        (lambda: ShortestPath([0, 1], 0, 1), "arcs"),
        (lambda: Selection(3, 4), "k=4"),
        (lambda: Selection(3, 1).solve(np.zeros((2, 3)), np.array([1, 4])), "given"),
        (lambda: Selection(3, 1).solve(np.zeros((1, 3)), np.array([1.5])), "given"),
        (lambda: Knapsack([1.5, 2.0], 3), "weights"),
        (lambda: Knapsack([1, 2], 3).solve(np.zeros((2, 2)), np.array([1, -1])), "given"),
        (lambda: Assignment(3, 2), "tasks=2"),
        (lambda: SpanningTree([[0, -1]]), "edges"),
        (lambda: SpanningTree([[0, 1], [2, 3]]), "edges"),
        *(
            (lambda oracle=oracle: oracle.solve(np.ones((1, oracle.num_costs)), np.ones((1, 2))), "given")
            for oracle in (ShortestPath.grid(2, 2), Assignment(2), SpanningTree(KITE))
        ),
    ],
)
def test_problems_that_do_not_fit_are_refused(make, argument):
    with pytest.raises(ValueError, match=argument):
        make()
