"""The factorwise maximisation oracle, compiled by Numba.

Messages are zero except at a few marked labels, so the maximum over pairs is the best of four maxima. Each is found by
a walk that stops at values that cannot beat the best so far. Functions return ``(value, a, b)``, or ``(-inf, -1, -1)``
if no pair is left. See [Y16, appendix C].
"""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.solvers.gdmm.entry_heaps import VISITED, column_list, row_list, value_of
from torchssvm.solvers.gdmm.walks import is_excluded, walk


@njit
def indicator_fmo(
    entries, left_labels, left_force, num_left, right_labels, right_force, num_right, marked_row, marked_col, stamp
):
    """Maximise v[a, b] - F_left(a) - F_right(b) over all pairs [Y16, C-1].

    ``num_left`` different rows ``left_labels`` have the numbers ``left_force``; F_left is zero at all others. Columns
    likewise. ``marked_row`` ``[rows]`` and ``marked_col`` ``[cols]``, int64, are scratch, without the number ``stamp``.
    """
    for p in range(num_left):
        marked_row[left_labels[p]] = stamp
    for p in range(num_right):
        marked_col[right_labels[p]] = stamp
    nothing = marked_row[:0]
    best, a, b = -np.inf, -1, -1
    if num_left < entries.rows and num_right < entries.cols:
        best, a, b = walk(entries, 0, marked_row, marked_col, stamp, nothing, 0.0, best)
    for p in range(num_right if num_left < entries.rows else 0):
        force = right_force[p]
        found = walk(
            entries, column_list(entries, right_labels[p]), marked_row, marked_col, stamp, nothing, force, best
        )
        if found[1] >= 0:
            best, a, b = found[0] - force, found[1], found[2]
    for p in range(num_left if num_right < entries.cols else 0):
        force = left_force[p]
        found = walk(entries, row_list(left_labels[p]), marked_row, marked_col, stamp, nothing, force, best)
        if found[1] >= 0:
            best, a, b = found[0] - force, found[1], found[2]
    least = _least(right_force, num_right)
    for p in range(num_left):
        bound = _bound(entries, row_list(left_labels[p])) - left_force[p]
        for q in range(num_right if bound - least > best else 0):
            if bound - right_force[q] <= best:
                continue
            entries.counters[VISITED] += 1
            value = value_of(entries, left_labels[p], right_labels[q]) - left_force[p] - right_force[q]
            if value > best:
                best, a, b = value, left_labels[p], right_labels[q]
    return best, a, b


@njit
def interaction_fmo(entries, labels, force, num_labels, excluded, num_excluded, marked, stamp):
    """Maximise v[i, j] - F(i) - F(j) over the unordered pairs i < j, each one a factor of binary variables [Y16, C-2].

    ``num_labels`` different ``labels`` have the numbers ``force``; F is zero at all others. ``num_excluded`` pairs i <
    j are skipped: ``excluded`` int64, ascending, ``i K + j``. ``marked`` ``[K]`` int64 is scratch without ``stamp``.
    """
    for p in range(num_labels):
        marked[labels[p]] = stamp
    without = excluded[:num_excluded]
    best, a, b = -np.inf, -1, -1
    if num_labels < entries.rows:
        best, a, b = walk(entries, 0, marked, marked, stamp, without, 0.0, best)
    for p in range(num_labels if num_labels < entries.rows else 0):
        found = walk(entries, row_list(labels[p]), marked, marked, stamp, without, force[p], best)
        if found[1] >= 0:
            best, a, b = found[0] - force[p], found[1], found[2]
    least = _least(force, num_labels)
    for p in range(num_labels):
        bound = _bound(entries, row_list(labels[p])) - force[p]
        for q in range(p if bound - least > best else 0):
            if bound - force[q] <= best:
                continue
            entries.counters[VISITED] += 1
            i, j = min(labels[p], labels[q]), max(labels[p], labels[q])
            value = value_of(entries, i, j) - force[p] - force[q]
            if value > best and not is_excluded(entries, i, j, without):
                best, a, b = value, i, j
    return best, a, b


@njit
def _bound(entries, which):
    """An upper bound of the values of a list and of untouched pairs."""
    if entries.size[which] == 0:
        return 0.0
    return max(entries.value[entries.pool[entries.start[which]] // 3], 0.0)


@njit
def _least(force, num):
    least = np.inf
    for p in range(num):
        least = min(least, force[p])
    return least
