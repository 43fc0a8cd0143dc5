"""Inner products of the examples of a batch on a CUDA device; their twin is ``potentials.inner``.

Import it only where Triton is installed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device


def inner_triton(pairs: Sequence[tuple[Tensor, Tensor]], n: int = 1) -> Tensor:
    """``sum <a_i, b_i> / n`` over pairs, and the sum of the absolute values of its terms: ``[2, B]`` float64.

    Each example is one program, for two pairs at a time. All tensors are contiguous, and b may be ``[1, ...]``.
    """
    first = pairs[0][0]
    total = torch.empty(2, len(first), dtype=torch.float64, device=first.device)
    given = [(a, b, size := a.shape[1:].numel(), 0 if len(b) < len(a) else size) for a, b in pairs]
    given += [(*given[-1][:2], 0, 0)] * (len(given) % 2)
    with on_device(first):
        for place in range(0, len(given), 2):
            last = place + 2 == len(given)
            _inner[(len(first),)](
                *given[place], *given[place + 1], total, place, n if last else 1, block=1024, enable_fp_fusion=False
            )
    return total


@triton.jit(do_not_specialize=["size", "by_example", "more", "by_other", "place", "n"])
def _inner(a, b, size, by_example, c, d, more, by_other, total, place, n, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    first, absolute = _sums(a + i * size, b + i * by_example, size, block)
    other, also = _sums(c + i * more, d + i * by_other, more, block)
    sums = total + i  # of this program alone
    sizes = sums + tl.num_programs(0)
    before, size_before = tl.load(sums, place > 0, 0.0), tl.load(sizes, place > 0, 0.0)
    tl.debug_barrier()  # all warps have loaded
    tl.store(sums, (before + first + other) / tl.cast(n, tl.float64))
    tl.store(sizes, size_before + absolute + also)


@triton.jit
def _sums(a, b, size, block: tl.constexpr):
    total = tl.zeros([block], tl.float64)
    absolute = tl.zeros([block], tl.float64)
    for begin in range(0, size, block):
        at = begin + tl.arange(0, block)
        term = tl.load(a + at, at < size, 0.0).to(tl.float64) * tl.load(b + at, at < size, 0.0).to(tl.float64)
        total += term
        absolute += tl.abs(term)
    return tl.sum(total, 0), tl.sum(absolute, 0)
