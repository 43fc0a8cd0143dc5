"""CPU seconds of a step as the problem grows: examples, length, states, features, one of them at a time.

Both loops run on one thread, where CPU seconds are wall seconds less those that other processes had.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from .figures import grid
from .measuring import Ask, Settings, Summary, Table, exponent
from .synthetic import Chains
from .training import TorchLoop, compiled_loop

TITLE = "Growth: CPU seconds of a step"
BASE = {"n": 2000, "length": 10, "states": 10, "features": 64}
RANGES = {
    "n": (1000, 3000, 10_000, 30_000, 100_000),
    "length": (5, 10, 20, 40, 80, 160),
    "states": (5, 10, 20, 40, 80, 160),
    "features": (16, 64, 256, 1024, 4096),
}
KINDS = ("compiled", "torch")
LAM = 1e-3


def steps(kind: str, axis: str, values: list[int], seconds: float, base: dict[str, int]) -> list[float]:
    """CPU seconds of a step on one example for each value of the axis, in one process; the shortest of several."""
    return [_step(kind, {**base, axis: value}, seconds) for value in values]


def _step(kind: str, shape: dict[str, int], seconds: float) -> float:
    chains = Chains(**shape, batch_size=256)
    if kind == "compiled":
        loop = compiled_loop(chains.problem(), "FW", LAM)
        visits = min(chains.n, 500)

        def run() -> int:
            return loop.step(visits)

    else:
        torch_loop = TorchLoop(chains.dataset(), chains.problem(), LAM)
        batches = iter(_endless(torch_loop))

        def run() -> int:
            for _ in range(4):
                torch_loop.step(next(batches))
            return 4 * 64

    run()
    shortest, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 3 or time.perf_counter() < end:
        start = time.process_time()
        made = run()
        shortest = min(shortest, (time.process_time() - start) / made)
        calls += 1
    return shortest


def _endless(loop: Any) -> Any:
    while True:
        yield from loop.loader


MEASURES = {"steps": steps}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """An axis and a loop in a process; the loops in turn."""
    base = {**BASE, "n": 200} if settings.quick else BASE
    ranges = {"states": (5, 10)} if settings.quick else RANGES
    seconds = 0.05 if settings.quick else 1.0
    runs: dict[str, dict[str, list[Any]]] = {axis: {kind: [] for kind in KINDS} for axis in ranges}
    for _ in range(settings.repeats):
        for axis, values in ranges.items():
            for kind in KINDS:
                options: dict[str, Any] = {
                    "kind": kind,
                    "axis": axis,
                    "values": list(values),
                    "seconds": seconds,
                    "base": base,
                }
                runs[axis][kind].append(ask("steps", **options))
    return {"base": base, "ranges": ranges, "runs": runs}


def summarise(results: dict[str, Any]) -> Summary:
    """Microseconds at the ends, and exponents: over the whole range and over its upper half."""
    rows = []
    for axis, kinds in results["runs"].items():
        values = results["ranges"][axis]
        for kind, several in kinds.items():
            seconds = medians(several)
            half = len(values) // 2
            upper = exponent(values[half:], seconds[half:]) if len(values) - half > 1 else None
            first, last = 1e6 * seconds[0], 1e6 * seconds[-1]
            whole = exponent(values, seconds)
            rows.append([axis, f"{kind} loop", f"{values[0]:,} to {values[-1]:,}", first, last, whole, upper])
    base = ", ".join(f"{name} {value}" for name, value in results["base"].items())
    columns = [
        "varied",
        "",
        "from, to",
        "CPU us a step",
        "CPU us a step at the end",
        "exponent",
        "exponent, upper half",
    ]
    return Summary([Table(f"One thread; the others fixed at {base}", columns, rows)])


def medians(several: list[list[float]]) -> list[float]:
    """Over the repeats, for each value."""
    return [statistics.median(column) for column in zip(*several, strict=True)]


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """CPU seconds of a step against each axis."""
    charts: dict[str, dict[str, Any]] = {}
    for axis, kinds in results["runs"].items():
        values = results["ranges"][axis]
        charts[axis] = {}
        for kind, several in kinds.items():
            seconds = medians(several)
            charts[axis][f"{kind}: {exponent(values, seconds):.2f}"] = (values, seconds)
    return [grid(folder / "growth.png", charts, list(charts), "CPU seconds of a step on one example")]
