"""How a batch goes through a kernel of the CPU: contiguous arrays, a range for each thread, and its working memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from torchssvm.core import tuning
from torchssvm.core.jit import COMPILED, arrays
from torchssvm.core.threads import run_in_chunks


def compiles(*scores: Tensor) -> bool:
    """Whether kernels take these scores: all of one dtype, float32 or float64."""
    return scores[0].dtype in COMPILED and len({tensor.dtype for tensor in scores}) == 1


def once(tensor: Tensor) -> Tensor:
    """One row of a tensor that is one row seen B times, ``[1, ...]``; any other as it is."""
    return tensor[:1] if len(tensor) and tensor.stride(0) == 0 else tensor


def launch(
    kernel: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Tensor],
    work: np.ndarray,
    memory: Callable[[], tuple[Any, ...]],
    grain: float | None = None,
) -> list[Any]:
    """Fill ``outputs``: ``kernel(*inputs, begin, end, *memory(), *outputs)`` for ranges of about equal work.

    Args:
        kernel: Handles the examples ``begin`` to ``end - 1``.
        inputs: Tensors, given as contiguous arrays; anything else is given as it is.
        outputs: Contiguous tensors, given as arrays of the same memory.
        work: ``[B]``, of each example.
        memory: What a thread needs of its own, of any content: see :func:`.scratch`.
        grain: Work that is done while another thread wakes up; None is for pairs of states, see ``tuning``.

    Returns:
        What the kernel returned for each range; nothing for an empty batch.
    """
    given = [arrays(x.contiguous())[0] if isinstance(x, Tensor) else x for x in inputs]
    filled = arrays(*outputs)

    def run(begin: int, end: int, _: int) -> Any:
        return kernel(*given, begin, end, *memory(), *filled)

    return run_in_chunks(run, work, grain=tuning.GRAIN if grain is None else grain)
