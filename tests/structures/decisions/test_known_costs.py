"""Runs whose losses may be negative, as known costs are counted with them; and solvers that are short of time."""

import copy

import numpy as np
import pytest
import torch
from cases.problems import assert_same, rng

from torchssvm import (
    BCFW,
    BlockGap,
    Corrective,
    Decisions,
    DualState,
    Labelings,
    LinearDecisions,
    MeanParts,
    Relative,
    SlackRescaling,
    Solver,
    Weights,
    certify,
    in_order,
    solve,
)
from torchssvm.solvers import WeightedAverage
from torchssvm.structures.decisions import (
    DecisionOracle,
    DecisionProblems,
    IntegerProgram,
    Knapsack,
    ShortestPath,
    Situations,
)


def roads(n=20):
    random = rng(0)
    structure, x = Decisions(ShortestPath.grid(3, 3)), torch.randn(n, 3, generator=random)
    costs, known = (3.0 * torch.rand(n, 12, generator=random) for _ in range(2))
    return DecisionProblems(Situations(x, fixed=known), costs, structure)


@pytest.mark.parametrize("storage", [MeanParts, Weights, Labelings, lambda: Labelings(1)], ids=range(4))
def test_a_run_with_known_costs_loads_its_own_checkpoint(storage):
    problems = roads()
    head = LinearDecisions(3, structure=problems.structure)
    dual = DualState.for_head(head, len(problems), 0.03, storage=storage())
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    average = WeightedAverage(head.parameters()).following(dual)
    for k in range(30):
        batch = problems.__getitems__([k % 20, (3 * k + 1) % 20])
        optim.zero_grad()
        loss(head(batch.x), batch.y, batch.index).backward()
        optim.step()
    assert float(dual.loss.min()) < 0.0
    state = copy.deepcopy([optim.state_dict(), average.state_dict()])
    optim.load_state_dict(state[0])
    average.load_state_dict(state[1])
    assert_same(optim.state_dict(), state[0])
    assert certify(head, dual, in_order(problems)).exact


def test_slack_rescaling_refuses_known_costs():
    problems = roads()
    head = LinearDecisions(3, structure=problems.structure)
    slack = SlackRescaling(head.structure)
    loss, batch = BlockGap(DualState.for_head(head, 20, 0.1, structure=slack)), problems.__getitems__([0, 1, 2])
    with pytest.raises(ValueError, match="potentials"):
        loss(head(batch.x), batch.y, batch.index)
    with pytest.raises(ValueError, match="potentials"):
        solve(head, problems, 0.1, structure=slack, progress=False)


class Late(DecisionOracle):
    """Returns a bound but no decision, as a solver whose time is over."""

    def __init__(self, oracle):
        self.oracle, self.num_costs, self.maximize = oracle, oracle.num_costs, oracle.maximize

    def solve(self, costs, given=None, start=None):
        if start is None:
            raise ValueError("the time was over before the first decision")
        value = (costs * start).sum(1)
        return start, value, self.oracle.solve(costs)[1]


@pytest.mark.parametrize(
    "solver", [Solver(), Solver(storage=Labelings()), Solver(direction=Corrective())], ids=range(3)
)
def test_a_solver_that_finds_nothing_in_time_trains(solver):
    plain, late = (Decisions(kind(Knapsack([2, 3, 1, 2], 4))) for kind in (lambda oracle: oracle, Late))
    problems = DecisionProblems(torch.randn(5, 2, generator=rng(1)), torch.rand(5, 4, generator=rng(2)), plain)
    problems.structure = late
    head = LinearDecisions(2, structure=late)
    with pytest.warns(UserWarning, match="max_passes=3"):
        certificate = solve(head, problems, 1.0, solver=solver, tolerance=Relative(0.5), max_passes=3, progress=False)
    assert not certificate.exact
    assert certificate.dual == 0.0  # no corner but the targets
    assert late._largest_gain(head(problems.x), late.check_target(problems.target, head(problems.x))).shape == (5,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("storage", [MeanParts, Labelings])
def test_continuous_decisions_keep_their_digits(storage, dtype):
    """Decisions that lie close to each other differ by what float32 would round away."""
    random = np.random.RandomState(0)
    program = IntegerProgram(random.rand(1, 3) + 0.1, [0.7], integrality=0, maximize=True)
    structure, x = Decisions(program), torch.randn(6, 2, generator=rng(0), dtype=dtype)
    problems = DecisionProblems(x, random.rand(6, 3), structure)
    head = LinearDecisions(2, structure=structure).to(dtype)
    assert structure.parts(problems.target).dtype == torch.float64
    solver = Solver(storage=storage())
    certificate = solve(head, problems, 0.1, solver=solver, tolerance=Relative(0.1), progress=False)
    assert certificate.relative_gap <= 0.1
    target, potentials = structure.check_target(problems.target, head(x)), head(x).detach()
    close = problems.target.y + 1e-9
    for result in (
        structure._difference(close, target, potentials),
        structure.mean_difference(close.unsqueeze(1), torch.ones(6, 1), target, potentials),
    ):
        torch.testing.assert_close(result["potentials"], torch.full((6, 3), 2e-9, dtype=dtype), rtol=1e-5, atol=0.0)
