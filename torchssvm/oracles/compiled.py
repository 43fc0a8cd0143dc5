"""Numba and Triton, where they are installed: the same results to the bit, sooner."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


@functools.cache
def numba_available() -> bool:
    """Whether the extra ``torchssvm[numba]`` is installed; it is imported only when a kernel is first used."""
    return importlib.util.find_spec("numba") is not None


@functools.cache
def triton_available() -> bool:
    """Whether Triton is installed, as it is with the CUDA builds of torch."""
    return importlib.util.find_spec("triton") is not None


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """A context in which Triton starts its kernels on the device of ``tensor``; nothing in its interpreter on a CPU."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``kernel`` at its first call, without fast-math, so that rounding and ties are those of its source."""
    cell: list[Callable[..., Any]] = []

    @functools.wraps(kernel)
    def call(*arguments: Any) -> Any:
        if not cell:
            import numba

            cell.append(numba.njit(cache=True, nogil=True)(kernel))
        return cell[0](*arguments)

    return call
