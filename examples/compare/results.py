"""The file of results: written row by row, read again to go on, and summed up in a table."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
import typing
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from compare.race import Row
from torchssvm.core.files import write_text

Key = tuple[str, float, str, int]
"""Of a run: task, lam, solver, seed."""

_COLUMNS = [column.name for column in dataclasses.fields(Row)]
_TYPES = typing.get_type_hints(Row)


def key(row: Row) -> Key:
    """Which run a row is of."""
    return row.task, row.lam, row.solver, row.seed


class Results:
    """``results.csv`` in a folder, one row for every check, and ``settings.json``, which all its runs share.

    Rows are written as they come. Runs that are in the file with their last row are kept, others are dropped: started
    again in the same folder, a comparison goes on where it was interrupted, or adds solvers to those it has.

    Args:
        folder: Where; made if it is not there.
        settings: What all runs of the folder have in common.

    Attributes:
        rows: All rows.

    Raises:
        ValueError: The folder holds results of other settings, or a file that is not one of results.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self._settings = folder / "results.csv", folder / "settings.json"
        self.rows: list[Row] = []
        if self.file.exists():
            held = json.loads(self._settings.read_text(encoding="utf-8")) if self._settings.exists() else None
            if held != settings:
                raise ValueError(f"{self.file} is of other settings, {held}: choose another folder")
            rows = _read(self.file)
            over = {key(row) for row in rows if row.stopped}
            self.rows = [row for row in rows if key(row) in over]
        write_text(self._settings, json.dumps(settings, indent=1) + "\n")
        self.write()

    def has(self, run: Key) -> bool:
        """Whether the run is there, to its end."""
        return any(key(row) == run and row.stopped for row in self.rows)

    def add(self, row: Row) -> None:
        """Write a row at once."""
        self.rows.append(row)
        with self.file.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, _COLUMNS).writerow(dataclasses.asdict(row))

    def finish(self) -> list[Row]:
        """Fill in the suboptimalities of the runs that are over, write the file anew, and return their rows."""
        over = {key(row) for row in self.rows if row.stopped}
        rows = [row for row in self.rows if key(row) in over]
        bounds = best_duals(rows)
        for row in rows:
            row.suboptimality = row.primal - bounds[row.task, row.lam]
        self.write()
        return rows

    def write(self) -> None:
        """All rows, in one piece or not at all."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, _COLUMNS)
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in self.rows)
        write_text(self.file, text.getvalue())


def _read(file: Path) -> list[Row]:
    with file.open(newline="", encoding="utf-8") as opened:
        reader = csv.DictReader(opened)
        if reader.fieldnames != _COLUMNS:
            raise ValueError(f"{file} has the columns {reader.fieldnames}, not those of results: choose another folder")
        try:
            return [Row(**{name: _parse(name, text) for name, text in line.items()}) for line in reader]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file} is damaged: {error}; choose another folder") from error


def _parse(name: str, text: str) -> Any:
    if name == "suboptimality":
        return float(text) if text else None
    return _TYPES[name](text)


def best_duals(rows: Iterable[Row]) -> dict[tuple[str, float], float]:
    """The largest dual of any run, for each task and lambda: a certified lower bound of the optimum."""
    bounds: dict[tuple[str, float], float] = {}
    for row in rows:
        bounds[row.task, row.lam] = max(row.dual, bounds.get((row.task, row.lam), row.dual))
    return bounds


def last_rows(rows: Sequence[Row]) -> dict[tuple[str, float, str], list[Row]]:
    """The last row of every run, by task, lambda and solver."""
    ends: dict[tuple[str, float, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.stopped:
            ends[row.task, row.lam, row.solver].append(row)
    return dict(ends)


def table(rows: Sequence[Row]) -> str:
    """How the runs ended: medians over the seeds, for every task, lambda and solver."""
    lines: list[str] = []
    bounds = best_duals(rows)
    heading = None
    for (task, lam, solver), ends in last_rows(rows).items():
        if (task, lam) != heading:
            heading = (task, lam)
            least = min(row.primal for row in rows if (row.task, row.lam) == heading)
            lines += [
                "",
                f"{task}, lambda {lam:.6g}: the optimum lies between {bounds[heading]:.6f} and {least:.6f}",
                f"{'solver':31} {'runs':>4} {'passes':>8} {'seconds':>8} {'CPU s':>8} {'subopt.':>9} {'gap':>9} "
                f"{'test error':>10}  stopped at",
            ]
            if bounds[heading] - least > 1e-6 * (1.0 + least):
                lines.insert(-1, "NOT BOTH ARE BOUNDS: a lower bound is above a primal. Please report this.")
        names = ("passes", "seconds", "cpu_seconds", "suboptimality", "gap", "test_error")
        passes, seconds, cpu, subopt, gap, error = (
            statistics.median(getattr(row, name) for row in ends) for name in names
        )
        reasons = sorted({row.stopped.split()[0] if row.stopped.startswith("gap") else row.stopped for row in ends})
        lines.append(
            f"{solver:31} {len(ends):4} {passes:8.1f} {seconds:8.2f} {cpu:8.2f} {subopt:9.2e} {gap:9.2e} "
            f"{100 * error:8.2f} %  {', '.join(reasons)}"
        )
    return "\n".join(lines).lstrip("\n")
