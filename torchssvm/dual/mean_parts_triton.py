"""The rows of a ``RowBuffer`` on a CUDA device, one program for each example; their twins are in ``rows.py``.

Import it only where Triton is installed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

_BLOCK = 1024


def read_triton(values: Tensor, start: Tensor, rows: Tensor, index: Tensor, longest: int) -> Tensor:
    """The rows of the examples ``index`` ``[B]`` as ``[B, longest, *trailing]``, zero where they have none.

    ``values`` ``[rows, *trailing]`` are contiguous; ``start`` and ``rows`` ``[n]`` int64 say where an example's rows
    begin, and how many it has.
    """
    copied = values.new_empty(len(index), longest, *values.shape[1:])
    width = values.shape[1:].numel()
    with on_device(values):
        _read[(len(index),)](values, start, rows, index, copied, longest, width, block=_BLOCK, enable_fp_fusion=False)
    return copied


def add_triton(values: Tensor, start: Tensor, rows: Tensor, index: Tensor, change: Tensor, factors: Tensor) -> None:
    """``factors_i change_i``, contiguous, is added in place to the rows of distinct examples ``index``."""
    longest, width = change.shape[1], values.shape[1:].numel()
    with on_device(values):
        _add[(len(index),)](
            values, start, rows, index, change, factors, longest, width, block=_BLOCK, enable_fp_fusion=False
        )


@triton.jit(do_not_specialize=["longest"])
def _read(values, start, rows, index, copied, longest, width, block: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    example = tl.load(index + b)
    size = tl.minimum(tl.load(rows + example), longest) * width
    values += tl.load(start + example) * width
    for begin in range(0, longest * width, block):
        at = begin + tl.arange(0, block)
        # No program reads a result.
        tl.store(copied + b * longest * width + at, tl.load(values + at, at < size, 0.0), at < longest * width)


@triton.jit(do_not_specialize=["longest"])
def _add(values, start, rows, index, change, factors, longest, width, block: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    example = tl.load(index + b)
    size = tl.minimum(tl.load(rows + example), longest) * width
    values += tl.load(start + example) * width
    factor = tl.load(factors + b).to(values.dtype.element_ty)
    for begin in range(0, size, block):
        at = begin + tl.arange(0, block)
        # One thread loads and stores an entry: a block has no fewer of them than there are threads, and the caller's
        # examples are distinct.
        old = tl.load(values + at, at < size, 0.0)
        tl.store(values + at, old + factor * tl.load(change + b * longest * width + at, at < size, 0.0), at < size)
