"""What the machine at hand is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    """CPU, cores, memory, threads and versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    meminfo = Path("/proc/meminfo")
    kilobytes = int(meminfo.read_text().split()[1]) if meminfo.exists() else None
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "GiB": None if kilobytes is None else round(kilobytes / 2**20, 1),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": importlib.metadata.version("numba") if importlib.util.find_spec("numba") else None,
    }
