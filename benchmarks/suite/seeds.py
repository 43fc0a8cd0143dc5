"""Solvers under several seeds: a file for every run, and the medians of what they took to certified gaps."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torchssvm.core.files import write_text

Runs = dict[str, list[dict[str, Any]]]
"""By the solver's name, what a run gave for every seed; its ``checks`` are certificates in the order of the run."""


def run_missing(
    folder: Path,
    task: str,
    solvers: Iterable[str],
    seeds: int,
    run: Callable[[str, int], dict[str, Any]],
    *,
    measure: str = "gap",
    digits: int = 0,
) -> Runs:
    """Read what is there, and run what is not; a line is printed for each.

    Args:
        folder: Of the files, ``TASK SOLVER SEED.json``.
        task: What is solved.
        solvers: Their names.
        seeds: Runs of each.
        run: Of a solver's name and a seed.
        measure: The gap that is printed, a key of the checks.
        digits: Of passes.
    """
    results: Runs = {}
    for seed in range(seeds):
        for name in solvers:
            file = folder / f"{task} {name} {seed}.json"
            if not file.exists():
                write_text(file, json.dumps(run(name, seed), indent=1))
            results.setdefault(name, []).append(json.loads(file.read_text(encoding="utf-8")))
            last = results[name][-1]["checks"][-1]
            print(
                f"{file.stem}: gap {last[measure]:.5f}, {last['passes']:.{digits}f} passes, {last['seconds']:.1f} s",
                flush=True,
            )
    return results


def medians(results: Runs, gaps: Sequence[float], beside: str, *, measure: str = "gap", digits: int = 0) -> str:
    """A table of ``passes (beside) seconds``: medians over the seeds, where all of them got there.

    Args:
        results: What :func:`run_missing` gave.
        gaps: The columns.
        beside: A key of the checks.
        measure: The key of what is to be within a gap.
        digits: Of passes.
    """
    lines = ["| solver | " + " | ".join(f"gap {gap:g}" for gap in gaps) + " |", "| --- |" + " ---: |" * len(gaps)]
    for name, runs in results.items():
        cells = []
        for gap in gaps:
            first = (next((check for check in one["checks"] if check[measure] <= gap), None) for one in runs)
            found = [check for check in first if check is not None]
            if len(found) < len(runs):
                cells.append("")
                continue
            passes, other, seconds = (
                statistics.median(check[key] for check in found) for key in ("passes", beside, "seconds")
            )
            cells.append(f"{passes:.{digits}f} ({other:.0f}) {seconds:.1f} s")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
