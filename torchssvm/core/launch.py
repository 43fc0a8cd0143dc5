"""How a batch goes through a kernel of the CPU: contiguous arrays, a range for each thread, and its working memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core import tuning
from torchssvm.core.jit import COMPILED, Kernel
from torchssvm.core.threads import run_in_chunks

_KEPT = 2**24  # bytes; larger buffers are not kept
_LINE = 64  # bytes of a cache line


def compiles(*scores: Tensor) -> bool:
    """Whether kernels take these scores: all of one dtype, float32 or float64."""
    dtype = scores[0].dtype
    for tensor in scores:
        if tensor.dtype is not dtype:
            return False
    return dtype in COMPILED


def as_array(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor, contiguous, cut from any graph: of the same memory, if that is possible."""
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().numpy()


def once(tensor: Tensor) -> Tensor:
    """One row of a tensor that is one row seen B times, ``[1, ...]``; any other as it is."""
    return tensor[:1] if tensor.shape[0] > 1 and tensor.stride(0) == 0 else tensor


def by_example(matrices: Tensor) -> Tensor:
    """Matrices ``[K, K]``, ``[B, K, K]`` or ``[B, N, K, K]`` as ``[B or 1, N or 1, K, K]``, a view.

    One that is seen B times is there once.
    """
    if matrices.ndim == 2:
        return matrices.expand(1, 1, -1, -1)
    matrices = once(matrices)
    return matrices.unsqueeze(1) if matrices.ndim == 3 else matrices


def launch(
    kernel: Kernel,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    work: np.ndarray,
    memory: Sequence[tuple[int, torch.dtype] | Callable[[], Any]],
    each: float = 1.0,
) -> list[Any]:
    """Fill ``outputs``: ``kernel(*inputs, begin, end, *memory, *outputs)`` for ranges of about equal work.

    Args:
        kernel: Handles the examples ``begin`` to ``end - 1``.
        inputs: Tensors, given as contiguous arrays; anything else is given as it is. Whole numbers say where kernels
            read and write: they lie in memory of their own, which no other thread changes.
        outputs: Contiguous tensors, given as arrays of the same memory; or such arrays.
        work: ``[B]``, of each example, in any unit.
        memory: What a thread needs of its own, of any content: numbers and dtype of an array, one for each dtype, or a
            function that returns the thread's workspace.
        each: To how many pairs of states a unit of work compares: see ``tuning.GRAIN``.

    Returns:
        What the kernel returned for each range; nothing for an empty batch.
    """
    given = [as_array(x) if isinstance(x, Tensor) else x for x in inputs]
    filled = [as_array(x) if isinstance(x, Tensor) else x for x in outputs]
    call = kernel.dispatcher

    def run(begin: int, end: int, _: int) -> Any:
        rooms = [need() if callable(need) else scratch(*need) for need in memory]
        return call(*given, begin, end, *rooms, *filled)

    return run_in_chunks(run, work, grain=tuning.GRAIN / each)


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
