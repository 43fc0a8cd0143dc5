import numpy as np
import pytest
import torch
from cases.problems import rng

from torchssvm import Decisions, LinearDecisions, Relative, evaluate, solve
from torchssvm.deployment import load_head, save_model
from torchssvm.structures.decisions import (
    Assignment,
    DecisionProblems,
    IntegerProgram,
    Knapsack,
    Selection,
    ShortestPath,
    Situations,
    SpanningTree,
)
from torchssvm.structures.decisions.integer_program import Answer

WEIGHTS = np.array([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])


def knapsack(**options):
    return IntegerProgram(WEIGHTS, [8, 10], maximize=True, **options)


def compare(oracle, costs, given=None, slack=1e-8):
    """Decisions and bounds against enumeration; how far the decisions are from the best, relative to the costs."""
    y, value, bound = oracle.solve(costs, given)
    rows = range(len(costs))
    listed = [oracle.decisions(None if given is None else given[row]) for row in rows]
    sign = 1.0 if oracle.maximize else -1.0
    best = np.array([(sign * decisions @ one).max() for one, decisions in zip(costs, listed, strict=True)])
    size = np.abs(costs).max(1)
    assert all((decisions == one).all(1).any() for one, decisions in zip(y, listed, strict=True))
    np.testing.assert_allclose(value, (y * costs).sum(1), rtol=1e-12)
    assert (sign * (value if bound is None else bound) >= best - slack * size).all()
    return ((best - sign * value) / size).max()


def test_programs_are_solved_to_optimality_or_bounded():
    """Costs of any size and sign: they are scaled for the solver."""
    random = np.random.default_rng(0)
    costs = random.normal(size=(40, 5)) * 10.0 ** random.integers(-7, 8, (40, 1))
    costs[0] = 0.0
    assert knapsack().solve(costs)[2] is None
    assert compare(knapsack(), costs[1:]) <= 1e-9
    assert compare(knapsack(rel_gap=0.5), costs[1:]) >= 0.0
    # Rows of both kinds, integers that are not binary, and right-hand sides of every example.
    general = IntegerProgram(WEIGHTS, [8, 10], [[1, 1, 0, 0, 0]], [1], bounds=(-1, [1, 1, 1, 2, 1]))
    given = np.column_stack([random.integers(5, 20, (30, 2)), random.integers(-1, 2, 30)])
    costs = random.normal(size=(30, 5))
    assert compare(general, costs, given) <= 1e-9
    assert compare(general, costs[:10]) <= 1e-9
    alone = [general.solve(costs[row : row + 1], given[row : row + 1])[0][0] for row in range(5)]
    assert (general.solve(costs, given)[0][:5] == alone).all()


def test_continuous_variables():
    """The polytope of y1 + y2 <= 1.5, y3 an integer."""
    program = IntegerProgram([[1, 1, 0]], [1.5], integrality=[0, 0, 1], maximize=True)
    y, value, bound = program.solve(np.array([[2.0, 1.0, 3.0], [1.0, 2.0, -1.0]]))
    np.testing.assert_allclose(y, [[1.0, 0.5, 1.0], [0.5, 1.0, 0.0]])
    np.testing.assert_allclose(value, [5.5, 2.5])
    assert bound is None
    assert program.decisions() is None
    line = IntegerProgram(A_eq=[[1, 1]], b_eq=[1], integrality=0)
    assert line.solve(np.array([[1.0, 2.0]]))[0].tolist() == [[1.0, 0.0]]


def test_a_time_limit_gives_the_best_found_and_a_bound():
    random = np.random.default_rng(0)
    weights, costs = random.integers(3, 30, (5, 60)), random.uniform(0.5, 1.0, (2, 60))
    program = IntegerProgram(weights, 0.4 * weights.sum(1), maximize=True, time_limit=0.03)
    start = np.zeros((2, 60), dtype=np.int64)
    y, value, bound = program.solve(costs, None, start)
    assert bound is not None
    assert (bound > value).all()
    assert (bound <= costs.sum(1)).all()
    assert (weights @ y.T <= 0.4 * weights.sum(1, keepdims=True) + 1e-6).all()
    decoded = Decisions(program).argmax(torch.from_numpy(costs))
    assert not decoded.exact
    assert bool((decoded.bound > decoded.value).all())


def test_without_a_decision_in_time_the_start_counts():
    program = knapsack(time_limit=1.0)
    program._ask = lambda costs, limits: Answer("limit")
    costs, start = np.array([[1.0, 2.0, 3.0, -1.0, 0.0]]), np.array([[1, 0, 0, 0, 0]])
    y, value, bound = program.solve(costs, None, start)
    assert (y.tolist(), value.tolist(), bound.tolist()) == ([[1, 0, 0, 0, 0]], [1.0], [6.0])
    with pytest.raises(ValueError, match=r"time_limit=1\.0"):
        program.solve(costs)


def test_programs_without_a_best_decision_are_refused():
    program = IntegerProgram(WEIGHTS, [8, 10], [[1, 1, 1, 1, 1]], [2])
    given = np.array([[8.0, 10.0, 2.0], [8.0, -1.0, 7.0]])
    with pytest.raises(ValueError, match=r"row 1 .*infeasible"):
        program.solve(np.ones((2, 5)), given)
    together = IntegerProgram([[1, 1]], [1], [[1, -1]], [0.5])
    with pytest.raises(ValueError, match=r"row 0 .*infeasible"):
        together.solve(np.ones((1, 2)))
    free = IntegerProgram([[1, -1]], [3], bounds=(0, np.inf), maximize=True)
    assert free.solve(np.array([[1.0, -2.0]]))[0].tolist() == [[3, 0]]
    with pytest.raises(ValueError, match="row 1 "):
        free.solve(np.array([[1.0, -2.0], [1.0, 1.0]]))


def test_an_integer_program_is_trained_as_the_same_problem_by_dynamic_programming():
    """Known costs and right-hand sides of every example."""
    weights = [3, 1, 4, 1, 5]
    x = torch.randn(12, 3, generator=rng(0))
    values = x @ torch.randn(3, 5, generator=rng(1)) + 0.5 * torch.randn(12, 5, generator=rng(2))
    capacity = torch.randint(3, 12, (12, 1), generator=rng(3))
    fixed = torch.rand(12, 5, generator=rng(4))
    results = []
    for oracle in (Knapsack(weights, 6), IntegerProgram([weights], [6], maximize=True)):
        structure = Decisions(oracle)
        problems = DecisionProblems(Situations(x, fixed, capacity), values + fixed, structure)
        head = LinearDecisions(3, structure=structure).double()
        certificate = solve(head, problems, lam=1.0, tolerance=Relative(0.01), progress=False)
        assert certificate.exact
        results.append((certificate.primal, evaluate(head, structure, problems).loss))
    assert results[1] == pytest.approx(results[0], rel=0.02)


@pytest.mark.parametrize(
    "oracle",
    [
        IntegerProgram(WEIGHTS, [8, 10], [[1, 1, 1, 1, 1]], [2], maximize=True, rel_gap=0.1),
        IntegerProgram(WEIGHTS, [8, 10], bounds=(-1, [1, 2, 1, 1, 1]), integrality=[1, 0, 1, 0, 1], time_limit=2.0),
        ShortestPath.grid(2, 3),
        Selection(5, 2, at_most=True),
        Knapsack([1, 2, 3], 4),
        Assignment(2, 3),
        SpanningTree([[0, 1], [1, 2], [0, 2]], maximize=True),
    ],
    ids=lambda oracle: type(oracle).__name__,
)
def test_trained_heads_go_through_a_file(oracle, tmp_path):
    pytest.importorskip("safetensors")
    head = LinearDecisions(2, structure=Decisions(oracle), shared=True, bias=False)
    head.weight.data = torch.randn(1, 2, generator=rng(0))
    save_model(tmp_path / "head.safetensors", head)
    loaded = load_head(tmp_path / "head.safetensors").head
    assert loaded.structure.same_as(head.structure)
    assert torch.equal(loaded.weight, head.weight)
    if not isinstance(oracle, IntegerProgram):
        x = torch.randn(4, oracle.num_costs, 2, generator=rng(1))
        assert torch.equal(loaded.structure.decode(loaded(x)), head.structure.decode(head(x)))


@pytest.mark.parametrize(
    "make, argument",
    [
        (lambda: IntegerProgram(), "A_ub and A_eq"),
        (lambda: IntegerProgram(WEIGHTS), "b_ub"),
        (lambda: IntegerProgram(WEIGHTS, [1]), "A_ub"),
        (lambda: IntegerProgram(None, None, 3.0, [4]), "A_eq"),
        (lambda: IntegerProgram(WEIGHTS, [1, np.nan]), "A_ub"),
        (lambda: IntegerProgram(WEIGHTS, [1, 1], integrality=2), "integrality"),
        (lambda: knapsack(rel_gap=-1.0), "rel_gap"),
        (lambda: knapsack(time_limit=0.0), "time_limit"),
        (lambda: knapsack().solve(np.ones((1, 5)), np.array([[1.0, np.nan]])), "given"),
        (lambda: knapsack().solve(np.ones((2, 5)), np.ones((2, 3))), "given"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(make, argument):
    with pytest.raises(ValueError, match=argument):
        make()
