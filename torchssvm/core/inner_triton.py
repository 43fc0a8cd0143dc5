"""Inner products of the examples of a batch on a CUDA device; their twin is ``potentials.inner``.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.jit import on_device


def inner_triton(a: Tensor, b: Tensor) -> Tensor:
    """``<a_i, b_i>``, ``[B]`` float64, each by one program; both are contiguous, and b may be ``[1, ...]``."""
    total = torch.empty(len(a), dtype=torch.float64, device=a.device)
    size = a.shape[1:].numel()
    with on_device(a):
        _inner[(len(a),)](a, b, total, size, 0 if len(b) < len(a) else size, block=1024, enable_fp_fusion=False)
    return total


@triton.jit(do_not_specialize=["size", "by_example"])
def _inner(a, b, total, size, by_example, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    found = tl.zeros([block], tl.float64)
    for begin in range(0, size, block):
        at = begin + tl.arange(0, block)
        one = tl.load(a + i * size + at, at < size, 0.0).to(tl.float64)
        found += one * tl.load(b + i * by_example + at, at < size, 0.0).to(tl.float64)
    tl.store(total + i, tl.sum(found, 0))
