"""Solvers to certified gaps: their certificates with the CPU seconds at each, tables of medians, and curves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchssvm import CacheOracle, Corrective, DualState, FrankWolfe, Pairwise, Proportional, Uniform
from torchssvm.solvers import Certificate
from torchssvm.steps import MaxOracle

from .figures import grid
from .measuring import Table

Runs = Mapping[str, Sequence[dict[str, Any]]]
"""By the solver's name, what a run gave for every seed; its ``checks`` are certificates in the order of the run."""


class Rules(NamedTuple):
    """How blocks are drawn, which way a step goes, and who answers."""

    order: Callable[[], Any]
    direction: Callable[[], Any]
    oracle: Callable[[], Any]


# Uniform or gap sampling, Frank-Wolfe or pairwise steps, with or without the cache, as in [G16]; and corrective steps.
RULES = {
    f"{order} {direction}{cache}": Rules(make_order, make_direction, make_oracle)
    for order, make_order in (("uniform", Uniform), ("gap", Proportional))
    for direction, make_direction in (("FW", FrankWolfe), ("pairwise", Pairwise), ("corrective", Corrective))
    for cache, make_oracle in (("", MaxOracle), (" + cache", CacheOracle))
    if order == "gap" or direction != "corrective"
}


class Log:
    """Takes the certificates of a run.

    Args:
        dual: What the run changes.
        max_seconds: CPU seconds from now after which the next certificate ends the run.

    Attributes:
        checks: One entry for each certificate.
    """

    def __init__(self, dual: DualState, max_seconds: float) -> None:
        self.dual, self.max_seconds = dual, max_seconds
        self.checks: list[dict[str, float]] = []
        self._start = time.process_time()

    def __call__(self, certificate: Certificate) -> None:
        """Write it down.

        Raises:
            TimeoutError: Time is over.
        """
        seconds = time.process_time() - self._start
        names = ("gap", "primal", "dual", "passes", "oracle_calls")
        more = {"visits": self.dual.moved / self.dual.num_examples, "seconds": seconds}
        self.checks.append({**{name: getattr(certificate, name) for name in names}, **more})
        if seconds > self.max_seconds:
            raise TimeoutError


def medians(title: str, runs: Runs, gaps: Sequence[float]) -> Table:
    """``passes, seconds`` to each gap: medians over the seeds, where all of them got there."""
    rows = []
    for name, several in runs.items():
        cells = []
        for gap in gaps:
            first = [next((check for check in one["checks"] if check["gap"] <= gap), None) for one in several]
            results = [check for check in first if check is not None]
            passes, seconds = (statistics.median([c[key] for c in results] or [0.0]) for key in ("passes", "seconds"))
            cells.append(f"{passes:.1f}, {seconds:.1f} s" if len(results) == len(several) else "")
        rows.append([name, *cells, statistics.median(one["checks"][-1]["gap"] for one in several)])
    columns = ["solver", *(f"gap {gap:g}" for gap in gaps), "gap at the end"]
    return Table(f"{title}: effective passes and CPU seconds to certified gaps", columns, rows)


def curves(file: Path, runs: Runs) -> Path:
    """Certified gaps by passes and by CPU seconds, of the first seed."""
    charts = {
        chart: {
            name: ([check[key] for check in several[0]["checks"]], [max(c["gap"], 1e-12) for c in several[0]["checks"]])
            for name, several in runs.items()
        }
        for chart, key in (("by passes", "passes"), ("by seconds", "seconds"))
    }
    return grid(file, charts, ["effective passes", "CPU seconds"], "certified gap")
