"""A sparse matrix whose largest entries are found without a scan: of all of it, of a row, of a column.

The factorwise maximisation oracle of [Y16, appendix C] visits values in descending order while training keeps
changing them. Entries are therefore in three max-heaps each: of all entries, of their row, of their column. A heap
gives its entries in order without being taken apart (``torchssvm.solvers.gdmm.walks``), and a change costs O(log).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.solvers.gdmm.entry_heaps import COUNT, SMALLEST_LIST, VISITED, fill_table

_MOST = 1 << 27  # so that every place in the pool is far below 2^31


class SortedEntries(NamedTuple):
    """A matrix ``[rows, cols]`` that is zero except at its touched entries, numbered in the order they came.

    Lists are numbered: 0 of all entries, 1 + a of row a, then those of the columns. In a symmetric matrix the unordered
    pair {a, b} is one entry with a < b, in the lists 1 + a and 1 + b: rows and columns have their lists in common.

    The walks use ``frontier``, so that no two threads may walk at the same time.

    Attributes:
        rows: Of the matrix.
        cols: Of the matrix.
        symmetric: Whether entries are unordered pairs of two different labels.
        shift: Bits of a 64-bit hash that are too many for ``table``.
        row: ``[capacity]`` int32.
        col: ``[capacity]`` int32.
        value: ``[capacity]`` float64.
        place: ``[3 capacity]`` int32, where entry e is: at 3e in the heap of all, at 3e + 1 in that of its row, at
            3e + 2 in that of its column.
        table: ``[2^q]`` int32, at least half of it free: the entry of (row, column) by open addressing, -1 where none.
        pool: ``[9 capacity]`` int32, the heaps, list after list, of these numbers 3e, 3e + 1 and 3e + 2, so that each
            is there once; a list that is full moves to the end.
        start: ``[lists]`` int64, where each begins in ``pool``.
        size: ``[lists]`` int32.
        list_capacity: ``[lists]`` int32.
        frontier: ``[capacity]`` int32, places in a list: those that a walk may visit next, as a heap.
        frontier_value: ``[capacity]`` float64, what they hold.
        counters: ``[3]`` int64: touched entries, the end of the lists in the pool, what walks and oracles visited.
    """

    rows: int
    cols: int
    symmetric: bool
    shift: int
    row: Any
    col: Any
    value: Any
    place: Any
    table: Any
    pool: Any
    start: Any
    size: Any
    list_capacity: Any
    frontier: Any
    frontier_value: Any
    counters: Any


def make_entries(rows: int, cols: int, *, symmetric: bool = False, capacity: int = 1024) -> SortedEntries:
    """A matrix of zeros.

    Args:
        rows: At least 1.
        cols: At least 1; the same as ``rows`` where symmetric.
        symmetric: Whether entries are unordered pairs of two different labels.
        capacity: How many entries may be touched before :func:`grown` is due.

    Raises:
        ValueError: A number is out of range.
    """
    for name, number in (("rows", rows), ("cols", cols)):
        if not 1 <= number < 2**31:
            raise ValueError(f"{name} is {number}; a matrix needs at least 1 and less than 2^31")
    if symmetric and rows != cols:
        raise ValueError(f"rows is {rows} and cols is {cols}; a symmetric matrix has as many of both")
    lists = 1 + rows + (0 if symmetric else cols)
    nothing = np.zeros(0, np.int32)
    return _filled(rows, cols, symmetric, capacity, nothing, nothing, np.zeros(0), nothing, np.zeros(lists, np.int32))


def grown(entries: SortedEntries, entries_wanted: int) -> SortedEntries:
    """The same entries in the same order of all heaps, with room for ``entries_wanted`` altogether.

    What lists have left behind in the pool is given back. No memory is shared with ``entries``.

    Raises:
        ValueError: More are touched than wanted, or more are wanted than can be numbered.
    """
    count = int(entries.counters[COUNT])
    grown = _filled(
        entries.rows,
        entries.cols,
        entries.symmetric,
        entries_wanted,
        entries.row[:count],
        entries.col[:count],
        entries.value[:count],
        _heaps(entries),
        entries.size,
    )
    grown.counters[VISITED] = entries.counters[VISITED]
    return grown


def state(entries: SortedEntries) -> dict[str, Tensor | int | bool]:
    """Everything of which later answers are made: the entries, their order in all heaps, the capacity."""
    count = int(entries.counters[COUNT])
    return {
        "rows": entries.rows,
        "cols": entries.cols,
        "symmetric": entries.symmetric,
        "capacity": len(entries.value),
        "visited": int(entries.counters[VISITED]),
        "row": torch.from_numpy(entries.row[:count].copy()),
        "col": torch.from_numpy(entries.col[:count].copy()),
        "value": torch.from_numpy(entries.value[:count].copy()),
        "heaps": torch.from_numpy(_heaps(entries)),
        "size": torch.from_numpy(entries.size.copy()),
    }


def from_state(state: dict[str, Any]) -> SortedEntries:
    """Entries as :func:`state` found them, which go on to the same bits.

    Raises:
        ValueError: Something is missing, or the parts do not fit together.
    """
    names = ("rows", "cols", "symmetric", "capacity", "visited", "row", "col", "value", "heaps", "size")
    missing = [name for name in names if name not in state]
    if missing:
        raise ValueError(f"the state of sorted entries lacks {', '.join(missing)}; it must be one that state() made")
    numbers = [state[name] for name in names[:5]]
    if not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"{', '.join(names[:5])} must be whole numbers, not {numbers}")
    arrays = [np.asarray(state[name]) for name in names[5:]]
    if not all(array.ndim == 1 and array.dtype.kind in "if" for array in arrays):
        raise ValueError(f"{', '.join(names[5:])} must be tensors of numbers with one dimension")
    empty = make_entries(*numbers[:2], symmetric=numbers[2], capacity=0)
    _check_state(empty, *arrays)
    entries = _filled(*numbers[:4], *arrays)
    entries.counters[VISITED] = numbers[4]
    return entries


def _filled(
    rows: int,
    cols: int,
    symmetric: bool,
    capacity: int,
    row: np.ndarray,
    col: np.ndarray,
    value: np.ndarray,
    heaps: np.ndarray,
    size: np.ndarray,
) -> SortedEntries:
    """Entries whose heaps, one after the other, are ``heaps``."""
    count = len(value)
    if not count <= capacity <= _MOST:
        raise ValueError(f"there are {count} entries and room for {capacity} is wanted; it can be up to {_MOST}")
    bits = max(2 * capacity - 1, 1).bit_length()
    # Lists hold powers of two, so that one of s entries takes up at most 4 s of the pool, together with all the places
    # that it has left since the pool was made: there is room for every list as long as there is for entries.
    list_capacity = np.where(size > 0, np.maximum(_power_of_two(size), SMALLEST_LIST), 0).astype(np.int32)
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
        counters=np.array([count, start[-1] + list_capacity[-1], 0]),
    )
    entries.row[:count], entries.col[:count], entries.value[:count] = row, col, value
    entries.pool[np.repeat(start, size) + within] = heaps
    entries.place[heaps] = within
    fill_table(entries)
    return entries


def _heaps(entries: SortedEntries) -> np.ndarray:
    """All lists, one after the other."""
    before = np.cumsum(entries.size, dtype=np.int64) - entries.size
    return entries.pool[np.arange(entries.size.sum()) + np.repeat(entries.start - before, entries.size)]


def _power_of_two(numbers: np.ndarray) -> np.ndarray:
    """The least that is not smaller; numbers below 2^31."""
    return 1 << np.ceil(np.log2(np.maximum(numbers, 1))).astype(np.int64)


def _check_state(
    empty: SortedEntries, row: np.ndarray, col: np.ndarray, value: np.ndarray, heaps: np.ndarray, size: np.ndarray
) -> None:
    count, lists = len(value), len(empty.size)
    types = [(row, np.int32), (col, np.int32), (value, np.float64), (heaps, np.int32), (size, np.int32)]
    if any(array.dtype != dtype or array.ndim != 1 for array, dtype in types):
        raise ValueError("row, col, heaps and size must be int32 and value float64, each with one dimension")
    if (len(row), len(col), len(heaps), len(size)) != (count, count, 3 * count, lists):
        raise ValueError(f"row, col, heaps and size must have {count}, {count}, {3 * count} and {lists} numbers")
    if not np.isfinite(value).all():
        raise ValueError("value has entries that are not finite")
    inside = (row >= 0) & (row < empty.rows) & (col >= 0) & (col < empty.cols)
    if not inside.all() or (empty.symmetric and not (row < col).all()):
        raise ValueError(f"row or col is out of range of [{empty.rows}, {empty.cols}]")
    if len(np.unique(row * np.int64(empty.cols) + col)) != count:
        raise ValueError("row and col name an entry twice")
    if not np.array_equal(np.sort(heaps), np.arange(3 * count)):
        raise ValueError("heaps does not hold every entry three times")
    column_list = col.astype(np.int64) + 1 + (0 if empty.symmetric else empty.rows)
    belongs = np.stack([np.zeros(count, np.int64), row.astype(np.int64) + 1, column_list], 1).reshape(-1)[heaps]
    if not np.array_equal(size, np.bincount(belongs, minlength=lists)):
        raise ValueError("size does not fit row and col")
    if not np.array_equal(belongs, np.repeat(np.arange(lists), size)):
        raise ValueError("heaps has entries in lists that are not theirs")
    first = np.repeat(np.cumsum(size, dtype=np.int64) - size, size)
    above = first + np.maximum(np.arange(len(heaps)) - first - 1, 0) // 2
    if (value[heaps // 3] > value[heaps[above] // 3]).any():
        raise ValueError("heaps are not in the order of value")
