"""What the machine at hand is."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from torchssvm.info import processor, version


def describe_machine() -> dict[str, Any]:
    """CPU, cores, memory, threads and versions."""
    meminfo = Path("/proc/meminfo")
    kilobytes = int(meminfo.read_text().split()[1]) if meminfo.exists() else None
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "GiB": None if kilobytes is None else round(kilobytes / 2**20, 1),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": version("numba"),
    }
