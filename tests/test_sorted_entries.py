"""Sorted entries and the walks over them, against dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchssvm.factorwise.brute_force import brute_force_fmo, dense
from torchssvm.factorwise.sorted_entries import (
    COUNT,
    POOL_END,
    SortedEntries,
    grown,
    make_entries,
)

pytest.importorskip("numba")

from torchssvm.factorwise.entry_heaps import add, change, column_list, find, room, value_of
from torchssvm.factorwise.maximisation import indicator_fmo, interaction_fmo
from torchssvm.factorwise.walks import best_in_column, best_in_row, best_unmarked

STAMP = 5


def numbers(rng: np.random.Generator, count: int, mean: float = 0.0) -> np.ndarray:
    """Eighths, so that all sums are exact and some values come twice."""
    return np.round(8 * rng.normal(mean, 1.0, count)) / 8


def touch(entries: SortedEntries, a: int, b: int, value: float) -> SortedEntries:
    held = find(entries, a, b)
    if held >= 0:
        change(entries, held, value)
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


def check_found(found: tuple, v: np.ndarray, allowed: np.ndarray, left: Any = None, right: Any = None) -> None:
    """``found`` is a largest of the allowed pairs."""
    left = np.zeros(len(v)) if left is None else left
    right = np.zeros(v.shape[1]) if right is None else right
    value, a, b = found
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
            assert entries.pool[entries.start[which] + entries.place[number, kind]] == number
    used = []
    for which, members in enumerate(lists):
        begin, size = entries.start[which], entries.size[which]
        heap = entries.pool[begin : begin + size]
        assert sorted(heap.tolist()) == members
        values = entries.value[heap]
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


@settings(max_examples=60, deadline=None)
@random_entries
def test_entries_are_what_was_put_there(seed, rows, cols, symmetric, density, mean):
    rng = np.random.default_rng(seed)
    entries, v = filled(rng, rows, rows if symmetric else cols, symmetric, density, mean)
    np.testing.assert_array_equal(dense(entries), v)
    check_heaps(entries)
    for a, b in rng.integers(0, v.shape, (20, 2)).tolist():
        if not (symmetric and a == b):
            assert value_of(entries, a, b) == v[a, b]


@settings(max_examples=120, deadline=None)
@random_entries
def test_walks_find_the_largest_that_is_not_marked(seed, rows, cols, symmetric, density, mean):
    rng = np.random.default_rng(seed)
    entries, v = filled(rng, rows, rows if symmetric else cols, symmetric, density, mean)
    rows, cols = v.shape
    pairs = ~np.eye(rows, dtype=bool) if symmetric else np.ones((rows, cols), bool)
    left, right = marks(rows, some(rng, rows)), marks(cols, some(rng, cols))
    if symmetric:
        right = left
    free = (left != STAMP)[:, None] & (right != STAMP)[None, :]
    check_found(best_unmarked(entries, left, right, STAMP), v, free & pairs)
    for a in rng.integers(0, rows, 3).tolist():
        allowed = pairs & (right != STAMP)[None, :]
        allowed[np.arange(rows) != a] = False
        check_found(best_in_row(entries, a, right, STAMP), v, allowed | allowed.T if symmetric else allowed)
    for b in rng.integers(0, cols, 3).tolist():
        allowed = pairs & (left != STAMP)[:, None]
        allowed[:, np.arange(cols) != b] = False
        check_found(best_in_column(entries, b, left, STAMP), v, allowed | allowed.T if symmetric else allowed)


@settings(max_examples=120, deadline=None)
@random_entries
def test_indicator_oracle(seed, rows, cols, symmetric, density, mean):
    rng = np.random.default_rng(seed)
    entries, v = filled(rng, rows, cols, False, density, mean)
    left_labels, right_labels = some(rng, rows), some(rng, cols)
    left, right = numbers(rng, rows, rng.normal()), numbers(rng, cols, rng.normal())
    marked_row, marked_col = np.full(rows, -1), np.full(cols, -1)
    both = (len(left_labels), len(right_labels)), (min(1, len(left_labels)), min(2, len(right_labels)))
    for stamp, sizes in enumerate(both):
        found = indicator_fmo(
            entries, left_labels, left, sizes[0], right_labels, right, sizes[1], marked_row, marked_col, stamp
        )
        forces = [
            spread(size, labels[:num], force[:num])
            for size, labels, force, num in zip(
                (rows, cols), (left_labels, right_labels), (left, right), sizes, strict=True
            )
        ]
        check_found(found, v, np.ones_like(v, dtype=bool), *forces)


@settings(max_examples=120, deadline=None)
@random_entries
def test_interaction_oracle(seed, rows, cols, symmetric, density, mean):
    rng = np.random.default_rng(seed)
    entries, v = filled(rng, rows, rows, True, density, mean)
    labels, force = some(rng, rows), numbers(rng, rows, rng.normal())
    allowed = np.triu(rng.random((rows, rows)) < rng.choice([0.0, 0.5, 1.0]), 1)
    excluded = np.flatnonzero(np.triu(~allowed, 1))
    excluded = np.concatenate([excluded, [-1, -1]])  # what is after num_excluded does not count
    found = interaction_fmo(entries, labels, force, len(labels), excluded, len(excluded) - 2, np.full(rows, -1), STAMP)
    full = spread(rows, labels, force[: len(labels)])
    check_found(found, v, allowed, full, full)
