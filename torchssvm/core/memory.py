"""Free memory of a device."""

from __future__ import annotations

import os

import torch


def available_memory(device: torch.device) -> int:
    """Free bytes on ``device``; on the CPU, the available physical memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # the system cannot tell: no limit
        return 2**63
