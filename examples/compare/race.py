"""Letting one solver run, with checks on the way that its clock does not see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from compare.runs import Run, Settings
from compare.tasks import Task

_WARM_UP = 32  # examples; enough to compile every kernel and to fill the caches of the process


class Limits(NamedTuple):
    """When a run ends, and how often it is checked.

    Attributes:
        gap: At this gap of its own.
        passes: At so many effective passes.
        seconds: At so many seconds of training.
        checks: Checks per tenfold of passes; also per tenfold of epochs (visited blocks over n), which go on where a
            cache saves oracle calls. The first one is after one of either.
    """

    gap: float
    passes: float
    seconds: float
    checks: int


@dataclass
class Row:
    """One check of one run.

    Attributes:
        task: Its name.
        lam: Lambda.
        solver: Its name.
        seed: Of the run.
        check: 1, 2, ...
        passes: Effective passes: oracle calls over n, the solver's own exact passes among them, checks not.
        epochs: Blocks visited over n.
        seconds: Wall-clock seconds of training, see ``Stopwatch``.
        cpu_seconds: The same in seconds of processor time.
        checking_seconds: Seconds that the checks of this run took so far, in none of the two above.
        primal: Objective of the weights that the run would return now.
        dual: The best lower bound that this run has found so far.
        gap: ``primal - dual``.
        test_error: Share of wrong tokens of the test examples.
        stopped: Why the run ended, in its last row; empty before.
        suboptimality: ``primal`` less the best dual of all runs of the task and lambda; None until these are over.
    """

    task: str
    lam: float
    solver: str
    seed: int
    check: int
    passes: float
    epochs: float
    seconds: float
    cpu_seconds: float
    checking_seconds: float
    primal: float
    dual: float
    gap: float
    test_error: float
    stopped: str = ""
    suboptimality: float | None = None


class Stopwatch:
    """Wall-clock and processor seconds since it was made, less those inside ``stopped()``."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self.checking = 0.0

    def seconds(self) -> float:
        """Wall-clock seconds."""
        return time.perf_counter() - self._wall

    def cpu_seconds(self) -> float:
        """Processor seconds."""
        return time.process_time() - self._cpu

    @contextmanager
    def stopped(self) -> Iterator[tuple[float, float]]:
        """What passes within does not count; gives the seconds and processor seconds at its beginning."""
        wall, cpu = self.seconds(), self.cpu_seconds()
        try:
            yield wall, cpu
        finally:
            took = self.seconds() - wall
            self.checking += took
            self._wall += took
            self._cpu += self.cpu_seconds() - cpu


def race(
    solver: str, start: Callable[[Task, Settings], Run], task: Task, settings: Settings, limits: Limits
) -> Iterator[Row]:
    """One run, and a row for every check; what the caller does with a row is not timed either.

    The clock runs from the call of ``start`` (the head, the dual, a copy of the features for a compiled loop) through
    every step, with its drawing of examples and fetching of batches, and through exact passes that belong to the
    solver. It stands during checks. Loading the data and compiling kernels (see ``warm_up``) came before.

    Args:
        solver: Its name, for the rows.
        start: Makes the run.
        task: What to train.
        settings: Lambda, batch size, seed.
        limits: When to stop.

    Yields:
        Rows; only the last one says why the run stopped.
    """
    watch = Stopwatch()
    run = start(task, settings)
    factor = 10.0 ** (1.0 / limits.checks)
    epochs, best, number = 0.0, 0.0, 0
    at_passes = at_epochs = 1.0

    def check(over: str) -> Row:
        nonlocal best, number
        bounds = run.bounds()
        best, number = max(best, bounds.dual), number + 1
        with run.offered():
            error = task.error(run.head)
        gap = bounds.primal - best
        stopped = f"gap {gap:.3g}" if gap <= limits.gap else over
        measured = (run.passes, epochs, wall, cpu, watch.checking, bounds.primal, best, gap, error)
        return Row(task.name, settings.lam, solver, settings.seed, number, *measured, stopped)

    with closing(run.steps()) as steps:
        for visited in steps:
            epochs += visited / run.n
            over = ""
            if run.passes >= limits.passes:
                over = f"{limits.passes:g} passes"
            elif watch.seconds() >= limits.seconds:
                over = f"{limits.seconds:g} seconds"
            if not over and run.passes < at_passes and epochs < at_epochs:
                continue
            with watch.stopped() as (wall, cpu):
                row = check(over)
                yield row
            if row.stopped:
                return
            while at_passes <= run.passes:
                at_passes *= factor
            while at_epochs <= epochs:
                at_epochs *= factor
    with watch.stopped() as (wall, cpu):
        yield check("all block gaps are zero")


def warm_up(solver: str, start: Callable[[Task, Settings], Run], task: Task, settings: Settings) -> None:
    """Three passes over a few examples: kernels are compiled here, outside every clock."""
    few = task.first(min(_WARM_UP, len(task.train)))
    for _ in race(solver, start, few, settings, Limits(gap=1e-9, passes=3, seconds=60.0, checks=10)):
        pass
