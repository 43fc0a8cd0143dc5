"""The best segments on a CUDA device: one Triton program decodes one sequence, back-pointers included.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device
from torchssvm.structures.segments.plain import LARGE

_TILE = 1024  # scores of durations by label that are looked at together


def semi_markov_triton(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As :func:`torchssvm.structures.segments.oracle.semi_markov`, for tensors of one float dtype."""
    batch, longest, wide = emission.shape
    rows, states = segment.shape[1:]
    codes = emission.new_empty(batch, longest, dtype=torch.int64)
    value = emission.new_empty(batch)
    if not batch:
        return codes, value
    table = segment.detach()
    table = table if table.stride(-1) == 1 and table.stride(-2) == states else table.contiguous()
    starts = emission.new_empty(batch, longest, states, dtype=torch.float64)
    back = emission.new_empty(batch, 2, longest, states, dtype=torch.int32)
    width = max(triton.next_power_of_2(states), 2)
    tile = min(max(_TILE // width, 2), max(triton.next_power_of_2(rows - states), 2))
    known = codes if target is None else target.contiguous()  # not looked at where there is none
    with on_device(emission):
        _decode[(batch,)](
            emission.detach().contiguous(), table, least, lengths.contiguous(), known, starts, back, codes, value,
            longest, states, rows - states, table.stride(0), boundary=wide > states, spans=target is not None,
            large=LARGE, width=width, tile=tile,
            num_warps=max(1, width * max(width, tile) // 512), enable_fp_fusion=False,
        )  # fmt: skip
    return codes, value


@triton.jit(do_not_specialize=["longest", "states", "most", "by_example"])
def _decode(
    emission, table, least, lengths, target, starts, back, codes, value, longest, states, most, by_example,
    boundary: tl.constexpr, spans: tl.constexpr, large: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """``starts`` ``[B, N, K]``: the best score before a start, less the sums of frames before it.

    ``back`` ``[B, 2, N, K]``: the duration of the best segment that ends at each frame, and the label before one that
    begins there.
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths + b), 1), longest)  # keep memory accesses in bounds
    wide = 2 * states if boundary else states
    emission += b * longest * wide
    table += b * by_example
    target += b * longest
    starts += b * longest * states
    durations = back + 2 * b * longest * states
    before = durations + tl.cast(longest, tl.int64) * states
    codes += b * longest
    label = tl.arange(0, width)
    inside = label < states
    both = inside[:, None] & inside[None, :]
    pairs = tl.load(table + label[:, None] * states + label[None, :], both, 0.0).to(tl.float64)
    shortest = tl.load(least + label, inside, 1)
    prefix = tl.zeros([width], tl.float64)
    best = tl.where(inside, 0.0, -float("inf")).to(tl.float64)
    missed = tl.zeros([], tl.float64)
    begun = tl.zeros([], tl.int64)
    for t in range(0, length):
        reached, previous = tl.max(best[:, None] + pairs, 0, return_indices=True, return_indices_tie_break_left=True)
        opened = tl.where(t > 0, reached, 0.0) - prefix
        if boundary:
            opened += tl.load(emission + t * wide + states + label, inside, 0.0)
        frame = tl.load(emission + t * wide + label, inside, 0.0)
        # A NaN score may give any index: keep it within the labels.
        tl.store(before + t * states + label, tl.minimum(previous, states - 1), inside)
        tl.store(starts + t * states + label, opened, inside)
        tl.debug_barrier()  # threads read the starts that other threads wrote
        alone = tl.abs(frame) > large
        prefix = tl.where(alone, prefix, prefix + frame)
        if tl.max(alone.to(tl.int32), 0) > 0:  # it is added to the starts of all that covers this frame
            for first in range(0, tl.minimum(most, t + 1), tile):
                start = t - first - tl.arange(0, tile)
                covers = ((start > t - most) & (start >= 0))[:, None] & (alone & inside)[None, :]
                place = starts + start[:, None] * states + label[None, :]
                tl.store(place, tl.load(place, covers, 0.0) + frame[None, :], covers)
            tl.debug_barrier()
        true_duration, true_label = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
        if spans:
            begun = tl.where(tl.load(target + t) >= states, t, begun)
            if t + 1 == length or tl.load(target + t + 1) >= states:
                true_duration, true_label = t - begun + 1, tl.load(target + begun) - states
                missed += 1.0
        best = tl.full([width], -float("inf"), tl.float64)
        chosen = tl.zeros([width], tl.int32)
        for first in range(0, tl.minimum(most, t + 1), tile):
            duration = first + tl.arange(0, tile) + 1
            start = t + 1 - duration
            usable = ((duration <= most) & (start >= 0))[:, None] & inside[None, :]
            place = (states + duration - 1)[:, None] * states + label[None, :]
            row = tl.load(table + place, usable, 0.0).to(tl.float64)
            if spans:
                row += 1.0
            row = tl.where(duration[:, None] < shortest[None, :], -float("inf"), row)
            if spans:  # right: neither missing nor wrong
                right = (duration == true_duration)[:, None] & (label == true_label)[None, :]
                row = tl.where(right, row - 2.0, row)
            score = tl.load(starts + start[:, None] * states + label[None, :], usable, -float("inf"))
            highest, index = tl.max(score + row, 0, return_indices=True, return_indices_tie_break_left=True)
            better = highest > best  # ties go to the shorter duration
            best, chosen = tl.where(better, highest, best), tl.where(better, (first + index).to(tl.int32), chosen)
        tl.store(durations + t * states + label, chosen + 1, inside)
        best = tl.where(inside, best + prefix, -float("inf"))
    highest, last = tl.max(best, 0, return_indices=True, return_indices_tie_break_left=True)
    # Neither this nor the codes are read here.
    tl.store(value + b, (highest + missed).to(value.dtype.element_ty))
    tl.debug_barrier()
    for t in range(length, longest):
        tl.store(codes + t, -1)
    state, left = tl.minimum(last, states - 1), tl.zeros([], tl.int64)
    for back_from in range(0, length):  # `left` frames of the segment come before this one and the last
        t = length - 1 - back_from
        if left == 0:
            left = tl.minimum(tl.load(durations + t * states + state), t + 1)
        left -= 1
        tl.store(codes + t, tl.where(left == 0, state + states, state))
        if left == 0:
            state = tl.load(before + t * states + state)
