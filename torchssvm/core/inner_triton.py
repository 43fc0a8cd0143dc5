"""Inner products of the examples of a batch on a CUDA device; their twin is ``potentials.inner``.

Import it only where Triton is installed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.jit import on_device


def inner_triton(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """``sum <a_i, b_i>`` over pairs, and the sum of the absolute values of its terms: ``[2, B]`` float64.

    Each example of a pair is one program. All tensors are contiguous, and b may be ``[1, ...]``.
    """
    first = pairs[0][0]
    total = torch.empty(2, len(first), dtype=torch.float64, device=first.device)
    with on_device(first):
        for place, (a, b) in enumerate(pairs):
            size = a.shape[1:].numel()
            by_example = 0 if len(b) < len(a) else size
            _inner[(len(a),)](a, b, total, size, by_example, place, block=1024, enable_fp_fusion=False)
    return total


@triton.jit(do_not_specialize=["size", "by_example", "place"])
def _inner(a, b, total, size, by_example, place, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    found = tl.zeros([block], tl.float64)
    absolute = tl.zeros([block], tl.float64)
    for begin in range(0, size, block):
        at = begin + tl.arange(0, block)
        term = tl.load(a + i * size + at, at < size, 0.0).to(tl.float64)
        term *= tl.load(b + i * by_example + at, at < size, 0.0).to(tl.float64)
        found += term
        absolute += tl.abs(term)
    own = total + i  # no other program of this launch has it
    sizes = own + tl.num_programs(0)
    before, size_before = tl.load(own, place > 0, 0.0), tl.load(sizes, place > 0, 0.0)
    tl.debug_barrier()  # all warps have loaded
    tl.store(own, before + tl.sum(found, 0))
    tl.store(sizes, size_before + tl.sum(absolute, 0))
