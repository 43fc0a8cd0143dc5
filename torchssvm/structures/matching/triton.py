"""Matchings on a CUDA device: one Triton program solves one problem by shortest augmenting paths, exactly, in float64.

It takes the steps of the CPU's kernel [1]_, so that ties fall as there. Rows are assigned one after another; only
the scan over the columns is parallel, four columns a thread. Everything by row or column stays in registers: a step of
Dijkstra's algorithm is a row of scores and three reductions, and needs no scratch memory. Small problems take one
warp, whose reductions need no barrier; a multiprocessor holds many such programs, one for each problem of the batch.

Import it only where Triton is installed.

References:
    .. [1] D. F. Crouse. On implementing 2D rectangular assignment algorithms. IEEE Transactions on Aerospace and
       Electronic Systems, 2016.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

LARGEST = 2048
"""Most nodes of a side that one program holds in its registers."""


def best_matching_triton(scores: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """As :func:`torchssvm.structures.matching.oracle.best_matching`, for sides of at most ``LARGEST`` nodes."""
    batch, left, right = scores.shape
    chosen = scores.new_zeros(scores.shape, dtype=torch.uint8)
    if not scores.numel():
        return chosen.view(torch.bool)
    heights, widths = (
        torch.full((batch,), most, device=scores.device) if sizes is None else sizes.to(scores.device).contiguous()
        for sizes, most in ((rows, left), (columns, right))
    )
    width = max(32, triton.next_power_of_2(max(left, right)))
    with on_device(scores):
        _match[(batch,)](
            scores.detach().to(torch.float64).contiguous(), heights, widths, chosen, left, right,
            width=width, num_warps=max(1, width // 128), enable_fp_fusion=False,
        )  # fmt: skip
    return chosen.view(torch.bool)


@triton.jit(do_not_specialize=["left", "right"])
def _match(scores, heights, widths, chosen, left, right, width: tl.constexpr):
    """Assign each node of the smaller side, called rows here, to one of the larger side, the columns."""
    b = tl.program_id(0).to(tl.int64)
    height, wide = tl.load(heights + b).to(tl.int32), tl.load(widths + b).to(tl.int32)
    scores += b * left * right
    chosen += b * left * right
    by_row, by_column = right, 1
    if wide < height:
        height, wide = wide, height
        by_row, by_column = 1, right
    lane = tl.arange(0, width)
    exists = lane < wide
    row_dual, column_dual = tl.zeros([width], tl.float64), tl.zeros([width], tl.float64)
    partner, owner = tl.full([width], -1, tl.int32), tl.full([width], -1, tl.int32)  # of each row, of each column
    for new in range(0, height):
        # Dijkstra's algorithm from the new row to a free column; `place` is the column's in SciPy's list of open ones
        shortest = tl.full([width], float("inf"), tl.float64)
        before = tl.full([width], -1, tl.int32)
        place = wide - 1 - lane
        opened, reached = exists, lane < 0  # columns, rows
        left_open, row, sink = wide, new + 0, -1
        least = tl.zeros([], tl.float64)
        while sink < 0:
            reached = reached | (lane == row)
            dual = tl.sum(tl.where(lane == row, row_dual, 0.0), 0)
            gain = tl.load(scores + row * by_row + lane * by_column, exists, 0.0)
            cost = -tl.where(gain > 0.0, tl.minimum(gain, 1e300), 0.0)  # the caller reports infinite scores
            length = least + cost - dual - column_dual
            shorter = opened & (length < shortest)
            shortest = tl.where(shorter, length, shortest)
            before = tl.where(shorter, row, before)
            least = tl.min(tl.where(opened, shortest, float("inf")), 0)
            # of the nearest columns: the last free one of the list, otherwise the first one
            rank = tl.where(owner < 0, width + place, width - 1 - place)
            packed = (rank.to(tl.int64) << 40) | (lane.to(tl.int64) << 20) | (owner + 1).to(tl.int64)
            best = tl.max(tl.where(opened & (shortest == least), packed, 0), 0)
            column, taken = ((best >> 20) & 0xFFFFF).to(tl.int32), (best & 0xFFFFF).to(tl.int32) - 1
            hole = tl.max(tl.where(lane == column, place, 0), 0)
            opened = opened & (lane != column)
            left_open -= 1
            place = tl.where(place == left_open, hole, place)  # the list's last column takes the place
            if taken < 0:
                sink = column
            else:
                row = taken
        onto = tl.gather(shortest, tl.maximum(partner, 0), 0)
        others = reached & (lane != new)
        row_dual = tl.where(lane == new, row_dual + least, tl.where(others, row_dual + (least - onto), row_dual))
        column_dual = tl.where(exists & ~opened, column_dual - (least - shortest), column_dual)
        row = -1
        while row != new:  # augment along the path, from its end
            row = tl.max(tl.where(lane == sink, before, -1), 0)
            owner = tl.where(lane == sink, row, owner)
            following = tl.max(tl.where(lane == row, partner, -1), 0)
            partner = tl.where(lane == row, sink, partner)
            sink = following
    place = owner * by_row + lane * by_column
    gain = tl.load(scores + place, owner >= 0, 0.0)
    # The only store: it is never read here.
    tl.store(chosen + place, 1, (owner >= 0) & (gain > 0.0))
