"""One warning where lambda is far from any sense, and none in ordinary runs."""

from __future__ import annotations

import warnings

import pytest
from cases.items import Items
from cases.problems import PROBLEMS

from torchssvm import Relative, guess_lam, solve

KINDS = ["chain", "multiclass"]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_practically_zero_are_said_once_with_a_lambda_to_try(kind):
    problem = PROBLEMS[kind](3)
    guess = guess_lam(problem.head, Items(problem))
    with pytest.warns(UserWarning, match="leaves the weights practically zero") as found:
        certificate = solve(problem.head, Items(problem), 1e6 * guess)
    assert len(found) == 1
    assert f"Try lam={guess:.3g}" in str(found[0].message)
    assert certificate.relative_gap <= 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_lambda_far_too_small_is_said_once_with_one_to_try(kind):
    problem = PROBLEMS[kind](3)
    guess = guess_lam(problem.head, Items(problem))
    with pytest.warns(UserWarning, match="the run ended at max_passes=2") as found:
        solve(problem.head, Items(problem), guess / 1e4, tolerance=1e-9, max_passes=2)
    assert len(found) == 1
    assert f"10,000 times below guess_lam(head, dataset): try lam={guess:.3g}" in str(found[0].message)
    with pytest.warns(UserWarning, match="Give a larger max_passes"):
        solve(problem.head, Items(problem), guess / 10, tolerance=1e-9, max_passes=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lambda_below_the_rounding_of_masses_is_said_once(kind):
    problem = PROBLEMS[kind](3)
    with pytest.warns(UserWarning, match="lam=1e-30 is") as found:
        solve(problem.head, Items(problem), 1e-30, max_passes=40)
    assert len(found) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [10.0, 1.0, 0.1])
def test_a_run_that_reaches_its_gap_with_weights_says_nothing(kind, factor):
    problem = PROBLEMS[kind](3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lam = factor * guess_lam(problem.head, Items(problem))
        solve(problem.head, Items(problem), lam, tolerance=Relative(0.05), max_passes=3000)
