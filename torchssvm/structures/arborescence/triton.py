"""Projective arborescences on a CUDA device: one Triton program runs Eisner's algorithm on one sentence.

All spans of a width are independent: a span for each lane, which loops over its splits. The charts are kept by width
and first token, so that neighbouring lanes read neighbouring numbers, for both halves of a span. They lie in global
memory: a sentence of 40 tokens takes 27 kB, which the first cache holds, and there is no limit on the length. Few warps
a sentence keep the barriers between widths cheap; the batch fills the device.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

_TILE = 128  # most spans of a width at once


def eisner_triton(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """As :func:`torchssvm.structures.arborescence.oracle.eisner`, for float32 or float64."""
    batch, longest, size = scores.shape
    heads, value = scores.new_full((batch, longest), -1, dtype=torch.int64), scores.new_empty(batch)
    if not batch:
        return heads, value
    if lengths is None:
        lengths = torch.full((batch,), longest, device=scores.device)
    charts = scores.new_zeros(batch, 4, size, size)
    splits = torch.empty(batch, 3, size, size, dtype=torch.int32, device=scores.device)
    used = torch.zeros(batch, 4, size, size, dtype=torch.int8, device=scores.device)
    tile = min(_TILE, max(32, triton.next_power_of_2(size)))
    with on_device(scores):
        _decode[(batch,)](
            scores.detach().contiguous(), lengths.contiguous(), charts, splits, used, heads, value, longest,
            single_root=single_root, tile=tile, num_warps=tile // 32, enable_fp_fusion=False,
        )  # fmt: skip
    return heads, value


@triton.jit(do_not_specialize=["longest"])
def _decode(
    scores, lengths, charts, splits, used, heads, value, longest, single_root: tl.constexpr, tile: tl.constexpr
):
    """``charts``, ``splits`` and ``used`` are ``[.., N+1, N+1]`` by the width of a span and its first token."""
    b = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths + b), 1), longest).to(tl.int32)  # keep accesses in bounds
    size = longest + 1
    area = size * size
    scores += b * longest * size
    charts += b * 4 * area
    splits += b * 3 * area
    used += b * 4 * area
    heads += b * longest
    right, left, open_right, open_left = charts, charts + area, charts + 2 * area, charts + 3 * area
    for width in range(1, length + 1):
        spans = length + 1 - width
        for begin in range(0, spans, tile):
            i = begin + tl.arange(0, tile)
            inside = i < spans
            # the root's only child takes all tokens to its left
            fixed = (i == 0) if single_root else (i < 0)
            best, split = _best(right, left, 0, width, width, 1, i, inside, fixed, size)
            to_right = tl.load(scores + (i + width - 1) * size + i, inside, 0.0)
            to_left = tl.load(scores + (i - 1) * size + i + width, inside & (i > 0), 0.0)  # none enters token 0
            here = width * size + i
            # No reader is before the next barrier: the complete spans that are read here are narrower.
            tl.store(open_right + here, best + to_right, inside)
            tl.store(open_left + here, best + to_left, inside)
            tl.store(splits + here, split, inside)
        tl.debug_barrier()  # threads read what other threads wrote
        for begin in range(0, spans, tile):
            i = begin + tl.arange(0, tile)
            inside = i < spans
            here = width * size + i
            # Nor here: the complete spans that are read are narrower than those that are stored.
            best, split = _best(open_right, right, 1, width + 1, width, 0, i, inside, i < 0, size)
            tl.store(right + here, best, inside)
            tl.store(splits + area + here, split, inside)
            best, split = _best(left, open_left, 0, width, width, 0, i, inside, i < 0, size)
            tl.store(left + here, best, inside)
            tl.store(splits + 2 * area + here, split, inside)
        tl.debug_barrier()
    # Behind the last barrier.
    tl.store(value + b, tl.load(right + length * size))
    _follow(splits, used, heads, length, size, area, tile)


@triton.jit
def _best(one, two, low, high, width, gap, i, inside, fixed, size):
    """The highest ``one[k, i] + two[width - gap - k, i + k + gap]``, ``low <= k < high``, and the first such k."""
    best = tl.load(one + low * size + i, inside, 0.0)
    best += tl.load(two + (width - gap - low) * size + i + low + gap, inside, 0.0)
    split = i * 0 + low
    for k in tl.range(low + 1, high, loop_unroll_factor=4):
        total = tl.load(one + k * size + i, inside, 0.0)
        total += tl.load(two + (width - gap - k) * size + i + k + gap, inside, 0.0)
        better = (total > best) & ~fixed
        best, split = tl.where(better, total, best), tl.where(better, k, split)
    return best, split


@triton.jit
def _follow(splits, used, heads, length, size, area, tile: tl.constexpr):
    """Read the heads off the splits, from the widest span down; each used span marks its two halves."""
    right, left, open_right, open_left = used, used + area, used + 2 * area, used + 3 * area
    # Zero until here; read behind the next barrier.
    tl.store(right + length * size, 1)
    tl.debug_barrier()
    for back in range(0, length):
        width = length - back
        spans = back + 1
        for begin in range(0, spans, tile):
            i = begin + tl.arange(0, tile)
            inside = i < spans
            here = width * size + i
            whole = inside & (tl.load(right + here, inside, 0) > 0)
            k = tl.load(splits + area + here, whole, 0)
            # Spans that are read here are complete and of this width, those that are marked are open or narrower.
            tl.store(open_right + k * size + i, 1, whole)
            tl.store(right + (width - k) * size + i + k, 1, whole)
            whole = inside & (tl.load(left + here, inside, 0) > 0)
            k = tl.load(splits + 2 * area + here, whole, 0)
            tl.store(left + k * size + i, 1, whole)
            tl.store(open_left + (width - k) * size + i + k, 1, whole)
        tl.debug_barrier()  # an open span may be as wide as the complete one
        for begin in range(0, spans, tile):
            i = begin + tl.arange(0, tile)
            inside = i < spans
            here = width * size + i
            to_right = inside & (tl.load(open_right + here, inside, 0) > 0)
            to_left = inside & (tl.load(open_left + here, inside, 0) > 0) & (i > 0)
            # Never read here, and each token has one head.
            tl.store(heads + i + width - 1, i.to(tl.int64), to_right)
            tl.store(heads + i - 1, (i + width).to(tl.int64), to_left)
            either = to_right | to_left
            # Open spans are read, complete ones are marked, all with the same number.
            k = tl.load(splits + here, either, 0)
            tl.store(right + k * size + i, 1, either)
            tl.store(left + (width - 1 - k) * size + i + k + 1, 1, either)
        tl.debug_barrier()
