"""Random sorted entries, and what is true of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.compiler.jit import njit
from torchssvm.solvers.gdmm.sorted_entries import (
    COUNT,
    POOL_END,
    SortedEntries,
    add,
    change,
    column_list,
    find,
    grown,
    make_entries,
    room,
    row_list,
    value_of,
)
from torchssvm.solvers.gdmm.walks import walk

STAMP = 5


def dense(entries: SortedEntries) -> np.ndarray:
    """v, ``[rows, cols]`` float64; of a symmetric matrix both halves."""
    count = entries.counters[COUNT]
    row, col, value = entries.row[:count], entries.col[:count], entries.value[:count]
    values = np.zeros((entries.rows, entries.cols))
    values[row, col] = value
    if entries.symmetric:
        values[col, row] = value
    return values


def brute_force_fmo(
    values: np.ndarray, left_force: np.ndarray, right_force: np.ndarray, allowed: np.ndarray | None = None
) -> tuple[float, int, int]:
    """Maximise v[a, b] - F_left(a) - F_right(b): ``(value, a, b)``, the first of equal maxima.

    Args:
        values: ``[A, B]`` float64.
        left_force: ``[A]`` float64.
        right_force: ``[B]`` float64.
        allowed: ``[A, B]`` bool, the pairs to consider; None for all. Without any, returns ``(-inf, -1, -1)``.
    """
    total = values - left_force[:, None] - right_force[None, :]
    if allowed is not None:
        if not allowed.any():
            return -np.inf, -1, -1
        total = np.where(allowed, total, -np.inf)
    a, b = np.unravel_index(total.argmax(), total.shape)
    return float(total[a, b]), int(a), int(b)


def numbers(rng: np.random.Generator, count: int, mean: float = 0.0) -> np.ndarray:
    """Eighths, so that all sums are exact and some values come twice."""
    return np.round(8 * rng.normal(mean, 1.0, count)) / 8


def touch(entries: SortedEntries, a: int, b: int, value: float) -> SortedEntries:
    stored = find(entries, a, b)
    if stored >= 0:
        change(entries, stored, value)
        return entries
    if not room(entries):
        entries = grown(entries, 2 * int(entries.counters[COUNT]) + 1)
    add(entries, a, b, value)
    return entries


def filled(rng: np.random.Generator, rows: int, cols: int, symmetric: bool, density: float, mean: float) -> tuple:
    """Entries after random changes, and v."""
    entries = make_entries(rows, cols, symmetric=symmetric, capacity=int(rng.integers(0, 4)))
    v = np.zeros((rows, cols))
    pairs = np.argwhere(rng.random((rows, cols)) < density)
    if symmetric:
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    if len(pairs):
        pairs = pairs[rng.integers(0, len(pairs), 2 * len(pairs))] if rng.random() < 0.5 else rng.permutation(pairs)
    for (a, b), value in zip(pairs.tolist(), numbers(rng, len(pairs), mean).tolist(), strict=True):
        entries = touch(entries, a, b, value)
        v[a, b] = value
        if symmetric:
            v[b, a] = value
    return entries, v


def some(rng: np.random.Generator, size: int) -> np.ndarray:
    """Different labels, from none to all."""
    return rng.permutation(size)[: rng.integers(0, size + 1)]


def marks(size: int, labels: np.ndarray) -> np.ndarray:
    marked = np.full(size, STAMP - 1)
    marked[labels] = STAMP
    return marked


def spread(size: int, labels: np.ndarray, force: np.ndarray) -> np.ndarray:
    full = np.zeros(size)
    full[labels] = force
    return full


def check_found(entry: tuple, v: np.ndarray, allowed: np.ndarray, left: Any = None, right: Any = None) -> None:
    """``entry`` is a largest of the allowed pairs."""
    left = np.zeros(len(v)) if left is None else left
    right = np.zeros(v.shape[1]) if right is None else right
    value, a, b = entry
    best = brute_force_fmo(v, left, right, allowed)
    assert value == best[0]
    if best[1] < 0:
        assert (a, b) == (-1, -1)
    else:
        assert allowed[a, b]
        assert v[a, b] - left[a] - right[b] == value


def check_heaps(entries: SortedEntries) -> None:
    """Each list holds its entries, in the order of a heap, where they are said to be; no two lists overlap."""
    count = int(entries.counters[COUNT])
    row, col = entries.row[:count].astype(int), entries.col[:count].astype(int)
    lists: list[list[int]] = [[] for _ in entries.size]
    for number in range(count):
        for kind, which in enumerate((0, 1 + row[number], column_list(entries, col[number]))):
            lists[which].append(number)
            assert entries.pool[entries.start[which] + entries.place[3 * number + kind]] == 3 * number + kind
    used = []
    for which, members in enumerate(lists):
        begin, size = entries.start[which], entries.size[which]
        heap = entries.pool[begin : begin + size]
        assert sorted((heap // 3).tolist()) == members
        values = entries.value[heap // 3]
        assert all(values[(at - 1) // 2] >= values[at] for at in range(1, size))
        used.extend(range(begin, begin + entries.list_capacity[which]))
    assert len(used) == len(set(used))
    assert max(used, default=-1) < entries.counters[POOL_END] <= len(entries.pool)


random_entries = given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    cols=st.integers(1, 40),
    symmetric=st.booleans(),
    density=st.sampled_from([0.0, 0.02, 0.2, 0.9, 1.0]),
    mean=st.sampled_from([-8.0, -1.0, 0.0, 2.0]),
)


@njit
def touch_all(entries, row, col, value, at):
    """Touch or change one after the other from ``at`` on, as long as there is room; returns where it stopped."""
    while at < len(row):
        stored = find(entries, row[at], col[at])
        if stored >= 0:
            change(entries, stored, value[at])
        elif room(entries) > 0:
            add(entries, row[at], col[at], value[at])
        else:
            break
        at += 1
    return at


@njit
def count_wrong(entries, v):
    """Labels whose value is looked up wrong."""
    wrong = 0
    for a in range(v.shape[0]):
        for b in range(v.shape[1]):
            wrong += value_of(entries, a, b) != v[a, b]
    return wrong


def zipf(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    mass = 1.0 / np.arange(1, size + 1)
    return rng.choice(size, count, p=mass / mass.sum())


def large(rng: np.random.Generator, size: int, count: int, mean: float = 0.0) -> SortedEntries:
    """Labels as frequent as words are, ``count`` times a pair of them."""
    entries, at = make_entries(size, size, capacity=16), 0
    row, col, value = zipf(rng, size, count), zipf(rng, size, count), numbers(rng, count, mean)
    while (at := touch_all(entries, row, col, value, at)) < count:
        entries = grown(entries, 2 * len(entries.value))
    return entries


@njit
def best_unmarked(entries, marked_row, marked_col, stamp):
    """The largest v[a, b] with neither a nor b marked: ``(value, a, b)``, or ``(-inf, -1, -1)`` if there is none."""
    return walk(entries, 0, marked_row, marked_col, stamp, marked_row[:0], 0.0, -np.inf)


@njit
def best_in_row(entries, a, marked_col, stamp):
    """The largest v[a, b] with b not marked, likewise; in a symmetric matrix the result has a < b."""
    return walk(entries, row_list(a), marked_col, marked_col, stamp, marked_col[:0], 0.0, -np.inf)


@njit
def best_in_column(entries, b, marked_row, stamp):
    """The largest v[a, b] with a not marked, likewise."""
    return walk(entries, column_list(entries, b), marked_row, marked_row, stamp, marked_row[:0], 0.0, -np.inf)
