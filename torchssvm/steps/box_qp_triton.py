"""The box QP on a CUDA device: no copy to the host, the same bits as on the CPU.

Coordinate ascent is sequential, and what a coordinate costs is the latency of its step. So the matrix is taken in
blocks of 32 coordinates, a coordinate for each lane of a warp: inside a block the residual stays in registers, and a
step waits for a division and two shuffles, not for barriers. All warps repeat these steps, so that each knows the
block's changes. Then the residual is updated by the block's 32 rows, which is a stream of loads. Each residual gets its
updates in the order of the coordinates, as if one after another.

Up to 1024 coordinates take one program and one launch. With more, one multiprocessor would wait for the loads: there
is a launch for each 256 coordinates of a sweep, all its programs repeat their steps, and share the update of the
residual. On an H100 that takes 7 ms in place of 12 for 2048 coordinates, 20 in place of 49 for 4096, and more below.

Import it only where Triton is installed.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

_BLOCK = 32  # coordinates: one for each lane of a warp
_ALONE = 1024  # most coordinates of one program
_GROUP = 256  # coordinates of a launch of several
_SPAN = 128  # residuals that a program of several updates


def ascend_triton(gram: Tensor, values: Tensor, sweeps: int, converged: float) -> Tensor:
    """Cyclic coordinate ascent from 0, as in ``solve_box_qp``; stops after a sweep that moves every gamma by less.

    Returns gamma, ``[R]`` float64, on the device of ``gram``.
    """
    matrix = gram.detach().to(torch.float64).contiguous()
    values = values.detach().to(matrix.device, torch.float64).contiguous()
    size = len(values)
    if not size:
        return torch.empty_like(values)
    with on_device(matrix):
        # Fused multiply-add rounds once where the CPU rounds twice.
        if size <= _ALONE:
            gammas, room = torch.empty_like(values), matrix.new_empty(2, size)
            width = max(_BLOCK, triton.next_power_of_2(size))
            _ascend[(1,)](
                matrix, values, gammas, room, size, sweeps,
                converged=converged, block=_BLOCK, width=width, num_warps=max(1, width // 128), enable_fp_fusion=False,
            )  # fmt: skip
            return gammas
        # A launch reads one residual and writes the other; a sweep likewise with the gammas.
        residuals, gammas = [values.clone(), torch.empty_like(values)], matrix.new_zeros(2, size)
        programs = triton.cdiv(size, _SPAN)
        room, largest = matrix.new_empty(programs, 2, _GROUP), matrix.new_zeros(sweeps + 1)
        largest[0] = math.inf
        for sweep in range(sweeps):
            for begin in range(0, size, _GROUP):
                _ascend_together[(programs,)](
                    matrix, *residuals, gammas[sweep % 2], gammas[(sweep + 1) % 2], room, largest, size, begin, sweep,
                    converged=converged, block=_BLOCK, group=_GROUP, span=_SPAN, num_warps=1, enable_fp_fusion=False,
                )  # fmt: skip
                residuals.reverse()
    return gammas[sweeps % 2]


@triton.jit(do_not_specialize=["size", "sweeps"])
def _ascend(
    matrix, values, gammas, room, size, sweeps, converged: tl.constexpr, block: tl.constexpr, width: tl.constexpr
):  # fmt: skip
    """``room`` is for the residual, which starts as v and stays ``v - G gamma``, and for changes: R numbers each."""
    residual, changes = room, room + size
    column = tl.arange(0, width)
    known = column < size
    # Both are read behind the next barrier.
    tl.store(residual + column, tl.load(values + column, known, 0.0), known)
    tl.store(gammas + column, tl.zeros([width], tl.float64), known)
    tl.debug_barrier()
    lane = tl.arange(0, block)
    enough = tl.full([], converged, tl.float64)  # a plain float argument would be rounded to float32
    sweep = 0
    running = sweeps > 0
    while running:
        largest = tl.zeros([], tl.float64)
        for first in range(0, size, block):
            inside = first + lane < size
            old = tl.load(gammas + first + lane, inside, 0.0)
            slope = tl.load(residual + first + lane, inside, 0.0)
            change = _steps(matrix, old, slope, first, size, block)
            most = tl.max(tl.abs(change), 0)
            if most > 0.0:
                # The last read of `changes` was before the last barrier.
                tl.store(changes + first + lane, change, inside)
                tl.debug_barrier()  # threads read what other threads wrote
                # Each warp has read the old gammas by now; they are read again behind the next barrier.
                tl.store(gammas + first + lane, old + change, inside)
                rest = tl.load(residual + column, known, 0.0)
                rest = _updated(rest, matrix, changes, first, tl.minimum(size - first, block), size, column, known)
                # Slopes were read before the last barrier, and are read again behind the next.
                tl.store(residual + column, rest, known)
                tl.debug_barrier()
                largest = tl.maximum(largest, most)
        sweep += 1
        running = (sweep < sweeps) & (largest >= enough)


@triton.jit(do_not_specialize=["size", "begin", "sweep"])
def _ascend_together(
    matrix, residual, next_residual, gammas, next_gammas, room, largest, size, begin, sweep,
    converged: tl.constexpr, block: tl.constexpr, group: tl.constexpr, span: tl.constexpr,
):  # fmt: skip
    """The steps of the coordinates from ``begin`` on, in every program, and the next residual, each program its part.

    ``largest[s]`` is the largest change of sweep s - 1; programs have ``room`` of their own.
    """
    program = tl.program_id(0)
    room += program * 2 * group
    changes = room + group
    column = begin + tl.arange(0, group)
    known = column < size
    lane = tl.arange(0, block)
    enough = tl.full([], converged, tl.float64)  # a plain float argument would be rounded to float32
    if tl.load(largest + sweep) < enough:  # it is over; the next sweep's value stays 0
        if program == 0:
            tl.store(next_gammas + column, tl.load(gammas + column, known), known)
    else:
        tl.store(room + column - begin, tl.load(residual + column, known, 0.0))
        tl.debug_barrier()  # threads read what other threads wrote, here and below
        most = tl.zeros([], tl.float64)
        for first in range(begin, tl.minimum(begin + group, size), block):
            inside = first + lane < size
            old = tl.load(gammas + first + lane, inside, 0.0)
            change = _steps(matrix, old, tl.load(room + first - begin + lane), first, size, block)
            most = tl.maximum(most, tl.max(tl.abs(change), 0))
            # The last reads of `changes` were before the last barrier; no program of this launch reads `next_gammas`.
            tl.store(changes + first - begin + lane, change)
            if program == 0:
                tl.store(next_gammas + first + lane, old + change, inside)
            tl.debug_barrier()
            rest = tl.load(room + column - begin)
            count = tl.minimum(size - first, block)
            rest = _updated(rest, matrix, changes - begin, first, count, size, column, known)
            # Slopes were read before the last barrier.
            tl.store(room + column - begin, rest)
            tl.debug_barrier()
        own = program * span + tl.arange(0, span)
        rest = tl.load(residual + own, own < size, 0.0)
        count = tl.minimum(size - begin, group)
        rest = _updated(rest, matrix, changes - begin, begin, count, size, own, own < size)
        # Read by the next launch. One thread loads and stores `largest`.
        tl.store(next_residual + own, rest, own < size)
        if program == 0:
            tl.store(largest + sweep + 1, tl.maximum(tl.load(largest + sweep + 1), most))


@triton.jit
def _steps(matrix, old, slope, first, size, block: tl.constexpr):
    """The changes of the coordinates from ``first`` on, a lane each, given their gammas and residuals."""
    lane = tl.arange(0, block)
    inside = first + lane < size
    rows = matrix + tl.cast(first, tl.int64) * size + first + lane
    curvature = tl.load(rows + lane.to(tl.int64) * size, inside, 1.0)
    curved = curvature > 0.0
    divisor = tl.where(curved, curvature, 1.0)
    change = tl.zeros([block], tl.float64)
    for i in range(0, tl.minimum(size - first, block)):
        row = tl.load(rows + tl.cast(i, tl.int64) * size, inside, 0.0)
        # every lane computes the step of its own coordinate; that of lane i is taken
        new = old + slope / divisor
        new = tl.where(new < 0.0, 0.0, tl.where(new > 1.0, 1.0, new))
        # otherwise the weights do not move along this block: only its loss counts
        new = tl.where(curved, new, tl.where(slope > 0.0, 1.0, old))
        move = tl.gather(new - old, tl.zeros([block], tl.int32) + i, 0)
        change = tl.where(lane == i, move, change)
        slope = slope - row * move
    return change


@triton.jit
def _updated(rest, matrix, changes, first, count, size, column, known):
    """``rest`` after the changes of ``count`` coordinates from ``first`` on, which lie at ``changes + first``."""
    for i in tl.range(0, count, loop_unroll_factor=8):
        row = tl.load(matrix + tl.cast(first + i, tl.int64) * size + column, known, 0.0)
        rest = rest - row * tl.load(changes + first + i)
    return rest
