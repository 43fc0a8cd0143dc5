"""Memory: the peak of OCR-large training over what it must hold, and a million chains within 8 GiB.

What a process takes before it has any data (Python, torch, compiled kernels) is the base; the kernel's high-water mark
(``VmHWM``, Linux) is set back there and read at the end.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchssvm import Batch, in_order
from torchssvm.core.memory import available_memory
from torchssvm.datasets import OCR, PaddedDataset

from .measuring import Ask, Clock, Limit, Settings, Summary, Table, exponent
from .synthetic import Chains
from .training import Problem, TorchLoop, compiled_loop

TITLE = "Memory"
MIB, GIB = 2.0**20, 2.0**30
SHAPE = {"length": 5, "states": 10, "features": 20}
LAM = 1e-3
NUMBERS = (100_000, 300_000, 1_000_000)
ENOUGH = 10 * GIB  # what must be free before a million chains are tried


def resident(field: str) -> float:
    """``VmRSS`` or ``VmHWM`` of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: memory is measured on Linux only")


def set_back() -> float:
    """Begin a new high-water mark; returns what is resident now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def begin(
    kind: str, words: Callable[[], PaddedDataset], problem: Problem
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A pass of steps and an exact pass of a loop; only the torch loop needs the words themselves."""
    if kind == "compiled":
        loop = compiled_loop(problem, "FW", LAM)
        return lambda: loop.step(problem.num_examples), loop.certify
    torch_loop = TorchLoop(words(), problem, LAM)
    return torch_loop.epoch, torch_loop.certify


class Again:
    """The batches of an exact pass, collated each time: nothing is kept beside the dataset."""

    def __init__(self, words: PaddedDataset) -> None:
        self.words = words

    def __iter__(self) -> Iterator[Batch]:
        return iter(in_order(self.words))


def warm(kind: str) -> None:
    """Compile and load everything on a few chains."""
    passes(kind, Chains(64, **SHAPE))


def passes(kind: str, chains: Chains) -> dict[str, float]:
    """Seconds of setting up, of the second pass of steps, and of an exact pass."""
    results, clock = {}, Clock()
    run, exact = begin(kind, chains.dataset, chains.problem())
    results["setup_seconds"] = clock.stop()["seconds"]
    run()
    for name, one in (("seconds", run), ("exact_seconds", exact)):
        clock = Clock()
        one()
        read = clock.stop()
        results |= {name: read["seconds"], f"cpu_{name}": read["cpu_seconds"]}
    return results


def synthetic(kind: str, n: int) -> dict[str, Any]:
    """Peak over the base, and seconds of a pass, for n chains."""
    warm(kind)
    free = available_memory(torch.device("cpu"))
    if n >= NUMBERS[-1] and free < ENOUGH:
        return {"skipped": f"only {free / GIB:.1f} GiB are free"}
    base = set_back()
    results = passes(kind, Chains(n, **SHAPE))
    return {**results, "peak": resident("VmHWM") - base, "base": base, "must": must(n, **SHAPE)}


def ocr(kind: str, size: Any, epochs: int) -> dict[str, Any]:
    """Peak over the base of training on OCR."""
    warm(kind)
    base = set_back()
    words = OCR("train", size)
    run, exact = begin(kind, lambda: words, Problem(Again(words), len(words), 128, 26))
    for _ in range(epochs):
        run()
    exact()
    peak = resident("VmHWM") - base
    assert words.lengths is not None
    tokens, n = int(words.lengths.sum()), len(words)
    return {"peak": peak, "base": base, "must": 4.0 * (tokens * (128 + 26) + n * 26**2) + 8.0 * tokens}


def must(n: int, length: int, states: int, features: int) -> float:
    """Bytes of the data and of one number for each potential."""
    return 4.0 * n * (length * features + length * states + states**2) + 8.0 * n * length


MEASURES = {"synthetic": synthetic, "ocr": ocr}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """One process for each; three repeats at most, and one of the slow torch loop."""
    size, epochs = ("small", 2) if settings.quick else ("large", 5)
    numbers = (2000, 6000) if settings.quick else NUMBERS
    results: dict[str, Any] = {"ocr": {}, "synthetic": {}, "size": size}
    for kind in ("compiled", "torch"):
        options: dict[str, Any] = {"kind": kind, "size": size, "epochs": epochs}
        results["ocr"][kind] = [ask("ocr", **options) for _ in range(min(settings.repeats, 3))]
    for kind in ("compiled",) if settings.quick else ("compiled", "torch"):
        for n in numbers:
            repeats = min(settings.repeats, 3) if kind == "compiled" else 1
            results["synthetic"].setdefault(kind, {})[str(n)] = [
                ask("synthetic", kind=kind, n=n) for _ in range(repeats)
            ]
    return results


def summarise(results: dict[str, Any]) -> Summary:
    """Peaks against the memory that is needed, seconds of a pass, and how they grow."""
    ocr_rows = []
    for kind, several in results["ocr"].items():
        peak, base = (statistics.median(run[name] for run in several) for name in ("peak", "base"))
        needed = several[0]["must"]
        ocr_rows.append([f"{kind} loop", peak / MIB, needed / MIB, peak / needed, base / MIB])
    rows, limits, notes = [], [], []
    for kind, runs in results["synthetic"].items():
        sizes, seconds = [], []
        for n, several in runs.items():
            if "skipped" in several[0]:
                notes.append(f"{kind} loop, n = {n}: {several[0]['skipped']}")
                continue
            names = ("peak", "setup_seconds", "seconds", "exact_seconds")
            peak, *times = (statistics.median(run[name] for run in several) for name in names)
            rows.append(
                [f"{kind} loop", int(n), peak / GIB, peak / several[0]["must"], *times, 1e6 * times[1] / int(n)]
            )
            sizes.append(float(n))
            seconds.append(statistics.median(run["cpu_seconds"] for run in several))
            if int(n) == NUMBERS[-1]:
                total = peak + several[0]["base"]
                limits.append(Limit(f"{kind} loop, a million chains, base included", total / GIB, 8.0, " GiB"))
        if len(sizes) > 1:
            notes.append(f"{kind} loop: CPU seconds of a pass grow as n^{exponent(sizes, seconds):.2f}")
    shape = ", ".join(f"{name} {value}" for name, value in SHAPE.items())
    return Summary(
        [
            Table(
                f"OCR-{results['size']}: peak over the base; data and one float32 for each potential",
                ["", "peak, MiB", "data and potentials, MiB", "ratio", "base, MiB"],
                ocr_rows,
            ),
            Table(
                f"n synthetic chains ({shape}, float32): peak over the base, and seconds",
                [
                    "",
                    "n",
                    "peak, GiB",
                    "over data and potentials",
                    "setting up",
                    "a pass",
                    "an exact pass",
                    "us a step",
                ],
                rows,
            ),
        ],
        limits,
        notes,
    )


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing: the table says it."""
    return []
