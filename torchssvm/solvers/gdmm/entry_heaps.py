"""Find, add and change sorted entries, compiled by Numba."""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit

COUNT, POOL_END, VISITED = 0, 1, 2
"""Places in ``SortedEntries.counters``."""
SMALLEST_LIST = 4

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: spreads close keys over the whole table


@njit
def room(entries):
    """Number of entries that may be added before ``grown`` is needed."""
    return len(entries.value) - entries.counters[COUNT]


@njit
def find(entries, a, b):
    """The number of entry (a, b), or -1 where it is untouched."""
    if entries.symmetric and a > b:
        a, b = b, a
    return entries.table[_slot(entries, a, b)]


@njit
def value_of(entries, a, b):
    """v[a, b], 0 where it is untouched."""
    held = find(entries, a, b)
    return entries.value[held] if held >= 0 else 0.0


@njit
def add(entries, a, b, value):
    """Add the untouched entry (a, b); returns its number. Needs ``room``."""
    if entries.symmetric and a > b:
        a, b = b, a
    new = entries.counters[COUNT]
    entries.counters[COUNT] = new + 1
    entries.row[new], entries.col[new], entries.value[new] = a, b, value
    entries.table[_slot(entries, a, b)] = new
    _append(entries, 0, 3 * new)
    _append(entries, row_list(a), 3 * new + 1)
    _append(entries, column_list(entries, b), 3 * new + 2)
    return new


@njit
def change(entries, number, value):
    """Change the value of the touched entry ``number``."""
    up = value > entries.value[number]
    entries.value[number] = value
    a, b = entries.row[number], entries.col[number]
    _move(entries, 0, entries.place[3 * number], up)
    _move(entries, row_list(a), entries.place[3 * number + 1], up)
    _move(entries, column_list(entries, b), entries.place[3 * number + 2], up)


@njit
def row_list(a):
    """The list of row a."""
    return 1 + a


@njit
def column_list(entries, b):
    """The list of column b."""
    return 1 + b if entries.symmetric else 1 + entries.rows + b


@njit
def fill_table(entries):
    """Fill the empty hash table with the touched entries."""
    for number in range(entries.counters[COUNT]):
        entries.table[_slot(entries, entries.row[number], entries.col[number])] = number


@njit
def _slot(entries, a, b):
    """The position of (a, b) in the table, or the free one for it."""
    key = np.uint64(a * entries.cols + b)
    slot = np.int64((key * _GOLDEN) >> np.uint64(entries.shift))
    while True:
        held = entries.table[slot]
        if held < 0 or (entries.row[held] == a and entries.col[held] == b):
            return slot
        slot = (slot + 1) & (len(entries.table) - 1)


@njit
def _append(entries, which, item):
    """Put 3e, 3e + 1 or 3e + 2 on a list, for entry e."""
    size, capacity = entries.size[which], entries.list_capacity[which]
    if size == capacity:
        old, new = entries.start[which], entries.counters[POOL_END]
        for at in range(size):
            entries.pool[new + at] = entries.pool[old + at]
        entries.start[which] = new
        entries.list_capacity[which] = max(2 * capacity, SMALLEST_LIST)
        entries.counters[POOL_END] = new + entries.list_capacity[which]
    entries.size[which] = size + 1
    entries.pool[entries.start[which] + size] = item
    _move(entries, which, size, True)


@njit
def _move(entries, which, at, up):
    """Restore the heap after the value at ``at`` has become larger (``up``) or smaller."""
    start, size = entries.start[which], entries.size[which]
    item = entries.pool[start + at]
    value = entries.value[item // 3]
    if up:
        while at > 0:
            above = (at - 1) >> 1
            other = entries.pool[start + above]
            if entries.value[other // 3] >= value:
                break
            entries.pool[start + at] = other
            entries.place[other] = at
            at = above
    else:
        while 2 * at + 1 < size:
            below = 2 * at + 1
            other = entries.pool[start + below]
            if below + 1 < size and entries.value[entries.pool[start + below + 1] // 3] > entries.value[other // 3]:
                below += 1
                other = entries.pool[start + below]
            if entries.value[other // 3] <= value:
                break
            entries.pool[start + at] = other
            entries.place[other] = at
            at = below
    entries.pool[start + at] = item
    entries.place[item] = at
