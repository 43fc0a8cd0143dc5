"""Walks over sorted entries in descending order, and the factorwise maximisation oracle by them; compiled by Numba.

A label is marked if ``marked_row[a]`` (``marked_col[b]``, both int64) equals ``stamp``, so a new stamp clears all
marks. Untouched pairs are included, with value 0. Ties are broken arbitrarily but deterministically. Walks add the
number of visited entries to ``counters[VISITED]``.

Messages are zero except at a few marked labels, so the maximum over pairs is the best of four maxima. A walk
finds each and stops at values that cannot beat the best so far. The oracles return ``(value, a, b)``, or
``(-inf, -1, -1)`` if no pair is left. See [Y16, appendix C].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit
from torchssvm.solvers.gdmm.sorted_entries import (
    VISITED,
    SortedEntries,
    add,
    change,
    column_list,
    find,
    make_entries,
    room,
    row_list,
    value_of,
)


@njit
def walk(entries, which, marked_row, marked_col, stamp, excluded, force, best):
    """The largest v[a, b] of a list, or of its untouched pairs, if ``v[a, b] - force > best``.

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
        entry = walk(
            entries, column_list(entries, right_labels[p]), marked_row, marked_col, stamp, nothing, force, best
        )
        if entry[1] >= 0:
            best, a, b = entry[0] - force, entry[1], entry[2]
    for p in range(num_left if num_right < entries.cols else 0):
        force = left_force[p]
        entry = walk(entries, row_list(left_labels[p]), marked_row, marked_col, stamp, nothing, force, best)
        if entry[1] >= 0:
            best, a, b = entry[0] - force, entry[1], entry[2]
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
        entry = walk(entries, row_list(labels[p]), marked, marked, stamp, without, force[p], best)
        if entry[1] >= 0:
            best, a, b = entry[0] - force[p], entry[1], entry[2]
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
    if entries.size[which] == 0:
        return 0.0
    return max(entries.value[entries.pool[entries.start[which]] // 3], 0.0)


@njit
def _least(force, num):
    least = np.inf
    for p in range(num):
        least = min(least, force[p])
    return least


class PairWeights(NamedTuple):
    """Weights of label pairs: sorted entries, or a dense table where the domain is small."""

    entries: SortedEntries  # the touched entries; empty if ``dense`` is used
    dense: Any  # [K, K] float64, or ``[0, 0]``


def make_pairs(num_states: int, *, ordered: bool) -> PairWeights:
    """All zero; ``ordered`` keeps the weights sorted."""
    dense = np.zeros((0, 0) if ordered else (num_states, num_states))
    return PairWeights(make_entries(num_states, num_states), dense)


def as_list(pairs: PairWeights) -> tuple[np.ndarray, np.ndarray]:
    """Keys ``a K + b`` and weights of all pairs that may be nonzero."""
    if len(pairs.dense):
        return np.arange(pairs.dense.size), pairs.dense.reshape(-1)
    count = int(pairs.entries.counters[0])
    entries = pairs.entries
    return entries.row[:count].astype(np.int64) * entries.cols + entries.col[:count], entries.value[:count]


@njit
def room_for_pairs(pairs):
    """Number of new pairs that fit before more room is needed."""
    return 1 << 60 if len(pairs.dense) else room(pairs.entries)


@njit
def pair_value(pairs, a, b):
    """The weight of a pair."""
    return pairs.dense[a, b] if len(pairs.dense) else value_of(pairs.entries, a, b)


@njit
def add_to_pair(pairs, a, b, difference):
    """Change it."""
    if len(pairs.dense):
        pairs.dense[a, b] += difference
        return
    number = find(pairs.entries, a, b)
    if number < 0:
        add(pairs.entries, a, b, difference)
    else:
        change(pairs.entries, number, pairs.entries.value[number] + difference)


@njit
def best_pair(pairs, scratch, left, right):
    """Factorwise oracle: the pair of ``left`` and ``right`` labels with most ``v[a, b] - F_left(a) - F_right(b)``."""
    scratch.totals[2] += 1
    if len(pairs.dense):
        return _scan(pairs.dense, scratch, left, right)
    scratch.stamp[0] += 1
    labels, forces, marks = scratch.labels, scratch.forces, (scratch.marked_left, scratch.marked_right)
    sides = labels[0], forces[0], left, labels[1], forces[1], right
    _, a, b = indicator_fmo(pairs.entries, *sides, *marks, scratch.stamp[0])
    return a, b


@njit
def _scan(dense, scratch, left, right):
    states = len(dense)
    right_forces, left_forces = scratch.tables[0], scratch.tables[1]
    right_forces[:] = 0.0
    left_forces[:] = 0.0
    for p in range(left):
        left_forces[scratch.labels[0, p]] = scratch.forces[0, p]
    for p in range(right):
        right_forces[scratch.labels[1, p]] = scratch.forces[1, p]
    best, best_a, best_b = -np.inf, 0, 0
    for a in range(states):
        row = dense[a]
        for b in range(states):
            value = row[b] - right_forces[b] - left_forces[a]
            if value > best:
                best, best_a, best_b = value, a, b
    scratch.totals[1] += states * states
    return best_a, best_b
