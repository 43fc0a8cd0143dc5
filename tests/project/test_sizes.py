"""Tensors of wrong sizes reach no kernel: kernels check no bounds, and would read and write memory of others."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import wrong_sizes


def test_wrong_sizes_are_answered_or_refused():
    scikit = importlib.util.find_spec("sklearn") is not None
    groups = [group for group in wrong_sizes.GROUPS if scikit or group != "estimators"]
    folder = Path(wrong_sizes.__file__).parent
    path = os.pathsep.join([str(folder), str(folder.parents[1]), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, wrong_sizes.__file__, *groups],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    faults = [line for line in run.stdout.splitlines() if line.startswith("FAULT")]
    # After a signal, the last line says which call it was.
    assert run.returncode == 0, (run.returncode, faults[:20], run.stdout.splitlines()[-1:], run.stderr[-2000:])
