"""A sparse matrix that finds its largest entries, overall or in a row or column, without a scan.

The factorwise maximisation oracle of [Y16, appendix C] visits values in descending order while training keeps
changing them. So each entry is in three max-heaps: of all entries, of its row and of its column. Walks read a heap in
order without changing it (``torchssvm.solvers.gdmm.walks``), and a change of a value costs O(log).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit

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
    number = find(entries, a, b)
    return entries.value[number] if number >= 0 else 0.0


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
        number = entries.table[slot]
        if number < 0 or (entries.row[number] == a and entries.col[number] == b):
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


_MOST = 1 << 27  # so that every place in the pool is far below 2^31


class SortedEntries(NamedTuple):
    """A matrix ``[rows, cols]`` that is zero except at its touched entries, numbered in the order they came.

    Lists are numbered: 0 of all entries, 1 + a of row a, then those of the columns. In a symmetric matrix the unordered
    pair {a, b} is one entry with a < b, in the lists 1 + a and 1 + b: rows and columns share their lists.

    Walks write to ``frontier``, so only one thread may walk at a time.
    """

    rows: int
    cols: int
    symmetric: bool  # whether entries are unordered pairs of two different labels
    shift: int  # bits of a 64-bit hash to drop for ``table``
    row: Any  # [capacity] int32
    col: Any  # [capacity] int32
    value: Any  # [capacity] float64
    place: Any  # [3 capacity] int32: where entry e is in the heap of all (3e), its row (3e + 1), its column (3e + 2)
    table: Any  # [2^q] int32, at least half free: the entry of (row, column) by open addressing, -1 where none
    pool: Any  # [9 capacity] int32, heap after heap of the numbers 3e, 3e + 1 and 3e + 2; a full list moves to the end
    start: Any  # [lists] int64, where each begins in ``pool``
    size: Any  # [lists] int32
    list_capacity: Any  # [lists] int32
    frontier: Any  # [capacity] int32, positions in a list that a walk may visit next, as a heap
    frontier_value: Any  # [capacity] float64, the values at these positions
    counters: Any  # [3] int64: touched entries, end of the lists in the pool, what walks and oracles visited


def make_entries(rows: int, cols: int, *, symmetric: bool = False, capacity: int = 1024) -> SortedEntries:
    """A matrix of zeros; ``capacity`` entries fit before :func:`grown` is needed."""
    none, size = np.zeros(0, np.int32), np.zeros(1 + rows + (0 if symmetric else cols), np.int32)
    return _filled(rows, cols, symmetric, capacity, 0, none, none, np.zeros(0), none, size)


def grown(entries: SortedEntries, entries_wanted: int) -> SortedEntries:
    """A copy with the same order of all heaps, and with room for ``entries_wanted`` entries in all, or ValueError.

    Frees the unused parts of the pool. Shares no memory with ``entries``.
    """
    return _filled(**{**_contents(entries), "capacity": entries_wanted})


def state(entries: SortedEntries) -> dict[str, Tensor | int | bool]:
    """Everything that later results depend on: the entries, their order in all heaps, the capacity."""
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in _contents(entries).items()
    }


def from_state(state: dict[str, Any]) -> SortedEntries:
    """Entries that continue bit for bit from a state."""
    arrays: dict[str, Any] = {name: v.numpy() if isinstance(v, Tensor) else v for name, v in state.items()}
    return _filled(**arrays)


def _filled(
    rows: int,
    cols: int,
    symmetric: bool,
    capacity: int,
    visited: int,
    row: np.ndarray,
    col: np.ndarray,
    value: np.ndarray,
    heaps: np.ndarray,
    size: np.ndarray,
) -> SortedEntries:
    """Entries whose heaps, one after the other, are ``heaps``."""
    count = len(value)
    if not count <= capacity <= _MOST:
        raise ValueError(f"{capacity} label pairs exceed the limit {_MOST}: use fewer labels")
    bits = max(2 * capacity - 1, 1).bit_length()
    # Capacities of lists are powers of two. So a list of s entries takes at most 4 s of the pool, its abandoned places
    # included, and the pool has room for every list as long as entries fit.
    powers = 1 << np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64)
    list_capacity = np.where(size > 0, np.maximum(powers, SMALLEST_LIST), 0).astype(np.int32)
    list_capacity[0] = capacity
    start = np.cumsum(list_capacity, dtype=np.int64) - list_capacity
    within = np.arange(len(heaps)) - np.repeat(np.cumsum(size, dtype=np.int64) - size, size)
    entries = SortedEntries(
        rows=rows,
        cols=cols,
        symmetric=symmetric,
        shift=64 - bits,
        row=np.zeros(capacity, np.int32),
        col=np.zeros(capacity, np.int32),
        value=np.zeros(capacity),
        place=np.zeros(3 * capacity, np.int32),
        table=np.full(1 << bits, -1, np.int32),
        pool=np.zeros(9 * capacity, np.int32),
        start=start,
        size=size.copy(),
        list_capacity=list_capacity,
        frontier=np.zeros(capacity, np.int32),
        frontier_value=np.zeros(capacity),
        counters=np.array([count, start[-1] + list_capacity[-1], visited]),
    )
    entries.row[:count], entries.col[:count], entries.value[:count] = row, col, value
    entries.pool[np.repeat(start, size) + within] = heaps
    entries.place[heaps] = within
    fill_table(entries)
    return entries


def _contents(entries: SortedEntries) -> dict[str, Any]:
    count, before = int(entries.counters[COUNT]), np.cumsum(entries.size, dtype=np.int64) - entries.size
    return {
        "rows": entries.rows,
        "cols": entries.cols,
        "symmetric": entries.symmetric,
        "capacity": len(entries.value),
        "visited": int(entries.counters[VISITED]),
        "row": entries.row[:count],
        "col": entries.col[:count],
        "value": entries.value[:count],
        "heaps": entries.pool[np.arange(entries.size.sum()) + np.repeat(entries.start - before, entries.size)],
        "size": entries.size,
    }
