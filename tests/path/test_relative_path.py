"""Paths to a share of the primal."""

import copy
import math

import numpy as np
import pytest
import torch
from cases.problem_data import Items, plainly
from cases.problems import PROBLEMS, multiclass, reference

from torchssvm import Relative, certify, regularization_path
from torchssvm.path import PathRun, RegularizationPath

SHARE = 0.2


def vector(weights: dict[str, torch.Tensor]) -> np.ndarray:
    return torch.cat([w.flatten() for w in weights.values()]).double().numpy()


def follow(problem, **options) -> RegularizationPath:
    options = {"epsilon": Relative(SHARE), "lam_min": 0.3, "solver": plainly()} | options
    return regularization_path(problem.head, Items(problem), **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_every_lambda_is_within_the_share(kind):
    problem, checked = PROBLEMS[kind](3, dtype=torch.float64), []
    truth = reference(problem)

    def verify(run: PathRun) -> None:
        """An exact pass just above the next breakpoint, where the gap is the largest."""
        path = run.path
        lam = max(path.lowest, 0.01 * path.points[-1].lam) * (1 + 1e-9)
        head, dual = copy.deepcopy((problem.head, run.dual))
        dual.rescale(lam / dual.lam)
        certificate = certify(head, dual, problem.everything(2), refresh=False)
        assert certificate.gap == pytest.approx(path.gap(lam), abs=1e-9)
        assert path.largest_gap(lam) == pytest.approx(SHARE * certificate.primal)
        checked.append(certificate.relative_gap)

    path = follow(problem, on_breakpoint=verify)
    assert path.lowest <= 0.3
    assert len(checked) == len(path.points) > 3
    assert max(checked) <= SHARE + 1e-9
    assert checked[:-1] == pytest.approx([SHARE] * (len(checked) - 1))  # each step goes as far as the share allows
    assert all(point.gap <= 0.9 * SHARE * point.primal for point in path.points)
    for lam in torch.logspace(math.log10(0.3), math.log10(5 * path.points[0].lam), 8).tolist():
        truth.lam = lam
        value = truth.primal(vector(path.weights(lam)))
        assert -1e-6 <= value - truth.optimum() <= path.gap(lam) + 1e-6
        assert path.gap(lam) <= SHARE * value + 1e-9  # above the largest breakpoint too


def test_the_end_is_recognised():
    """Three examples in six dimensions can be separated: some weights serve every smaller lambda, to an absolute gap.

    The optimum goes to 0 with lambda, and a share of it is no share of one that is half as large.
    """
    problem = multiclass(5, n=3, features=6)
    assert follow(problem, epsilon=0.1, lam_min=0.0).complete
    assert not follow(multiclass(5, n=3, features=6), lam_min=1e-3).complete


def test_resumed_to_the_bit():
    states = []
    whole = follow(multiclass(4), lam_min=1.0, on_breakpoint=lambda run: states.append(run.state_dict()))
    resumed = follow(multiclass(4), lam_min=1.0, resume=states[2])
    assert [(p.lam, p.gap, p.primal) for p in resumed.points] == [(p.lam, p.gap, p.primal) for p in whole.points]
    for epsilon in (SHARE, Relative(0.1)):
        problem = multiclass(4)
        run = PathRun(problem.head, Items(problem), epsilon=epsilon, lam_min=1.0, solver=plainly())
        with pytest.raises(ValueError, match="epsilon"):
            run.load_state_dict(states[2])
