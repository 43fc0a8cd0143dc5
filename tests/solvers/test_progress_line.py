"""The progress line: paths, grids and solve show it, and an interrupted run leaves a whole line."""

from __future__ import annotations

import sys

from cases.items import Items
from cases.problems import chain
from cases.trainer_cases import FakeStream

from torchssvm import Solver, make_trainer, solve
from torchssvm.solvers import EveryPasses


def terminal(monkeypatch):
    """Called within the test, as pytest captures stderr anew after fixtures."""
    made = FakeStream(terminal=True)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr("torchssvm.solvers.trainer.EVERY", 0.0)
    return made


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
