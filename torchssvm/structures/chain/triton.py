"""Viterbi on a CUDA device: one Triton program decodes one chain, back-pointers included.

With many states, one program for a chain would read all transitions at each position through one multiprocessor; chains
with the same transitions then go position by position, a launch each, and share the tiles that they read.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

_IN_REGISTERS = 128  # up to this many states, the transitions of a chain stay in registers
_TILE = 64  # with more states: the rows and the columns of a tile of the transitions
_MANY = 512  # from so many states on, chains with the same transitions share their tiles
_CHAINS = 2  # that share a tile: a warp each, as what a row costs is its latency


def viterbi_triton(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """As :func:`torchssvm.structures.chain.oracle.viterbi`, for tensors of one float dtype; K up to 32767."""
    batch, longest, states = emission.shape
    labels = emission.new_empty(batch, longest, dtype=torch.int64)
    value = emission.new_empty(batch)
    if not batch:
        return labels, value
    emission = emission.detach().contiguous()
    pairs = transition.detach()
    pairs = pairs if pairs.stride(-1) == 1 and pairs.stride(-2) == states else pairs.contiguous()
    by_chain = pairs.stride(0) if pairs.ndim > 2 else 0
    by_position = pairs.stride(1) if pairs.ndim > 3 else 0
    if lengths is None:
        lengths = torch.full((batch,), longest, device=emission.device)
    pointers = emission.new_empty(batch, longest, states, dtype=torch.int16)
    arguments = (emission, pairs, lengths.contiguous(), pointers, labels, value)
    sizes = longest, states, by_chain, by_position
    with on_device(emission):
        if states <= _IN_REGISTERS:
            width = max(triton.next_power_of_2(states), 2)
            _decode[(batch,)](
                *arguments, *sizes, width=width, moves=by_position > 0, num_warps=max(1, width // 16),
                enable_fp_fusion=False,
            )  # fmt: skip
        elif states >= _MANY and not by_chain:
            scores = emission[:, 0].clone(memory_format=torch.contiguous_format), emission.new_empty(batch, states)
            grid = triton.cdiv(states, _TILE), triton.cdiv(batch, _CHAINS)
            for t in range(1, longest):
                old, new = scores[(t - 1) % 2], scores[t % 2]
                _advance[grid](
                    *arguments[:4], old, new, t, batch, *sizes[:2], by_position,
                    tile=_TILE, together=_CHAINS, num_warps=1, enable_fp_fusion=False,
                )  # fmt: skip
            _finish[(batch,)](*arguments[2:], scores[(longest - 1) % 2], *sizes[:2], tile=_TILE, enable_fp_fusion=False)
        else:
            prefix = emission.new_empty(batch, 2, states)
            _decode_by_tiles[(batch,)](*arguments, prefix, *sizes, tile=_TILE, num_warps=8, enable_fp_fusion=False)
    return labels, value


@triton.jit(do_not_specialize=["longest", "by_chain", "by_position"])
def _decode(
    emission, pairs, lengths, pointers, labels, value, longest, states, by_chain, by_position,
    width: tl.constexpr, moves: tl.constexpr,
):  # fmt: skip
    """Viterbi with the transitions ``[width, width]`` in registers; ``moves`` if each position has its own."""
    b = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths + b), 1), longest)  # keep memory accesses in bounds
    state = tl.arange(0, width)
    inside = state < states
    square = state[:, None] * states + state[None, :]
    both = inside[:, None] & inside[None, :]
    emission += b * longest * states
    pointers += b * longest * states
    pairs += b * by_chain
    # Padding scores -inf and comes after all states, so it never wins, not even ties.
    prefix = tl.load(emission + state, inside, -float("inf"))
    if not moves:
        matrix = tl.load(pairs + square, both, 0.0)
    for t in range(1, length):
        if moves:
            matrix = tl.load(pairs + (t - 1) * by_position + square, both, 0.0)
        best, before = tl.max(prefix[:, None] + matrix, 0, return_indices=True, return_indices_tie_break_left=True)
        # A NaN score may give any index: keep it within the states. They are read behind the barrier of `_follow`.
        tl.store(pointers + t * states + state, tl.minimum(before, states - 1).to(tl.int16), inside)
        prefix = tl.where(inside, best + tl.load(emission + t * states + state, inside), -float("inf"))
    best, last = tl.max(prefix, 0, return_indices=True, return_indices_tie_break_left=True)
    # Never read here.
    tl.store(value + b, best)
    _follow(pointers, labels + b * longest, tl.minimum(last, states - 1), length, longest, states)


@triton.jit(do_not_specialize=["longest", "by_chain", "by_position"])
def _decode_by_tiles(
    emission, pairs, lengths, pointers, labels, value, prefix, longest, states, by_chain, by_position,
    tile: tl.constexpr,
):  # fmt: skip
    """Viterbi in tiles of the transitions; ``prefix`` ``[B, 2, K]`` holds the scores at two successive positions."""
    b = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths + b), 1), longest)  # keep memory accesses in bounds
    emission += b * longest * states
    pointers += b * longest * states
    pairs += b * by_chain
    prefix += b * 2 * states
    for left in range(0, states, tile):
        column = left + tl.arange(0, tile)
        # Read behind the barrier below.
        tl.store(prefix + column, tl.load(emission + column, column < states), column < states)
    tl.debug_barrier()
    for t in range(1, length):
        old, new = prefix + (t - 1) % 2 * states, prefix + t % 2 * states
        matrix = pairs + (t - 1) * by_position
        for left in range(0, states, tile):
            column = left + tl.arange(0, tile)
            inside = column < states
            best = tl.full([tile], -float("inf"), value.dtype.element_ty)
            before = tl.zeros([tile], tl.int32)
            for top in range(0, states, tile):
                row = top + tl.arange(0, tile)
                known = row < states
                score = tl.load(old + row, known, -float("inf"))
                place = row.to(tl.int64)[:, None] * states + column[None, :]
                scores = score[:, None] + tl.load(matrix + place, known[:, None] & inside[None, :], 0.0)
                highest, index = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
                better = highest > best  # ties go to the earlier tile
                best, before = tl.where(better, highest, best), tl.where(better, top + index, before)
            tl.store(pointers + t * states + column, tl.minimum(before, states - 1).to(tl.int16), inside)
            # The last reads of this half of `prefix` were before the last barrier.
            tl.store(new + column, best + tl.load(emission + t * states + column, inside), inside)
        tl.debug_barrier()  # threads read what other threads wrote
    _end(prefix + (length - 1) % 2 * states, pointers, labels + b * longest, value + b, length, longest, states, tile)


@triton.jit(do_not_specialize=["t", "batch", "longest", "by_position"])
def _advance(
    emission, pairs, lengths, pointers, old, new, t, batch, longest, states, by_position,
    tile: tl.constexpr, together: tl.constexpr,
):  # fmt: skip
    """The scores ``new`` at position t from those before it, ``old``, both ``[B, K]``; of a chain that has ended, kept.

    A program takes some columns of the transitions and some chains, which share each row that it reads; threads
    exchange nothing, and many programs work on one position even for few chains.
    """
    column = tl.program_id(0) * tile + tl.arange(0, tile)
    chain = (tl.program_id(1) * together + tl.arange(0, together)).to(tl.int64)
    inside, real = column < states, chain < batch
    place = chain[:, None] * states + column[None, :]
    both = real[:, None] & inside[None, :]
    best = tl.full([together, tile], -float("inf"), new.dtype.element_ty)
    before = tl.zeros([together, tile], tl.int32)
    pairs += tl.cast(t - 1, tl.int64) * by_position + column
    old_scores = old + chain * states
    for row in tl.range(0, states, loop_unroll_factor=8):
        score = tl.load(old_scores + row, real, 0.0)
        scores = score[:, None] + tl.load(pairs + tl.cast(row, tl.int64) * states, inside, 0.0)[None, :]
        better = scores > best  # ties go to the first row
        best, before = tl.where(better, scores, best), tl.where(better, row, before)
    at = (chain[:, None] * longest + t) * states + column[None, :]
    tl.store(pointers + at, before.to(tl.int16), both)
    running = t < tl.load(lengths + chain, real, 0)
    kept = tl.load(old + place, both, 0.0)
    # Read by the next launch, as the pointers are.
    tl.store(new + place, tl.where(running[:, None], best + tl.load(emission + at, both, 0.0), kept), both)


@triton.jit(do_not_specialize=["longest"])
def _finish(lengths, pointers, labels, value, scores, longest, states, tile: tl.constexpr):
    """The labels of each chain, given the scores ``[B, K]`` at its last position."""
    b = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths + b), 1), longest)  # keep memory accesses in bounds
    pointers += b * longest * states
    _end(scores + b * states, pointers, labels + b * longest, value + b, length, longest, states, tile)


@triton.jit
def _end(ending, pointers, labels, value, length, longest, states, tile: tl.constexpr):
    """Write the best score, and the labels of the chain that has it, from the scores at its last position."""
    best = tl.load(ending)
    last = 0
    for left in range(0, states, tile):
        column = left + tl.arange(0, tile)
        scores = tl.load(ending + column, column < states, -float("inf"))
        highest, index = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
        if highest > best:
            best = highest
            last = left + index
    # Never read here.
    tl.store(value, best)
    _follow(pointers, labels, tl.minimum(last, states - 1), length, longest, states)


@triton.jit
def _follow(pointers, labels, state, length, longest, states):
    """Write the states from the last position backwards, and -1 beyond the length."""
    tl.debug_barrier()
    for t in range(length, longest):
        # Labels are never read here.
        tl.store(labels + t, -1)
    tl.store(labels + length - 1, state)
    for back in range(1, length):
        t = length - back
        state = tl.load(pointers + t * states + state).to(tl.int32)
        tl.store(labels + t - 1, state)
