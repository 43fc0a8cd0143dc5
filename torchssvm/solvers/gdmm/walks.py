"""Walks over sorted entries in descending order, compiled by Numba.

A label is marked if ``marked_row[a]`` (``marked_col[b]``, both int64) equals ``stamp``, so a new stamp clears all
marks. Untouched pairs are included, with value 0. Ties are broken arbitrarily but deterministically. Walks add the
number of visited entries to ``counters[VISITED]``.
"""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.solvers.gdmm.entry_heaps import VISITED, find, row_list


@njit
def walk(entries, which, marked_row, marked_col, stamp, excluded, force, best):
    """The largest v[a, b] of a list, or of the untouched pairs that belong there, if ``v[a, b] - force > best``.

    In the list of a row only columns must be unmarked, in that of a column only rows. Pairs whose ``a cols + b`` is in
    ``excluded`` (int64, ascending) are skipped.
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

    Takes at most one more try than there are touched and excluded pairs without marks.
    """
    if which > 0:
        is_column = not entries.symmetric and which > entries.rows
        return _untouched_across(entries, which, marked_row if is_column else marked_col, stamp, excluded)
    for a in range(entries.rows):
        if marked_row[a] != stamp:
            found = _untouched_across(entries, row_list(a), marked_col, stamp, excluded)
            if found[0] >= 0:
                return found
    return -1, -1


@njit
def _untouched_across(entries, which, marked, stamp, excluded):
    """Some untouched pair of the list of a row or of a column with an unmarked label, or (-1, -1)."""
    is_column = not entries.symmetric and which > entries.rows
    others = entries.rows if is_column else entries.cols
    own = which - 1 - entries.rows if is_column else which - 1
    if entries.size[which] == others - entries.symmetric:
        return -1, -1
    for other in range(others):
        if marked[other] == stamp or (entries.symmetric and other == own):
            continue
        swap = is_column or (entries.symmetric and other < own)
        a, b = (other, own) if swap else (own, other)
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
