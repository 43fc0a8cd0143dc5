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


_HALF = frozenset({torch.float16, torch.bfloat16})
SUMS = frozenset({"contract", "nsz", "reassoc"})
"""What long sums may do of fast-math: products are contracted and terms reordered, NaN and infinities propagate."""


def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``kernel`` at its first call, without fast-math, so that rounding and ties are those of its source."""
    return _lazily(kernel)


def compiled_sums(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``kernel`` at its first call; sums may be reassociated, so that they run in vector registers.

    Results are those of the source up to rounding, and the same at every call on one machine.
    """
    return _lazily(kernel, fastmath=set(SUMS))


def _lazily(kernel: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    cell: list[Callable[..., Any]] = []

    @functools.wraps(kernel)
    def call(*arguments: Any) -> Any:
        if not cell:
            import numba

            cell.append(numba.njit(cache=True, nogil=True, **options)(kernel))
        return cell[0](*arguments)

    return call


def fits_numba(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: on the CPU, with Numba, contiguous; not under ``torch.compile``.

    Numba has no half precision.
    """
    for tensor in tensors:
        if not (tensor.is_cpu and tensor.is_contiguous()) or tensor.dtype in _HALF:
            return False
    return numba_available() and not torch.compiler.is_compiling()


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """The tensors as numpy arrays of the same memory, cut from any graph."""
    return tuple(t.detach().numpy() if t.requires_grad else t.numpy() for t in tensors)
