"""Biases of chains on a CUDA device; their twins are ``add_everywhere`` and ``sum_everywhere`` in ``oracle.py``.

Import it only where Triton is installed. The caller has checked the ``lengths`` ``[B]`` int64. No program reads what
another one of the same launch writes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

_BLOCK = 1024  # numbers of a table that a program takes
_STATES = 64  # states that it adds up


def add_everywhere_triton(emission: Tensor, lengths: Tensor, bias: Tensor, first: Tensor, end: Tensor) -> None:
    """Add, in place, ``bias`` to all rows ``[K]`` of ``emission`` ``[B, N, K]``, and two more to the first and last."""
    batch, longest, states = emission.shape
    pieces = triton.cdiv(longest * states, _BLOCK)
    with on_device(emission):
        _add_everywhere[(batch * pieces,)](
            emission, lengths, bias, first, end, pieces, longest, states, block=_BLOCK, enable_fp_fusion=False
        )


def sum_everywhere_triton(v: Tensor, lengths: Tensor) -> Tensor:
    """The sum over all rows of ``v`` ``[B, N, K]``, the first and the last one: ``[3, B, K]``."""
    batch, longest, states = v.shape
    sums = v.new_empty(3, batch, states)
    pieces = triton.cdiv(states, _STATES)
    with on_device(v):
        _sum_everywhere[(batch * pieces,)](
            v, lengths, sums, pieces, longest, states, batch * states, block=_STATES, enable_fp_fusion=False
        )
    return sums


@triton.jit(do_not_specialize=["pieces", "longest", "states"])
def _add_everywhere(emission, lengths, bias, first, end, pieces, longest, states, block: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    chain = program // pieces
    at = (program % pieces) * block + tl.arange(0, block)
    inside, row, state = at < longest * states, at // states, at % states
    emission += chain * longest * states + at
    extra = tl.load(bias + state, inside, 0.0) + tl.load(first + state, inside & (row == 0), 0.0)
    old = tl.load(emission, inside) + tl.load(end + state, inside & (row == tl.load(lengths + chain) - 1), 0.0)
    tl.store(emission, old + extra, inside)  # one thread loads and stores a number


@triton.jit(do_not_specialize=["pieces", "longest", "states", "size"])
def _sum_everywhere(v, lengths, sums, pieces, longest, states, size, block: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    chain = program // pieces
    state = (program % pieces) * block + tl.arange(0, block)
    inside = state < states
    v += chain * longest * states + state
    total = tl.zeros([block], tl.float64)  # long chains add up many numbers
    for row in range(0, longest):
        total += tl.load(v + row * states, inside, 0.0).to(tl.float64)
    sums += chain * states + state
    # No program reads a result.
    tl.store(sums, total, inside)
    tl.store(sums + size, tl.load(v, inside, 0.0), inside)
    tl.store(sums + 2 * size, tl.load(v + (tl.load(lengths + chain) - 1) * states, inside, 0.0), inside)
