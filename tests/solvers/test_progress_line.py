"""The progress line: paths, grids and solve show it, and an interrupted run leaves a whole line."""

from __future__ import annotations

import sys

import pytest
from cases.items import Items
from cases.problems import chain
from cases.trainer_cases import FakeStream

from torchssvm import Solver, choose_lam, make_trainer, regularization_path, solve
from torchssvm.datasets import hold_out
from torchssvm.solvers import Certificate, EveryPasses
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


def test_updates_are_rare_and_compute_no_dual_between_them(monkeypatch):
    stream = terminal(monkeypatch)
    monkeypatch.setattr("torchssvm.solvers.trainer.EVERY", 1000.0)
    line = ProgressLine()
    line.update(1.0, 0.1, lambda: pytest.fail("the dual was computed"))
    assert stream.getvalue() == ""
    line.certified(proof(0.1))  # exact figures are shown at once
    assert stream.getvalue()


def test_a_log_has_the_last_line_of_a_short_run(monkeypatch):
    made = FakeStream(terminal=False)
    monkeypatch.setattr(sys, "stderr", made)
    problem = chain(1, n=8, lam=0.3)
    trainer = make_trainer(problem.head, Items(problem), 0.3, progress=False)
    trainer.solve(0.05)
    assert len(made.getvalue().splitlines()) == 1
    shown = ProgressLine()
    shown._every = 0.0
    shown.certified(proof(0.05))
    shown.close()
    assert len(made.getvalue().splitlines()) == 2  # not three


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
    certificates = []
    for progress in (True, False):
        problem = chain(1, n=8, lam=0.3)
        before = len(stream.getvalue())
        certificates.append(solve(problem.head, Items(problem), 0.3, progress=progress))
        text = stream.getvalue()[before:]
        assert ("\r" in text) == bool(text) == progress
    assert certificates[0].gap == certificates[1].gap


def test_the_schedule_of_the_options_holds_for_compiled_trainers():
    problem = chain(1, n=8, lam=0.3)
    trainer = make_trainer(problem.head, Items(problem), 0.3, solver=Solver(schedule=EveryPasses(3)))
    seen = []
    trainer.solve(1e-6, max_passes=20, on_check=seen.append)
    assert seen[0].passes < 6
    assert len(seen) >= 4


def test_paths_and_choices_show_one_line_each(monkeypatch):
    stream = terminal(monkeypatch)
    problem = chain(1, n=8, lam=0.3)
    data = Items(problem)
    for progress in (True, False):
        regularization_path(problem.head, data, epsilon=0.2, lam_min=0.3, progress=progress)
        choose_lam(problem.head, *hold_out(data, 0.25), [0.7, 0.2], tolerance=0.05, progress=progress)
        if progress:
            text = stream.getvalue()
    assert text == stream.getvalue()  # silent when asked
    assert text.count("\n") == 2
