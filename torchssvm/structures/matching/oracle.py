"""The best matching of each bipartite graph of a batch, by the algorithm of [1]_ in float64, on the CPU and on CUDA.

Ties fall as in SciPy's ``linear_sum_assignment`` and the Triton kernel, which take the same steps.

References:
    .. [1] D. F. Crouse. On implementing 2D rectangular assignment algorithms. IEEE Transactions on Aerospace and
       Electronic Systems, 2016.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.core.arguments import check_int64
from torchssvm.core.triton_support import triton_available
from torchssvm.structures.common import check_operands


def best_matching(scores: Tensor, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
    """The matching with the highest total score in each bipartite graph.

    Nodes may stay unmatched, so edges with a score of 0 or less are never used: negative scores are raised to 0, the
    smaller side is assigned exactly [1]_, and edges of score 0 are dropped. Ties fall as in
    SciPy's ``linear_sum_assignment``, and depend only on the example's scores. CUDA tensors are solved on the
    device by the same algorithm, with the same ties, where Triton is installed and no side has more than 2048 nodes;
    otherwise on the CPU.

    Args:
        scores: ``[B, S, T]``; compared in float64. NaN counts as 0.
        rows: ``[B]`` int64, the number of rows of each example; None means S for all.
        columns: ``[B]`` int64, the number of columns of each example; None means T for all.

    Returns:
        ``[B, S, T]`` bool on the device of ``scores``.

    Raises:
        ValueError: ``scores`` are not floating ``[B, S, T]``, or ``rows`` or ``columns`` not int64 ``[B]``.

    References:
        .. [1] D. F. Crouse. On implementing 2D rectangular assignment algorithms. IEEE Transactions on Aerospace and
           Electronic Systems, 2016.
    """
    check_operands(scores=(scores, "BST"))
    batch, left, right = scores.shape
    given = {"rows": (rows, left), "columns": (columns, right)}
    for name, (sizes, _) in given.items():
        if sizes is not None:
            check_int64(sizes, name, (batch,), ", the nodes of each example")
    if scores.is_cuda and triton_available():
        from torchssvm.structures.matching.triton import LARGEST, best_matching_triton

        if max(scores.shape[1:]) <= LARGEST:
            return best_matching_triton(scores, rows, columns)
    sides = [torch.full((batch,), most) if n is None else n.cpu().clamp(0, most) for n, most in given.values()]
    chosen = torch.zeros(scores.shape, dtype=torch.bool)
    gains = scores.detach().to("cpu", torch.float64).contiguous()
    arrays = (tensor.numpy() for tensor in (gains, *sides))
    best_matchings(*arrays, *make_room(left, right), chosen.numpy())
    return chosen.to(scores.device)


def make_room(left: int, right: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Room for :func:`match` on up to so many nodes: two arrays, and the third for the partners."""
    most = max(left, right, 1)
    return np.empty(left * right + 3 * most), np.empty(6 * most, np.int64), np.empty(most, np.int64)


@njit
def best_matchings(scores, heights, widths, numbers, places, partner, chosen):
    """The best matching of each graph of a batch: its edges become 1 in ``chosen`` ``[B, S, T]``; see :func:`match`."""
    for b in range(len(scores)):
        match(scores[b], heights[b], widths[b], numbers, places, partner)
        for s in range(heights[b]):
            if partner[s] >= 0:
                chosen[b, s, partner[s]] = True


@njit
def match(scores, height, width, numbers, places, partner):
    """The best matching of one graph; an edge with a score of 0 or less, or NaN, is never used.

    ``scores`` are ``[S, T]``, of ``height`` rows and ``width`` columns; ``numbers`` and ``places`` are from
    :func:`make_room`; ``partner`` ``[at least height]`` gets the column of each row, or -1.
    """
    flipped = width < height
    rows, columns = (width, height) if flipped else (height, width)
    cost, rest = numbers[: rows * columns], numbers[rows * columns :]
    for s in range(height):
        for t in range(width):
            score = np.float64(scores[s, t])
            gain = min(score, 1e300) if score > 0.0 else 0.0  # the caller reports infinite scores
            cost[t * height + s if flipped else s * width + t] = -gain
    row_dual, column_dual, shortest = rest[:rows], rest[columns : 2 * columns], rest[2 * columns : 3 * columns]
    column_of, row_of, before = places[:rows], places[columns : 2 * columns], places[2 * columns : 3 * columns]
    waiting, reached, closed = places[3 * columns :], places[4 * columns :], places[5 * columns :]
    for i in range(rows):
        row_dual[i], column_of[i] = 0.0, -1
    for j in range(columns):
        column_dual[j], row_of[j] = 0.0, -1
    for new in range(rows):
        # Dijkstra's algorithm from the new row to a free column.
        for j in range(columns):
            waiting[j], shortest[j], closed[j] = columns - 1 - j, math.inf, 0
        for i in range(rows):
            reached[i] = 0
        left, row, sink, least = columns, new, -1, 0.0
        while sink < 0:
            reached[row] = 1
            index, lowest = 0, math.inf
            for place in range(left):
                j = waiting[place]
                length = least + cost[row * columns + j] - row_dual[row] - column_dual[j]
                if length < shortest[j]:
                    before[j], shortest[j] = row, length
                if shortest[j] < lowest or (shortest[j] == lowest and row_of[j] < 0):
                    lowest, index = shortest[j], place
            least = lowest
            j = waiting[index]
            if row_of[j] < 0:
                sink = j
            else:
                row = row_of[j]
            closed[j] = 1
            left -= 1
            waiting[index] = waiting[left]
        row_dual[new] += least
        for i in range(rows):
            if reached[i] and i != new:
                row_dual[i] += least - shortest[column_of[i]]
        for j in range(columns):
            if closed[j]:
                column_dual[j] -= least - shortest[j]
        row = -1
        while row != new:  # augment along the path, from its end
            row = before[sink]
            row_of[sink] = row
            column_of[row], sink = sink, column_of[row]
    for s in range(height):
        partner[s] = -1
    for i in range(rows):
        if cost[i * columns + column_of[i]] < 0.0:
            if flipped:
                partner[column_of[i]] = i
            else:
                partner[i] = column_of[i]
