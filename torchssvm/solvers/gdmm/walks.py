"""Walks over sorted entries in descending order, and the factorwise maximisation oracle by them; compiled by Numba.

A label is marked if ``marked_row[a]`` (``marked_col[b]``, both int64) equals ``stamp``, so a new stamp clears all
marks. Untouched pairs are included, with value 0. Ties are broken arbitrarily but deterministically. Walks add the
number of visited entries to ``counters[VISITED]``.

Messages are zero except at a few marked labels, so the maximum over pairs is the best of four maxima. A walk
finds each and stops at values that cannot beat the best so far. The oracle returns ``(value, a, b)``, or
``(-inf, -1, -1)`` if no pair is left. See [Y16, appendix C].
"""

from __future__ import annotations

import numpy as np

from torchssvm.compiler.jit import njit
from torchssvm.solvers.gdmm.sorted_entries import VISITED, column_list, find, row_list, value_of


@njit
def walk(entries, which, marked_row, marked_col, stamp, excluded, force, best):
    """The largest v[a, b] of a list, or of its untouched pairs, if ``v[a, b] - force > best``.

    In the list of a row only columns must be unmarked, in the list of a column only rows. Pairs whose ``a cols + b``
    is in ``excluded`` (int64, ascending) are skipped.
    """
    start, size = entries.start[which], entries.size[which]
    waiting, zeros = 0, True
    if size > 0:
        waiting = _push(entries, waiting, 0, start)
    while True:
        value = entries.frontier_value[0] if waiting > 0 else -np.inf
        if value < 0.0 and zeros:
            zeros = False
            if -force > best:
                a, b = _untouched(entries, which, marked_row, marked_col, stamp, excluded)
                if a >= 0:
                    return 0.0, a, b
        if waiting == 0 or value - force <= best:
            return -np.inf, -1, -1
        at = np.int64(entries.frontier[0])
        waiting = _pop(entries, waiting)
        entries.counters[VISITED] += 1
        item = entries.pool[start + at]
        number = item // 3
        if _wanted(entries, item, marked_row, marked_col, stamp, excluded):
            return value, np.int64(entries.row[number]), np.int64(entries.col[number])
        for below in range(2 * at + 1, min(2 * at + 3, size)):
            waiting = _push(entries, waiting, below, start)


@njit
def is_excluded(entries, a, b, excluded):
    """Whether ``a cols + b`` is in the ascending list ``excluded``."""
    key, low, high = a * entries.cols + b, 0, len(excluded)
    while low < high:
        middle = (low + high) >> 1
        if excluded[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low < len(excluded) and excluded[low] == key


@njit
def _wanted(entries, item, marked_row, marked_col, stamp, excluded):
    number, kind = item // 3, item % 3
    a, b = entries.row[number], entries.col[number]
    if kind != 1 and marked_row[a] == stamp:
        return False
    if kind != 2 and marked_col[b] == stamp:
        return False
    return not is_excluded(entries, a, b, excluded)


@njit
def _untouched(entries, which, marked_row, marked_col, stamp, excluded):
    """Some untouched pair of a list, or (-1, -1).

    Tries at most all touched and excluded pairs without marks, and one more.
    """
    if which > 0:
        is_column = not entries.symmetric and which > entries.rows
        return _untouched_across(entries, which, marked_row if is_column else marked_col, stamp, excluded)
    for a in range(entries.rows):
        if marked_row[a] != stamp:
            pair = _untouched_across(entries, row_list(a), marked_col, stamp, excluded)
            if pair[0] >= 0:
                return pair
    return -1, -1


@njit
def _untouched_across(entries, which, marked, stamp, excluded):
    """Some untouched pair of the list of a row or of a column with an unmarked label, or (-1, -1)."""
    is_column = not entries.symmetric and which > entries.rows
    others = entries.rows if is_column else entries.cols
    label = which - 1 - entries.rows if is_column else which - 1
    if entries.size[which] == others - entries.symmetric:
        return -1, -1
    for other in range(others):
        if marked[other] == stamp or (entries.symmetric and other == label):
            continue
        swap = is_column or (entries.symmetric and other < label)
        a, b = (other, label) if swap else (label, other)
        entries.counters[VISITED] += 1
        if find(entries, a, b) < 0 and not is_excluded(entries, a, b, excluded):
            return a, b
    return -1, -1


@njit
def _push(entries, waiting, at, start):
    """Add position ``at`` of the list that starts at ``start`` to the frontier; returns the frontier's size."""
    value = entries.value[entries.pool[start + at] // 3]
    hole = waiting
    while hole > 0:
        above = (hole - 1) >> 1
        if entries.frontier_value[above] >= value:
            break
        entries.frontier[hole] = entries.frontier[above]
        entries.frontier_value[hole] = entries.frontier_value[above]
        hole = above
    entries.frontier[hole] = at
    entries.frontier_value[hole] = value
    return waiting + 1


@njit
def _pop(entries, waiting):
    """Remove the first position of the frontier; returns the frontier's size."""
    last = waiting - 1
    at, value = entries.frontier[last], entries.frontier_value[last]
    hole = 0
    while 2 * hole + 1 < last:
        below = 2 * hole + 1
        if below + 1 < last and entries.frontier_value[below + 1] > entries.frontier_value[below]:
            below += 1
        if entries.frontier_value[below] <= value:
            break
        entries.frontier[hole] = entries.frontier[below]
        entries.frontier_value[hole] = entries.frontier_value[below]
        hole = below
    entries.frontier[hole] = at
    entries.frontier_value[hole] = value
    return last


@njit
def best_entry(entries, left, left_force, num_left, right, right_force, num_right, excluded, marks, stamp):
    """Maximise v[a, b] - F_left(a) - F_right(b) over all pairs that are not ``excluded`` [Y16, C-1 and C-2].

    ``num_left`` different rows ``left`` have the numbers ``left_force``; F_left is zero at all others. Columns
    likewise. In a symmetric matrix both sides are the same labels, and the pairs are unordered. ``excluded`` are
    ascending keys ``a cols + b``, int64. ``marks`` (of rows ``[rows]`` and of columns ``[cols]``, int64) are scratch,
    without the number ``stamp``.
    """
    marked_row, marked_col = marks
    for p in range(num_left):
        marked_row[left[p]] = stamp
    for p in range(num_right):
        marked_col[right[p]] = stamp
    best, a, b = -np.inf, -1, -1
    if num_left < entries.rows and num_right < entries.cols:
        best, a, b = walk(entries, 0, marked_row, marked_col, stamp, excluded, 0.0, best)
    for p in range(num_right if num_left < entries.rows and not entries.symmetric else 0):
        which = column_list(entries, right[p])
        entry = walk(entries, which, marked_row, marked_col, stamp, excluded, right_force[p], best)
        if entry[1] >= 0:
            best, a, b = entry[0] - right_force[p], entry[1], entry[2]
    for p in range(num_left if num_right < entries.cols else 0):
        entry = walk(entries, row_list(left[p]), marked_row, marked_col, stamp, excluded, left_force[p], best)
        if entry[1] >= 0:
            best, a, b = entry[0] - left_force[p], entry[1], entry[2]
    least = np.inf
    for p in range(num_right):
        least = min(least, right_force[p])
    for p in range(num_left):
        bound = _bound(entries, row_list(left[p])) - left_force[p]
        for q in range((p if entries.symmetric else num_right) if bound - least > best else 0):
            if bound - right_force[q] <= best:
                continue
            entries.counters[VISITED] += 1
            row, col = left[p], right[q]
            if entries.symmetric and row > col:
                row, col = col, row
            value = value_of(entries, row, col) - left_force[p] - right_force[q]
            if value > best and not is_excluded(entries, row, col, excluded):
                best, a, b = value, row, col
    return best, a, b


@njit
def _bound(entries, which):
    if entries.size[which] == 0:
        return 0.0
    return max(entries.value[entries.pool[entries.start[which]] // 3], 0.0)
