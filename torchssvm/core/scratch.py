"""Working memory of compiled kernels: one buffer for each thread and dtype, reused between calls."""

from __future__ import annotations

import threading

import numpy as np
import torch

_KEPT = 2**24  # bytes; larger buffers are not kept
_LINE = 64  # bytes of a cache line


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_dtype: dict[torch.dtype, np.ndarray] = {}


_kept = _Buffers()


def scratch(count: int, dtype: torch.dtype) -> np.ndarray:
    """At least ``count`` uninitialised numbers, aligned to a cache line; this thread's next call reuses the buffer."""
    kept = _kept.by_dtype.get(dtype)
    if kept is not None and len(kept) >= count:
        return kept
    # 50% more than asked for, so that slowly growing batches do not allocate each time.
    buffer = torch.empty(count + count // 2 + _LINE // dtype.itemsize, dtype=dtype).numpy()
    buffer = buffer[-buffer.ctypes.data % _LINE // dtype.itemsize :]
    if buffer.nbytes <= _KEPT:
        _kept.by_dtype[dtype] = buffer
    return buffer
