"""The box QP on a CUDA device: one Triton program, no copy to the host, the same bits as on the CPU.

Coordinate ascent is sequential: a program of one launch, on one multiprocessor. What a coordinate costs is the latency
of its step, so the matrix is taken in blocks of 32 coordinates, a coordinate for each lane of a warp. Inside a block
the residual stays in registers, and a step waits for a division and two shuffles, not for barriers. All warps repeat
these steps, so that each knows the block's changes. Then they share the update of the residual by the block's 32 rows,
which is a stream of loads. Each residual gets its updates in the order of the coordinates, as if one after another.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.jit import on_device

_BLOCK = 32  # coordinates: one for each lane of a warp
_TILE = 1024  # most residuals that are updated at once


def ascend_triton(gram: Tensor, values: Tensor, sweeps: int, converged: float) -> Tensor:
    """Cyclic coordinate ascent from 0, as in ``solve_box_qp``; stops after a sweep that moves every gamma by less.

    Returns gamma, ``[R]`` float64, on the device of ``gram``.
    """
    matrix = gram.detach().to(torch.float64).contiguous()
    values = values.detach().to(matrix.device, torch.float64).contiguous()
    size = len(values)
    gammas = torch.empty_like(values)
    if size:
        residual, changes = torch.empty_like(values), torch.empty_like(values)
        tile = min(_TILE, max(_BLOCK, triton.next_power_of_2(size)))
        with on_device(matrix):
            # Fused multiply-add rounds once where the CPU rounds twice.
            _ascend[(1,)](
                matrix, values, residual, gammas, changes, size, sweeps,
                converged=converged, block=_BLOCK, tile=tile, num_warps=max(1, tile // 128), enable_fp_fusion=False,
            )  # fmt: skip
    return gammas


@triton.jit(do_not_specialize=["size", "sweeps"])
def _ascend(
    matrix, values, residual, gammas, changes, size, sweeps,
    converged: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """``residual`` starts as v and stays ``v - G gamma``; it and ``changes`` are room for R numbers."""
    for left in range(0, size, tile):
        column = left + tl.arange(0, tile)
        known = column < size
        tl.store(residual + column, tl.load(values + column, known, 0.0), known)
        tl.store(gammas + column, tl.zeros([tile], tl.float64), known)
    tl.debug_barrier()
    lane = tl.arange(0, block)
    enough = tl.full([], converged, tl.float64)  # a plain float argument would be rounded to float32
    sweep = 0
    running = sweeps > 0
    while running:
        largest = tl.zeros([], tl.float64)
        for first in range(0, size, block):
            place = first + lane
            inside = place < size
            rows = matrix + tl.cast(first, tl.int64) * size
            old = tl.load(gammas + place, inside, 0.0)
            slope = tl.load(residual + place, inside, 0.0)
            curvature = tl.load(rows + lane.to(tl.int64) * size + place, inside, 1.0)
            curved = curvature > 0.0
            divisor = tl.where(curved, curvature, 1.0)
            change = tl.zeros([block], tl.float64)
            count = tl.minimum(size - first, block)
            for i in range(0, count):
                row = tl.load(rows + tl.cast(i, tl.int64) * size + place, inside, 0.0)
                # every lane computes the step of its own coordinate; that of lane i is taken
                new = old + slope / divisor
                new = tl.where(new < 0.0, 0.0, tl.where(new > 1.0, 1.0, new))
                # otherwise the weights do not move along this block: only its loss counts
                new = tl.where(curved, new, tl.where(slope > 0.0, 1.0, old))
                move = tl.gather(new - old, tl.zeros([block], tl.int32) + i, 0)
                change = tl.where(lane == i, move, change)
                slope = slope - row * move
            most = tl.max(tl.abs(change), 0)
            if most > 0.0:
                # The last read of `changes` was before the last barrier.
                tl.store(changes + place, change, inside)
                tl.debug_barrier()  # threads read what other threads wrote
                # Each warp has read the old gammas by now; they are read again behind the next barrier.
                tl.store(gammas + place, old + change, inside)
                for left in range(0, size, tile):
                    column = left + tl.arange(0, tile)
                    known = column < size
                    rest = tl.load(residual + column, known, 0.0)
                    for i in tl.range(0, count, loop_unroll_factor=8):
                        row = tl.load(rows + tl.cast(i, tl.int64) * size + column, known, 0.0)
                        rest = rest - row * tl.load(changes + first + i)
                    # Slopes were read before the last barrier, and are read again behind the next.
                    tl.store(residual + column, rest, known)
                tl.debug_barrier()
                largest = tl.maximum(largest, most)
        sweep += 1
        running = (sweep < sweeps) & (largest >= enough)
