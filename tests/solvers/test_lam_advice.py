"""One warning where lambda is far from any sense, and none in ordinary runs."""

from __future__ import annotations

import warnings

import pytest
from cases.constant_column import Rows
from cases.problem_data import Items
from cases.problems import PROBLEMS

from torchssvm import LinearMulticlass, Relative, guess_lam, solve

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


@pytest.mark.parametrize("value", [1.0, 60.0])
def test_a_large_constant_column_is_named_before_the_run(value):
    rows = Rows(value)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        solve(LinearMulticlass(6, 3), rows, 1 / len(rows), max_passes=400, tolerance=Relative(0.5))
    said = [str(each.message) for each in warned if "column 5 is about 60" in str(each.message)]
    assert len(said) == (value > 1.0)


@pytest.mark.parametrize("value", [1.0, 60.0])
def test_estimators_name_a_large_constant_column(value):
    sklearn = pytest.importorskip("sklearn.exceptions")
    from torchssvm.estimators import MultinomialSVC

    rows = Rows(value)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        MultinomialSVC(C=1.0, tol=0.5, max_passes=400).fit(rows.x.numpy(), rows.y.numpy())
    said = [each for each in warned if "divide it by 60" in str(each.message)]
    assert len(said) == (value > 1.0)
    assert all(issubclass(each.category, sklearn.ConvergenceWarning) for each in said)
