"""How things are measured: in separate processes, the compared sides in turn, and medians."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

FOLDER = Path(__file__).parents[1]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Settings(NamedTuple):
    """What the command line says: repeats of every measurement, whether small sizes will do, and options of a part."""

    repeats: int = 5
    quick: bool = False
    options: Mapping[str, Any] = {}


def chosen(settings: Settings, defaults: Mapping[str, Any], quick: Mapping[str, Any]) -> dict[str, Any]:
    """A part's options: its defaults, those for small sizes if asked for, and what the command line sets.

    Raises:
        ValueError: An option is set that the part does not have.
    """
    if unknown := settings.options.keys() - defaults.keys():
        raise ValueError(f"no option is called {', '.join(sorted(unknown))}; there are {', '.join(defaults)}")
    return {**defaults, **(quick if settings.quick else {}), **settings.options}


class Limit(NamedTuple):
    """A figure and the most (or, with ``at_least``, the least) that it should be; None was not measured."""

    name: str
    value: float | None
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """``met``, ``missed`` or ``not measured``."""
        if self.value is None or not math.isfinite(self.value):
            return "not measured"
        return "met" if (self.value >= self.limit if self.at_least else self.value <= self.limit) else "missed"

    def __str__(self) -> str:
        sign = "at least" if self.at_least else "at most"
        return f"{self.name}: {number(self.value)}{self.unit}, limit {sign} {self.limit:g}{self.unit}: {self.verdict}"


class Table(NamedTuple):
    """A title, the names of the columns, and rows of texts and numbers; None is an empty cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def markdown(self) -> str:
        """The table, numbers to the right."""
        right = [all(isinstance(row[c], int | float | None) for row in self.rows) for c in range(len(self.columns))]
        lines = [
            "| " + " | ".join(self.columns) + " |",
            "|" + "|".join(" ---: " if r else " --- " for r in right) + "|",
            *("| " + " | ".join(number(cell) for cell in row) + " |" for row in self.rows),
        ]
        return f"**{self.title}**\n\n" + "\n".join(lines) + "\n"


class Summary(NamedTuple):
    """What a part says at the end."""

    tables: Sequence[Table]
    limits: Sequence[Limit] = ()
    notes: Sequence[str] = ()


class Ask(Protocol):
    """Runs the measure of a part in a separate process."""

    def __call__(self, measure: str, *, threads: int | None = 1, **options: Any) -> Any:
        """What the measure returns; ``threads=None`` is as many as torch takes by itself."""
        ...


class MeasureError(RuntimeError):
    """A process that measured ended without a result."""


class Kept:
    """What processes have measured, written down one by one: a run that is cut off goes on where it stopped.

    Args:
        file: One JSON object a line.
        resume: Whether what the file holds is used; otherwise it is begun anew.
    """

    def __init__(self, file: Path, resume: bool) -> None:
        self._file = file
        self._found: dict[str, list[Any]] = {}
        if not resume:
            file.unlink(missing_ok=True)
        elif file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:  # cut off while it was written
                    continue
                self._found.setdefault(entry["asked"], []).append(entry["result"])

    def take(self, asked: str) -> list[Any]:
        """The first answer to this that was not taken yet, alone in a list; an empty list if there is none."""
        answers = self._found.get(asked, [])
        return [answers.pop(0)] if answers else []

    def add(self, asked: str, result: Any) -> None:
        """Write an answer down."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"asked": asked, "result": result}) + "\n")


def asker(part: str, log: Callable[[str], None] = print, timeout: float = 7200.0, *, kept: Kept | None = None) -> Ask:
    """An :class:`Ask` for the measures of a part; what is ``kept`` is not measured again."""

    def ask(measure: str, *, threads: int | None = 1, **options: Any) -> Any:
        asked = json.dumps([part, measure, threads, options])
        if kept is not None and (answer := kept.take(asked)):
            log(f"  {part} {measure} {_short(options)}: kept")
            return answer[0]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])}
        for name in THREADS:
            environment.pop(name, None)
            if threads is not None:
                environment[name] = str(threads)
        command = [sys.executable, "-m", "suite.worker", part, measure, json.dumps(options)]
        start = time.perf_counter()
        try:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise MeasureError(f"{part} {measure} {options} took more than {timeout:g} s") from error
        if done.returncode:
            raise MeasureError(f"{part} {measure} {options} ended with status {done.returncode}")
        log(f"  {part} {measure} {_short(options)}: {time.perf_counter() - start:.1f} s")
        result = json.loads(done.stdout.splitlines()[-1])
        if kept is not None:
            kept.add(asked, result)
        return result

    return ask


def in_turn(
    sides: Sequence[str], repeats: int, measure: Callable[[str, int], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """``measure(side, repeat)`` of all sides, then all again: what else the machine does then falls on all of them."""
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for repeat in range(repeats):
        for side in sides:
            results[side].append(measure(side, repeat))
    return results


class Clock:
    """Wall and CPU seconds of this process, less those spent while it stood."""

    def __init__(self) -> None:
        self._wall = self._cpu = 0.0
        self.go()

    def go(self) -> None:
        """Start or go on."""
        self._since = (time.perf_counter(), time.process_time())

    def stop(self) -> dict[str, float]:
        """Stand still, and read."""
        wall, cpu = self._since
        self._wall += time.perf_counter() - wall
        self._cpu += time.process_time() - cpu
        return {"seconds": self._wall, "cpu_seconds": self._cpu}


def best_of(function: Callable[[], Any], seconds: float = 0.5, least: int = 3) -> float:
    """Seconds of one call, the shortest of as many as fit: nothing makes a call shorter than it is."""
    shortest, end = math.inf, time.perf_counter() + seconds
    calls = 0
    while calls < least or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        shortest = min(shortest, time.perf_counter() - start)
        calls += 1
    return shortest


def interpolate(
    checks: Sequence[dict[str, Any]],
    threshold: float,
    *,
    clock: str = "seconds",
    value: str = "gap",
    start: float = 1.0,
) -> float | None:
    """When ``value`` first came down to the threshold: between two checks its logarithm is taken to be linear.

    Args:
        checks: In order of time.
        threshold: Positive.
        clock: Which entry is the time.
        value: Which entry falls.
        start: The value at time 0, before the first check: the gap of zero weights is 1 for a loss of at most 1.

    Returns:
        The time, or None if no check is there yet.
    """
    before, since = start, 0.0
    for check in checks:
        now, at = float(check[value]), float(check[clock])
        if now <= threshold:
            if before <= threshold:  # already there at time 0
                return since
            if now <= 0.0:
                return at
            return since + (at - since) * math.log(before / threshold) / math.log(before / now)
        if now < before:  # a check that is no better than the ones before it says nothing about the way down
            before, since = now, at
    return None


def median(values: Iterable[float | None]) -> float | None:
    """The median, or None if one is missing or there are none."""
    present = list(values)
    if not present or any(value is None for value in present):
        return None
    return statistics.median(value for value in present if value is not None)


def ratio(value: float | None, base: float | None) -> float | None:
    """A quotient of figures that may be missing."""
    return None if value is None or base is None or base <= 0 else value / base


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y against log x, by least squares."""
    u, v = ([math.log(number) for number in numbers] for numbers in (x, y))
    return statistics.linear_regression(u, v).slope


def number(cell: Any) -> str:
    """A cell of a table: three digits."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _short(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items() if not isinstance(value, list | dict))
