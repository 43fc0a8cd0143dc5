"""Regularisation paths of graph cuts whose edge weights are at least 0, against a QP solver."""

import copy

import numpy as np
import pytest
import torch
from cases.bounded import optimum_within
from cases.graphs import GraphProblem
from cases.problem_data import Items, plainly
from cases.problems import flat, rng

from torchssvm import Corrective, Labelings, MeanParts, Weights, certify
from torchssvm.path import Certified, Heuristic, PathRun, regularization_path

pytest.importorskip("maxflow")

LOWER = np.array([-np.inf, -np.inf, 0.0, 0.0])
NONE = np.full(4, np.inf)


def options(lower=0.0, storage=MeanParts, direction=None, **others):
    solver = plainly(bounds={"pairwise": (lower, None)}, storage=storage(), direction=direction)
    return {"solver": solver, **others}


def primal_above_optimum(problem, weights, lam):
    truth = problem.reference()
    truth.lam = lam
    best, _ = optimum_within(truth, LOWER, NONE)
    return truth.primal(flat(weights.values()).numpy()) - best


@pytest.mark.slow
@pytest.mark.parametrize("storage", [MeanParts, Weights, Labelings])
def test_every_lambda_is_within_epsilon_of_the_optimum(storage):
    problem, epsilon, random = GraphProblem(2), 0.2, rng(0)
    checked = []

    def verify(run):
        """An exact pass at a random lambda down to the next breakpoint, with the dual rescaled to it."""
        path = run.path
        lam = path.points[-1].lam * max(path.lowest / path.points[-1].lam, 1e-2) ** float(
            torch.rand((), generator=random)
        )
        head, dual = copy.deepcopy((problem.head, run.dual))
        dual.rescale(lam / dual.lam)
        assert certify(head, dual, problem.everything(), refresh=False).gap == pytest.approx(path.gap(lam), abs=1e-9)
        checked.append(lam)

    direction = Corrective() if storage is Labelings else None
    path = regularization_path(
        problem.head,
        Items(problem),
        epsilon=epsilon,
        lam_min=0.3,
        on_breakpoint=verify,
        **options(storage=storage, direction=direction),
    )
    assert path.lowest <= 0.3
    assert len(checked) == len(path.points) > 5
    at_bound = 0
    for lam in torch.logspace(np.log10(0.3), np.log10(2 * path.points[0].lam), 8).tolist():
        weights = path.weights(lam)
        assert bool((weights["pairwise"] >= 0).all())
        at_bound += int((weights["pairwise"] == 0).sum())
        assert path.gap(lam) <= epsilon + 1e-12
        assert -1e-6 <= primal_above_optimum(problem, weights, lam) <= path.gap(lam) + 1e-6
    assert at_bound > 0


@pytest.mark.parametrize("rule", [Certified(), Heuristic()])
def test_resumed_to_the_bit(rule, tmp_path):
    def start(**others):
        problem = GraphProblem(3, dtype=torch.float32)
        common = options(storage=Labelings, rule=rule, epsilon=0.2, lam_min=0.5)
        return problem, regularization_path(problem.head, Items(problem), **common, **others)

    def keep(run):
        if len(run.path.points) == 3:
            torch.save(run.state_dict(), tmp_path / "run.pt")

    problem, whole = start(on_breakpoint=keep)
    assert len(whole.points) > 4
    other, resumed = start(resume=torch.load(tmp_path / "run.pt", weights_only=True))
    assert resumed.lowest == whole.lowest
    for point, again in zip(whole.points, resumed.points, strict=True):
        assert (point.lam, point.gap, point.passes) == (again.lam, again.gap, again.passes)
    assert torch.equal(flat(problem.head.parameters()), flat(other.head.parameters()))


def test_other_bounds_are_not_resumed():
    problem, states = GraphProblem(3), []
    common = options(epsilon=0.2, lam_min=1.0)
    regularization_path(problem.head, Items(problem), on_breakpoint=lambda r: states.append(r.state_dict()), **common)
    other = GraphProblem(3)
    run = PathRun(other.head, Items(other), epsilon=0.2, lam_min=1.0)
    with pytest.raises(ValueError, match="bounds"):
        run.load_state_dict(states[1])
    for lower in (0.5, -1.0):
        with pytest.raises(ValueError, match="bounds"):
            PathRun(other.head, Items(other), epsilon=0.1, lam_min=0.1, **options(lower))
