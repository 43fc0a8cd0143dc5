"""Max-convolution of many lines on a CUDA device: the kernel of max-sum on grids.

A thread compares all places of a line for some targets. That is O(n) for each target, where an envelope takes O(1); but
lower envelopes need quadratic costs and a stack for each line, whose branches part the threads of a warp. Lines of
images have some hundred places: comparing all keeps every thread busy, reads each cost once for several lines, and
gives the bits and ties of the other forms for any costs.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

_TARGETS = 64  # of a program
_LINES = 16  # of a program: they share its costs


def best_along_last_triton(scores: Tensor, costs: Tensor) -> tuple[Tensor, Tensor]:
    """As ``best_along_last``, for tensors of one float dtype."""
    shape, size = scores.shape, scores.shape[-1]
    value, place = scores.new_empty(shape), scores.new_empty(shape, dtype=torch.int64)
    if not scores.numel():
        return value, place
    # Lines along the last axis of the batch often have the same costs: these are not copied for each of them.
    lines = shape[-2] if len(shape) > 1 and (costs.ndim < 3 or costs.shape[-3] == 1) else 1
    groups = shape[:-2] if lines > 1 else shape[:-1]
    tables = (costs.squeeze(-3) if lines > 1 and costs.ndim > 2 else costs).expand(*groups, size, size)
    tables = tables.detach().reshape(-1, size, size).contiguous()
    together = min(_LINES, triton.next_power_of_2(lines))
    grid = len(tables), triton.cdiv(lines, together), triton.cdiv(size, _TARGETS)
    with on_device(scores):
        _convolve[grid](
            scores.detach().contiguous(), tables, value, place, lines, size,
            targets=_TARGETS, together=together, num_warps=max(1, together // 4), enable_fp_fusion=False,
        )  # fmt: skip
    return value, place


@triton.jit(do_not_specialize=["lines", "size"])
def _convolve(scores, costs, value, place, lines, size, targets: tl.constexpr, together: tl.constexpr):
    """``costs`` is ``[G, p, q]``; scores and results are ``[G, lines, n]``."""
    group = tl.program_id(0).to(tl.int64)
    line = tl.program_id(1) * together + tl.arange(0, together)
    p = tl.program_id(2) * targets + tl.arange(0, targets)
    real, inside = line < lines, p < size
    scores += (group * lines + line) * size
    costs += (group * size + p) * size
    best = tl.full([together, targets], -float("inf"), value.dtype.element_ty)
    first = tl.zeros([together, targets], tl.int32)
    for q in tl.range(0, size, loop_unroll_factor=4):
        values = tl.load(scores + q, real, 0.0)[:, None] - tl.load(costs + q, inside, 0.0)[None, :]
        better = values > best  # ties go to the first place
        best, first = tl.where(better, values, best), tl.where(better, q, first)
    at = (group * lines + line)[:, None] * size + p[None, :]
    both = real[:, None] & inside[None, :]
    # No program reads a result.
    tl.store(value + at, best, both)
    tl.store(place + at, first.to(tl.int64), both)
