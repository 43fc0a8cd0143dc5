"""A batch through a kernel of the CPU: which tensors kernels take, ranges of examples, memory of each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from torchssvm.compiler.jit import Kernel
from torchssvm.core.threads import run_in_chunks

COMPILED = (torch.float32, torch.float64)
"""The dtypes that kernels of scores take."""

# Measured for float32 with AVX2, 32 KB of L1 and 512 KB of L2 cache for each core.
LANES = 8  # rows are padded to a multiple, so vector loops have no scalar remainder
CACHE = 2**18  # most bytes of a matrix that stays in the L2 cache as a whole
PAIR = 2  # examples that share such a matrix
BLOCK = 2**16  # bytes of a block of a larger matrix; the prefetcher follows no more than some eight long rows
GROUP = 16  # examples that share each block
GROUP_MEMORY = 2**26  # most bytes of a group's working memory
GRAIN = 400_000  # pairs of states, 20 to 60 microseconds: the time to wake up another thread


def plan(batch: int, states: int, itemsize: int, shared: bool, rows_each: int) -> tuple[int, int]:
    """How many examples read their matrices together, and how many rows of a matrix at a time.

    ``shared`` says whether all examples have the same ``[K, K]`` matrices; an example works on ``rows_each`` rows of
    scores.
    """
    row = states * itemsize
    height = states if states * row <= CACHE else max(1, BLOCK // row)
    if not shared:
        return 1, height
    group = PAIR if height == states else min(GROUP, GROUP_MEMORY // (rows_each * row))
    return max(1, min(group, batch)), height


_KEPT = 2**24  # bytes; larger buffers are not kept
_LINE = 64  # bytes of a cache line


def fits_numba(*tensors: Tensor) -> bool:
    """Whether Numba's kernels take these tensors: on the CPU, contiguous, not fake, of half precision or traced."""
    for tensor in tensors:
        if not (tensor.is_cpu and tensor.is_contiguous()) or tensor.dtype in (torch.float16, torch.bfloat16):
            return False
    return not (torch.compiler.is_compiling() or isinstance(tensors[0], FakeTensor))


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """The tensors as numpy arrays of the same memory, cut from any graph.

    Whole numbers that kernels index with were copied when they were checked, lengths in :class:`.Potentials` and
    targets in ``check_target``, so that no other thread changes them.
    """
    return tuple([t.detach().numpy() if t.requires_grad else t.numpy() for t in tensors])  # a generator is slower


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
    """``[K, K]``, ``[B, K, K]``, ``[B, N, K, K]`` as ``[B or 1, N or 1, K, K]``: one seen B times is there once."""
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

    Returns what the kernel returned for each range; nothing for an empty batch.

    Args:
        kernel: Handles the examples ``begin`` to ``end - 1``.
        inputs: Tensors, given as contiguous arrays; anything else is given as it is. No other thread may change whole
            numbers, with which kernels index.
        outputs: Contiguous tensors, given as arrays of the same memory; or such arrays.
        work: ``[B]``, of each example, in any unit, of which one compares to ``each`` pairs of states: see ``GRAIN``.
        memory: Uninitialised workspace of each thread: numbers and dtype of an array, one for each dtype, or a function
            that returns the workspace.
    """
    given = [as_array(x) if isinstance(x, Tensor) else x for x in inputs]
    filled = [as_array(x) if isinstance(x, Tensor) else x for x in outputs]
    call = kernel.dispatcher

    def run(begin: int, end: int, _: int) -> Any:
        rooms = [need() if callable(need) else scratch(*need) for need in memory]
        return call(*given, begin, end, *rooms, *filled)

    return run_in_chunks(run, work, grain=GRAIN / each)


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
