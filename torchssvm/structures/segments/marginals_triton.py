"""Sum-product of segments on a CUDA device: one Triton program makes the masses of one sequence.

Import it only where Triton is installed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

_TILE = 512  # scores of durations by label that are looked at together


def marginals_triton(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`torchssvm.structures.segments.oracle.semi_markov_marginals`, for float64 tensors of up to 32 labels."""
    batch, longest, wide = emission.shape
    rows, states = segment.shape[1:]
    parts, pairs = emission.new_zeros(emission.shape), segment.new_zeros(segment.shape)
    whole = emission.new_empty(batch)
    if not batch:
        return parts, pairs, whole
    table = segment if segment.stride(-1) == 1 and segment.stride(-2) == states else segment.contiguous()
    memory = emission.new_empty(batch, 5, longest, states)
    width = max(triton.next_power_of_2(states), 2)
    # At least an entry of a tile for each thread: it is read, added to and written by one.
    tile = min(max(_TILE // width, 2), max(triton.next_power_of_2(rows - states), width // 8, 2))
    with on_device(emission):
        _sum_product[(batch,)](
            emission.contiguous(), table, least, lengths.contiguous(), memory, parts, pairs, whole,
            longest, states, rows - states, table.stride(0), boundary=wide > states,
            width=width, tile=tile, num_warps=max(1, width * max(width, tile) // 256), enable_fp_fusion=False,
        )  # fmt: skip
    return parts, pairs, whole


@triton.jit
def _log_sum(scores, axis: tl.constexpr):
    """The logarithm of the sum of exponentials along an axis; ``-inf`` where all are."""
    highest = tl.max(scores, axis)
    finite = tl.where(highest == -float("inf"), 0.0, highest)
    return finite + tl.log(tl.sum(tl.exp(scores - tl.expand_dims(finite, axis)), axis))


@triton.jit
def _log_add(one, other):
    """The logarithm of the sum of two exponentials."""
    highest = tl.maximum(one, other)
    finite = tl.where(highest == -float("inf"), 0.0, highest)
    return finite + tl.log(tl.exp(one - finite) + tl.exp(other - finite))


@triton.jit(do_not_specialize=["longest", "states", "most", "by_example"])
def _sum_product(
    emission, table, least, lengths, memory, parts, pairs, whole, longest, states, most, by_example,
    boundary: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """``memory`` ``[B, 5, N, K]``, by frame and label: logarithms of the mass of what begins there, less the sums of
    frames before it; of what ends there; of what follows an end there; the sums of frames up to it; and the last
    frame up to it that the label may not have.
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths + b), 1), longest)  # keep memory accesses in bounds
    wide = 2 * states if boundary else states
    never = -float("inf")
    room = tl.cast(longest, tl.int64) * states
    begins = memory + 5 * b * room
    ends, follows, sums, missing = begins + room, begins + 2 * room, begins + 3 * room, begins + 4 * room
    emission += b * longest * wide
    parts += b * longest * wide
    table += b * by_example
    pairs += b * (states + most) * states
    label = tl.arange(0, width)
    inside = label < states
    square = label[:, None] * states + label[None, :]
    both = inside[:, None] & inside[None, :]
    shortest = tl.load(least + label, inside, 1)
    prefix, end = tl.zeros([width], tl.float64), tl.full([width], never, tl.float64)
    forbidden = tl.full([width], -1.0, tl.float64)
    for t in range(0, length):
        begin = tl.where(t > 0, _log_sum(end[:, None] + tl.load(table + square, both, never), 0), 0.0) - prefix
        if boundary:
            begin += tl.load(emission + t * wide + states + label, inside, 0.0)
        tl.store(begins + t * states + label, begin, inside)
        tl.debug_barrier()  # threads read the starts that other threads wrote
        frame = tl.load(emission + t * wide + label, inside, 0.0)
        prefix = tl.where(frame == never, prefix, prefix + frame)
        forbidden = tl.where(frame == never, tl.cast(t, tl.float64), forbidden)
        # These and the ends are read behind the barrier of the second pass.
        tl.store(sums + t * states + label, prefix, inside)
        tl.store(missing + t * states + label, forbidden, inside)
        end = tl.full([width], never, tl.float64)
        for first in range(0, tl.minimum(most, t + 1), tile):
            duration = first + tl.arange(0, tile) + 1
            start = t + 1 - duration
            usable = ((duration <= most) & (start >= 0))[:, None] & inside[None, :]
            usable &= (duration[:, None] >= shortest[None, :]) & (start[:, None] > forbidden[None, :])
            row = tl.load(table + (states + duration - 1)[:, None] * states + label[None, :], usable, 0.0)
            score = tl.load(begins + start[:, None] * states + label[None, :], usable, never)
            end = _log_add(end, _log_sum(score + row, 0))
        end = tl.where(inside, end + prefix, never)
        tl.store(ends + t * states + label, end, inside)
    sequence = tl.max(_log_sum(end[None, :], 1), 0)
    tl.store(whole + b, sequence)
    tl.debug_barrier()
    length = tl.where(sequence == never, 0, length)  # nothing has a mass
    joined = tl.zeros([width, width], tl.float64)
    follow = tl.zeros([width], tl.float64)
    covered = tl.zeros([width], tl.float64)  # the mass of segments that have a frame
    for back in range(0, length):
        s = length - 1 - back
        tl.store(follows + s * states + label, follow, inside)
        tl.debug_barrier()  # threads read what other threads wrote
        covered += tl.exp(tl.load(ends + s * states + label, inside, never) + follow - sequence)
        begin = tl.load(begins + s * states + label, inside, never)
        after = tl.full([width], never, tl.float64)
        for first in range(0, tl.minimum(most, back + 1), tile):
            duration = first + tl.arange(0, tile) + 1
            last = s + duration - 1
            usable = ((duration <= most) & (last < length))[:, None] & inside[None, :]
            usable &= duration[:, None] >= shortest[None, :]
            place = last[:, None] * states + label[None, :]
            usable &= tl.load(missing + place, usable, 0.0) < s
            cell = (states + duration - 1)[:, None] * states + label[None, :]
            score = tl.load(follows + place, usable, never) + tl.load(sums + place, usable, 0.0)
            score += tl.load(table + cell, usable, 0.0)
            after = _log_add(after, _log_sum(score, 0))
            mass = tl.exp(begin[None, :] + score - sequence)
            # A thread adds to the same cells at every frame: no other one writes them.
            tl.store(pairs + cell, tl.load(pairs + cell, usable, 0.0) + mass, usable)
        begun = tl.where(inside, tl.exp(begin + after - sequence), 0.0)
        # Never read here.
        tl.store(parts + s * wide + label, tl.maximum(covered, 0.0), inside)
        if boundary:
            tl.store(parts + s * wide + states + label, begun, inside)
        covered = tl.where(inside, covered - begun, 0.0)
        if s > 0:
            # `begin` holds the boundary's score too, and both hold sums of frames of opposite sign.
            here = after - tl.load(sums + (s - 1) * states + label, inside, 0.0)
            if boundary:
                here += tl.load(emission + s * wide + states + label, inside, 0.0)
            pair = tl.load(table + square, both, never) + here[None, :]
            before = tl.load(ends + (s - 1) * states + label, inside, never) - sequence
            follow = _log_sum(pair, 1)
            joined += tl.exp(before[:, None] + pair)
    # Cells other than durations.
    tl.store(pairs + square, joined, both)
