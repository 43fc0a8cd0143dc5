"""Working memory of compiled kernels: one buffer for each thread and dtype, kept from call to call."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_KEPT = 2**24  # bytes; a larger buffer is for one call
_LINE = 64  # bytes of a cache line

_local = threading.local()


def scratch(count: int, dtype: Any) -> np.ndarray:
    """``[at least count]`` numbers of any value, from the start of a cache line; this thread's next call reuses it."""
    kept = _local.__dict__.get(dtype)
    if kept is not None and len(kept) >= count:
        return kept
    size = np.dtype(dtype).itemsize
    # Half as much again, so that batches that grow slowly do not allocate each time.
    buffer = np.empty(count + count // 2 + _LINE // size, dtype)
    buffer = buffer[-buffer.ctypes.data % _LINE // size :]
    if buffer.nbytes <= _KEPT:
        _local.__dict__[dtype] = buffer
    return buffer
