"""Seconds of ``import torchssvm`` against ``import torch``, in fresh processes.

python benchmarks/import_time.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

LIMIT = 1.5
MODULES = ("torch", "torchssvm")


def seconds(module: str) -> float:
    """How long a fresh process takes to import ``module``; starting Python is not counted."""
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    """Measure both in turn and print the ratio of the medians."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--repeats", type=int, default=7)
    flags.add_argument("--json", type=Path, help="write the figures here")
    args = flags.parse_args()
    if args.repeats < 1:
        flags.error(f"--repeats must be at least 1, not {args.repeats}")

    for module in MODULES:  # once for the disk cache and the byte code
        seconds(module)
    runs: dict[str, list[float]] = {module: [] for module in MODULES}
    for _ in range(args.repeats):
        for module in MODULES:
            runs[module].append(seconds(module))
    medians = {module: statistics.median(several) for module, several in runs.items()}
    ratio = medians["torchssvm"] / medians["torch"]
    for module in MODULES:
        print(f"import {module:10} {medians[module]:.3f} s (from {min(runs[module]):.3f} to {max(runs[module]):.3f})")
    print(f"ratio {ratio:.2f}, limit {LIMIT:g}: {'met' if ratio < LIMIT else 'missed'}")
    if args.json is not None:
        from machine import describe_machine

        content = {"runs": runs, "median_seconds": medians, "ratio": ratio, "limit": LIMIT}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**content, "machine": describe_machine()}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
