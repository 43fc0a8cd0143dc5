"""The line that follows a run: paths, grids and solve show it, and an interrupted run leaves a whole line."""

from __future__ import annotations

import math
import sys

import pytest
from cases.items import Items
from cases.problems import chain
from cases.trainer_cases import FakeStream

from torchssvm import Solver, choose_lam, make_trainer, regularization_path, solve
from torchssvm.datasets import hold_out
from torchssvm.solvers import Certificate, EveryPasses
from torchssvm.solvers.gdmm import FactorwiseCertificate
from torchssvm.solvers.trainer import ProgressLine


def terminal(monkeypatch):
    """Called within the test, as pytest captures stderr anew after fixtures."""
    made = FakeStream(terminal=True)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr("torchssvm.solvers.trainer.EVERY", 0.0)
    return made


def proof(gap: float, passes: float = 3.0) -> Certificate:
    counts = {"oracle_calls": 30, "passes": passes, "num_examples": 10}
    return Certificate(primal=0.2 + gap, dual=0.2, gap=gap, exact=True, drift=0.0, seconds=0.0, lam=0.1, **counts)


def test_estimates_are_marked_and_a_shorter_text_hides_the_longer_one(monkeypatch):
    stream = terminal(monkeypatch)
    line = ProgressLine()
    line.update(1.25, math.inf, lambda: 0.1)
    line.certified(proof(0.05))
    line.update(4.0, 0.0123456, lambda: 0.21)
    line.update(5.0, 0.25, lambda: 0.001)
    line.certified(proof(0.01, 123456.0))
    line.close()
    first, *texts = stream.getvalue().split("\r")
    assert first == ""
    assert [text.strip() for text in texts] == [
        "dual 0.1  passes 1.25  0 s",
        "gap 0.05 (20 %)  dual 0.2  passes 3  0 s",
        "gap ~0.0123 (5.6 %)  dual 0.21  passes 4  0 s",
        "gap ~0.25 (100 %)  dual 0.001  passes 5  0 s",
        "gap 0.01 (4.8 %)  dual 0.2  passes 1.235e+05  0 s",
        "gap 0.01 (4.8 %)  dual 0.2  passes 1.235e+05  0 s",
    ]
    line.update(5.0, 0.01)
    line.certified(proof(0.5))
    line.clear()
    assert stream.getvalue().endswith("\r")
    assert stream.getvalue().rpartition("\r")[0].endswith(" ")


@pytest.mark.parametrize("exact", [True, False])
def test_a_line_names_the_problem_of_every_gap(monkeypatch, exact):
    stream = terminal(monkeypatch)
    common = {**vars(proof(0.05)), "exact": exact}
    more = {"relaxed_primal": 0.26, "relaxed_dual": 0.25, "relaxed_gap": 0.01, "violation": 0.1, "worst_violation": 0.2}
    line = ProgressLine()
    for has_relaxation in (True, False):
        line.certified(FactorwiseCertificate(**common, **more, has_relaxation=has_relaxation))
    line.certified(Certificate(**{**common, "exact": False, "relaxed": True}))
    line.update(4.0, 0.01)
    sign = "" if exact else "<"
    assert [text.strip() for text in stream.getvalue().split("\r")[1:]] == [
        f"gap {sign}0.05 (20 %)  relaxed gap 0.01 (3.8 %)  dual 0.2  passes 3  0 s",
        f"gap {sign}0.05 (20 %)  dual 0.2  passes 3  0 s",
        "relaxed gap 0.05 (20 %)  relaxed dual 0.2  passes 3  0 s",
        "relaxed gap ~0.01 (4.8 %)  relaxed dual 0.2  passes 4  0 s",
    ]


def test_updates_are_rare_and_compute_no_dual_between_them(monkeypatch):
    stream = terminal(monkeypatch)
    monkeypatch.setattr("torchssvm.solvers.trainer.EVERY", 1000.0)
    line = ProgressLine()
    line.update(1.0, 0.1, lambda: pytest.fail("the dual was computed"))
    assert stream.getvalue() == ""
    line.certified(proof(0.1))  # exact figures are shown at once
    assert "gap 0.1 " in stream.getvalue()


def test_a_log_has_the_last_line_of_a_short_run(monkeypatch):
    made = FakeStream(terminal=False)
    monkeypatch.setattr(sys, "stderr", made)
    problem = chain(1, n=8, lam=0.3)
    trainer = make_trainer(problem.head, Items(problem), 0.3, progress=False)
    found = trainer.solve(0.05)
    (line,) = made.getvalue().splitlines()
    assert line.startswith(f"torchssvm: gap {found.gap:.3g} ")
    shown = ProgressLine()
    shown._every = 0.0
    shown.certified(proof(0.05))
    shown.close()
    assert made.getvalue().count("gap 0.05 ") == 1  # not twice


def test_a_closed_stream_does_not_end_a_run(monkeypatch):
    stream = terminal(monkeypatch)
    line = ProgressLine()
    stream.close()
    line.certified(proof(0.1))
    line.close()


def test_an_interrupt_leaves_a_whole_line(monkeypatch):
    stream = terminal(monkeypatch)
    problem = chain(1, n=8, lam=0.3)
    trainer = make_trainer(problem.head, Items(problem), 0.3)

    def interrupt(certificate):
        if certificate.passes > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.solve(1e-12, max_passes=50, on_check=interrupt)
    assert stream.getvalue().endswith("s\n")


def test_solve_shows_the_line_or_is_silent(monkeypatch):
    stream = terminal(monkeypatch)
    found = []
    for progress in (True, False):
        problem = chain(1, n=8, lam=0.3)
        before = len(stream.getvalue())
        found.append(solve(problem.head, Items(problem), 0.3, progress=progress))
        text = stream.getvalue()[before:]
        assert ("\r" in text) == bool(text) == progress
    assert found[0].gap == found[1].gap


def test_the_schedule_of_the_options_holds_for_compiled_trainers():
    problem = chain(1, n=8, lam=0.3)
    trainer = make_trainer(problem.head, Items(problem), 0.3, solver=Solver(schedule=EveryPasses(3)))
    seen = []
    trainer.solve(1e-6, max_passes=20, on_check=seen.append)
    assert seen[0].passes < 6
    assert len(seen) >= 4


def test_paths_and_choices_name_their_lambda(monkeypatch):
    stream = terminal(monkeypatch)
    problem = chain(1, n=8, lam=0.3)
    data = Items(problem)
    for progress in (True, False):
        regularization_path(problem.head, data, epsilon=0.2, lam_min=0.3, progress=progress)
        choose_lam(problem.head, *hold_out(data, 0.25), [0.7, 0.2], tolerance=0.05, progress=progress)
        if progress:
            text = stream.getvalue()
    assert text == stream.getvalue()  # silent when asked
    assert "lam 0.7  gap" in text
    assert "lam 0.2  gap" in text
    assert text.count("\n") == 2
    assert all(len(shown) < 80 for shown in text.split("\r"))
