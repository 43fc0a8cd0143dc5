"""Numba for long sums, where it is installed: their order is free, so that they run in vector registers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchssvm.oracles.compiled import numba_available


def compiled_sums(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``kernel`` at its first call; sums may be reassociated, and nothing else of fast-math is allowed.

    Results are those of the source up to rounding, and the same at every call on one machine. NaN and infinities
    propagate as always.
    """
    cell: list[Callable[..., Any]] = []

    @functools.wraps(kernel)
    def call(*arguments: Any) -> Any:
        if not cell:
            import numba

            cell.append(numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})(kernel))
        return cell[0](*arguments)

    return call


def fits_numba(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: on the CPU, with Numba, and contiguous; not under ``torch.compile``."""
    for tensor in tensors:
        if not (tensor.is_cpu and tensor.is_contiguous()):
            return False
    return numba_available() and not torch.compiler.is_compiling()


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """The tensors as numpy arrays of the same memory, cut from any graph."""
    return tuple(t.detach().numpy() if t.requires_grad else t.numpy() for t in tensors)
