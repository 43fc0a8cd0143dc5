"""OCR-large: seconds to a certified gap, against the yardstick.

Everything that a solver needs for its certificate is inside the clock: sampling, steps and exact passes. Outside are
imports, compilation, and the data's way into the arrays that a solver works on. Every side tells its certified gap now
and then; when it came down to a threshold is interpolated between two checks, the same way for all.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from torchssvm.datasets import OCR
from torchssvm.solvers import Certificate

from .figures import lines
from .measuring import FOLDER, Ask, Clock, Limit, Settings, Summary, Table, in_turn, interpolate, median, ratio
from .training import TorchLoop, as_check, certified, compiled_loop, ocr_problem

TITLE = "Solvers: seconds to a certified gap"
REFERENCE = FOLDER / "ocr_reference.py"
BASE = "yardstick"
COMPILED = ("compiled FW", "compiled pairwise + cache", "compiled corrective + cache")
TORCH: dict[str, dict[str, Any]] = {
    "torch loop, batches of 64": {"batch_size": 64},
}
SIDES = (BASE, *COMPILED, *TORCH)


def problem(quick: bool) -> dict[str, Any]:
    """The task and its two thresholds."""
    if quick:
        return {"size": "small", "lam": 0.01, "gaps": [0.6, 0.3]}
    return {"size": "large", "lam": 0.001, "gaps": [0.05, 0.01]}


def yardstick(size: str, lam: float, gap: float, seed: int, max_seconds: float) -> dict[str, Any]:
    """Run ``ocr_reference.py`` as it is; so many thresholds make it tell every check."""
    thresholds = [gap * (2.0 / gap) ** (k / 500) for k in range(501)]
    command = [sys.executable, str(REFERENCE), "--size", size, "--lam", str(lam), "--seed", str(seed)]
    command += ["--max-seconds", str(max_seconds), "--gaps", *map(str, thresholds)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    told = {line["passes"]: line for line in map(json.loads, lines)}  # several thresholds passed at one check
    n = 626 if size == "small" else 6251
    checks = []
    for passes, line in told.items():
        sampling = passes - passes // 11  # ten passes of steps, then an exact one
        visits = n + (sampling - 1) * 20 * (n // 20)
        checks.append({name: line[name] for name in ("seconds", "cpu_seconds", "gap", "primal", "dual", "passes")})
        checks[-1]["visits"] = visits
    return {"checks": checks}


def compiled(rules: str, size: str, lam: float, gap: float, seed: int, max_seconds: float) -> dict[str, Any]:
    """The compiled loop, with its default schedule of exact passes."""
    words = OCR("train", size)
    data = ocr_problem(words)
    warm = compiled_loop(data, rules, lam)
    for _ in range(2):  # compiles everything
        warm.step(len(words))
        warm.certify()
    setup = Clock()
    loop = compiled_loop(data, rules, lam, seed)
    setup_seconds = setup.stop()["seconds"]
    checks: list[dict[str, float]] = []
    clock = Clock()

    def note(certificate: Certificate) -> None:
        checks.append({**clock.stop(), **as_check(certificate, loop.dual)})
        if checks[-1]["seconds"] > max_seconds:
            raise TimeoutError
        clock.go()

    with contextlib.suppress(TimeoutError):
        loop.solve(gap, on_check=note)
    return {"checks": checks, "setup_seconds": setup_seconds}


def torch_loop(side: str, size: str, lam: float, gap: float, seed: int, max_seconds: float) -> dict[str, Any]:
    """The plain loop of the README."""
    words = OCR("train", size)
    data = ocr_problem(words)

    warm = TorchLoop(words, data, lam, seed, **TORCH[side])
    warm.epoch()
    warm.certify()
    loop = TorchLoop(words, data, lam, seed, **TORCH[side])
    return {"checks": certified(loop, gap, max_seconds)}


MEASURES = {"yardstick": yardstick, "compiled": compiled, "torch_loop": torch_loop}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """All sides in turn, with another seed each time."""
    task = problem(settings.quick)
    first, last = task["gaps"]

    def measure(side: str, repeat: int) -> dict[str, Any]:
        options = {"size": task["size"], "lam": task["lam"], "seed": 1 + repeat, "max_seconds": 900.0}
        if side == BASE:
            return ask("yardstick", gap=last, **options)
        if side in TORCH:
            return ask("torch_loop", side=side, gap=first, **options)
        return ask("compiled", rules=side.removeprefix("compiled "), gap=last, **options)

    return {"problem": task, "runs": in_turn(SIDES, settings.repeats, measure)}


def summarise(results: dict[str, Any]) -> Summary:
    """Seconds at the thresholds, as ratios to the yardstick."""
    first, last = gaps = results["problem"]["gaps"]
    times: dict[tuple[str, float, str], float | None] = {}
    for side, runs in results["runs"].items():
        for gap in gaps:
            for clock in ("seconds", "cpu_seconds"):
                times[side, gap, clock] = median(interpolate(run["checks"], gap, clock=clock) for run in runs)

    def ratios(side: str, gap: float, clock: str = "seconds") -> float | None:
        return ratio(times.get((side, gap, clock)), times.get((BASE, gap, clock)))

    rows = []
    for side, runs in results["runs"].items():
        row: list[Any] = [side]
        for gap in gaps:
            row += [times[side, gap, "seconds"], ratios(side, gap), ratios(side, gap, "cpu_seconds")]
        row.append(median(run["checks"][-1]["visits"] / run["checks"][-1]["seconds"] for run in runs))
        row.append(median(run["checks"][-1]["passes"] for run in runs))
        rows.append([*row, median(run["setup_seconds"] for run in runs) if "setup_seconds" in runs[0] else None])
    columns = [
        f"{name}gap {gap:g}{end}" for gap in gaps for name, end in (("", ", s"), ("ratio, ", ""), ("CPU ratio, ", ""))
    ]
    task = results["problem"]
    limits = []
    for sides, gap, limit in ((COMPILED, first, 0.5), (COMPILED, last, 0.4), (tuple(TORCH), first, 2.0)):
        done = {side: value for side in sides if (value := ratios(side, gap)) is not None}
        best = min(done, key=lambda side: done[side], default=sides[0])
        limits.append(Limit(f"{best} to gap {gap:g}, seconds of the yardstick's", done.get(best), limit, " x"))
    title = f"OCR-{task['size']}, lam = {task['lam']:g}, one thread: seconds to a certified gap"
    return Summary(
        [Table(title, ["solver", *columns, "steps/s", "passes at the end", "packing, apart, s"], rows)],
        limits,
    )


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """The gap over the seconds of the first repeat."""
    curves = {
        side: ([c["seconds"] for c in runs[0]["checks"]], [c["gap"] for c in runs[0]["checks"]])
        for side, runs in results["runs"].items()
    }
    return [lines(folder / "solvers.png", curves, "seconds, exact passes inside", "certified gap", log="both")]
