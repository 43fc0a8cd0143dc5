"""The factorwise maximisation oracle against all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from cases.problems import examples
from cases.random_entries import (
    STAMP,
    check_found,
    check_heaps,
    count_wrong,
    dense,
    filled,
    large,
    numbers,
    random_entries,
    some,
    spread,
    zipf,
)

from torchssvm.solvers.gdmm.sorted_entries import COUNT, VISITED
from torchssvm.solvers.gdmm.walks import best_entry

NOTHING = np.zeros(0, np.int64)


@examples(120)
@random_entries
def test_indicator_oracle(seed, rows, cols, symmetric, density, mean):
    rng = np.random.default_rng(seed)
    entries, v = filled(rng, rows, cols, False, density, mean)
    left_labels, right_labels = some(rng, rows), some(rng, cols)
    left, right = numbers(rng, rows, rng.normal()), numbers(rng, cols, rng.normal())
    marked_row, marked_col = np.full(rows, -1), np.full(cols, -1)
    both = (len(left_labels), len(right_labels)), (min(1, len(left_labels)), min(2, len(right_labels)))
    for stamp, sizes in enumerate(both):
        sides = left_labels, left, sizes[0], right_labels, right, sizes[1]
        result = best_entry(entries, *sides, NOTHING, (marked_row, marked_col), stamp)
        forces = [
            spread(size, labels[:num], force[:num])
            for size, labels, force, num in zip(
                (rows, cols), (left_labels, right_labels), (left, right), sizes, strict=True
            )
        ]
        check_found(result, v, np.ones_like(v, dtype=bool), *forces)


@examples(120)
@random_entries
def test_interaction_oracle(seed, rows, cols, symmetric, density, mean):
    rng = np.random.default_rng(seed)
    entries, v = filled(rng, rows, rows, True, density, mean)
    labels, force = some(rng, rows).astype(np.int32), numbers(rng, rows, rng.normal())
    allowed = np.triu(rng.random((rows, rows)) < rng.choice([0.0, 0.5, 1.0]), 1)
    excluded = np.flatnonzero(np.triu(~allowed, 1))
    side, marks = (labels, force, len(labels)), (np.full(rows, -1),) * 2
    result = best_entry(entries, *side, *side, excluded, marks, STAMP)
    full = spread(rows, labels, force[: len(labels)])
    check_found(result, v, allowed, full, full)


@pytest.mark.parametrize("mean", [0.0, -8.0])
def test_thousands_of_labels(mean):
    rng = np.random.default_rng(0)
    entries = large(rng, 2000, 110_000, mean)
    assert entries.counters[COUNT] > 50_000
    check_heaps(entries)
    v = dense(entries)
    assert count_wrong(entries, v) == 0
    marked_row, marked_col = np.full(2000, -1), np.full(2000, -1)
    for stamp in range(20):  # each is compared with four million pairs
        left_labels, right_labels = np.unique(zipf(rng, 2000, 12)), np.unique(zipf(rng, 2000, 12))
        left, right = numbers(rng, len(left_labels), 1.0), numbers(rng, len(right_labels), 1.0)
        sides = left_labels, left, len(left_labels), right_labels, right, len(right_labels)
        result = best_entry(entries, *sides, NOTHING, (marked_row, marked_col), stamp)
        forces = spread(2000, left_labels, left), spread(2000, right_labels, right)
        check_found(result, v, np.ones_like(v, dtype=bool), *forces)


def test_what_is_visited_hardly_grows_with_the_domain():
    visited = []
    for size in (100, 1000, 3000):
        rng = np.random.default_rng(size)
        entries = large(rng, size, 30 * size)
        marked = np.full(size, -1), np.full(size, -1)
        for stamp in range(100):
            labels = np.unique(zipf(rng, size, 8)), np.unique(zipf(rng, size, 8))
            force = numbers(rng, 8, 1.0), numbers(rng, 8, 1.0)
            sides = labels[0], force[0], len(labels[0]), labels[1], force[1], len(labels[1])
            best_entry(entries, *sides, NOTHING, marked, stamp)
        visited.append(entries.counters[VISITED] / 100)
    assert visited[0] >= 1
    assert visited[1] < 10 * visited[0]
    assert visited[2] < 30 * visited[0]  # 900 times as many pairs
    assert visited[2] < 100
