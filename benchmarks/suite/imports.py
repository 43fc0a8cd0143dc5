"""Seconds of ``import torchssvm`` against ``import torch``, in fresh processes."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from .measuring import Ask, Limit, Settings, Summary, Table, in_turn

TITLE = "Importing the library"
LIMIT = 1.5
MODULES = ("torch", "torchssvm")


def load(module: str) -> dict[str, float]:
    """How long another fresh process takes to import ``module``; starting Python is not counted."""
    import subprocess
    import sys

    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return {"seconds": float(done.stdout), "process_seconds": time.perf_counter() - start}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Both in turn; the first, for the disk cache and the byte code, is left out."""
    runs = in_turn(MODULES, settings.repeats + 1, lambda module, _: ask("load", module=module))
    return {"runs": {module: several[1:] for module, several in runs.items()}}


def summarise(results: dict[str, Any]) -> Summary:
    """The ratio of the medians."""
    times = {module: [one["seconds"] for one in several] for module, several in results["runs"].items()}
    rows = [
        [f"import {module}", statistics.median(result), min(result), max(result)] for module, result in times.items()
    ]
    ratio = statistics.median(times["torchssvm"]) / statistics.median(times["torch"])
    table = Table("Seconds, in fresh processes", ["", "median", "least", "most"], rows)
    return Summary([table], [Limit("import torchssvm over import torch", ratio, LIMIT)])


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"load": load}
