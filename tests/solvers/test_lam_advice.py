"""One warning where lambda is far from any sense, and none in ordinary runs."""

from __future__ import annotations

import warnings

import pytest
from cases.problem_data import Items
from cases.problems import PROBLEMS

from torchssvm import Relative, guess_lam, solve

KINDS = ["chain", "multiclass"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("factor", "limits"),
    [(1e6, {}), (1e-4, {"tolerance": 1e-9, "max_passes": 2}), (1e-30, {"max_passes": 40})],
    ids=["weights of practically zero", "far too small", "below the rounding of masses"],
)
def test_a_lambda_far_from_any_sense_is_said_once(kind, factor, limits):
    problem = PROBLEMS[kind](3)
    guess = guess_lam(problem.head, Items(problem))
    with pytest.warns(UserWarning, match="lam=") as warned:
        solve(problem.head, Items(problem), factor * guess, **limits)
    assert len(warned) == 1
    assert factor < 1e-9 or f"lam={guess:.3g}" in str(warned[0].message)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [10.0, 1.0, 0.1])
def test_a_run_that_reaches_its_gap_with_weights_says_nothing(kind, factor):
    problem = PROBLEMS[kind](3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lam = factor * guess_lam(problem.head, Items(problem))
        solve(problem.head, Items(problem), lam, tolerance=Relative(0.05), max_passes=3000)
