"""An exact pass over OCR-large on all threads: primal, dual and gap of every block.

The limit is 30 ms, or three times the least time by the roofline where that is more; ceilings are measured in the same
process.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchssvm import certify
from torchssvm.datasets import OCR
from torchssvm.solvers import Certificate

from .ceilings import measure_ceilings
from .measuring import Ask, Limit, Settings, Summary, Table, best_of, in_turn
from .roofline import ocr_shape
from .training import compiled_loop, ocr_problem
from .work import Shape, exact_pass

TITLE = "Exact pass"
COMPILED = ("compiled, mean parts", "compiled, labelings")
SIDES = (*COMPILED, "torch, mean parts", "torch, labelings")


def certificates(size: str, lam: float, epochs: int, quick: bool) -> dict[str, Any]:
    """Seconds of an exact pass in the middle of a run: of the compiled loop, and by ``certify`` on each storage."""
    words = OCR("train", size)
    data = ocr_problem(words)
    loops = {"mean parts": compiled_loop(data, "FW", lam), "labelings": compiled_loop(data, "pairwise + cache", lam)}
    every = sorted({1, torch.get_num_threads()}, reverse=True)
    torch.set_num_threads(1)
    passes: dict[str, Callable[[], Certificate]] = {}
    for storage, loop in loops.items():
        loop.step(epochs * len(words))
        passes[f"compiled, {storage}"] = loop.certify
        passes[f"torch, {storage}"] = functools.partial(certify, loop.head, loop.dual, data.batches)
        gaps = [passes[f"{side}, {storage}"]().gap for side in ("compiled", "torch")]
        if abs(gaps[0] - gaps[1]) > 1e-6:
            raise AssertionError(f"two passes over the same blocks gave the gaps {gaps}")
    seconds: dict[str, dict[int, float]] = {name: {} for name in passes}
    for threads in every:
        torch.set_num_threads(threads)
        for name, one in passes.items():
            seconds[name][threads] = best_of(one, 0.1 if quick else 1.0)
    ceilings = measure_ceilings(quick)
    least = ceilings.seconds(*exact_pass(Shape(*ocr_shape(size))), level="memory", threads=every[0])
    return {"seconds": seconds, "least": least, "threads": every[0]}


MEASURES = {"certificates": certificates}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """The same again and again."""
    options: dict[str, Any] = (
        {"size": "small", "lam": 0.01, "epochs": 2} if settings.quick else {"size": "large", "lam": 0.001, "epochs": 5}
    )
    runs = in_turn(
        ["all"],
        settings.repeats,
        lambda _, repeat: ask("certificates", threads=None, quick=settings.quick, **options),
    )
    return {"runs": runs["all"], "problem": options}


def summarise(results: dict[str, Any]) -> Summary:
    """Milliseconds of a pass on one thread and on all."""
    runs = results["runs"]
    threads = runs[0]["threads"]
    least = statistics.median(run["least"] for run in runs)
    rows: list[list[Any]] = []
    times: dict[str, float] = {}
    for side in SIDES:
        one, every = (statistics.median(run["seconds"][side][t] for run in runs) for t in ("1", str(threads)))
        times[side] = every
        rows.append([side, 1e3 * one, 1e3 * every, every / least])
    limit = max(30.0, 3e3 * least)
    limits = [Limit(f"exact pass, {side}, {threads} threads", 1e3 * times[side], limit, " ms") for side in COMPILED]
    columns = ["", "1 thread, ms", f"{threads} threads, ms", f"over the least time, {1e3 * least:.3g} ms"]
    return Summary([Table(f"OCR-{results['problem']['size']}: one exact pass", columns, rows)], limits)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing: the table says it."""
    return []
