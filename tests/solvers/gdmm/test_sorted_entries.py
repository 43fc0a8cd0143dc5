"""Sorted entries and the walks over them, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.problems import examples
from cases.random_entries import (
    STAMP,
    best_in_column,
    best_in_row,
    best_unmarked,
    check_found,
    check_heaps,
    dense,
    filled,
    marks,
    random_entries,
    some,
    touch,
)

from torchssvm.solvers.gdmm.sorted_entries import VISITED, from_state, room, state, value_of


@examples(60)
@random_entries
def test_entries_are_what_was_put_there(seed, rows, cols, symmetric, density, mean):
    rng = np.random.default_rng(seed)
    entries, v = filled(rng, rows, rows if symmetric else cols, symmetric, density, mean)
    np.testing.assert_array_equal(dense(entries), v)
    check_heaps(entries)
    for a, b in rng.integers(0, v.shape, (20, 2)).tolist():
        if not (symmetric and a == b):
            assert value_of(entries, a, b) == v[a, b]


@examples(120)
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


@pytest.mark.parametrize("symmetric", [False, True])
def test_resumes_to_the_same_bits(symmetric, tmp_path):
    rng = np.random.default_rng(3)
    first, _ = filled(rng, 12, 12, symmetric, 0.3, 0.0)
    first.counters[VISITED] = 7
    torch.save(state(first), tmp_path / "entries.pt")
    second = from_state(torch.load(tmp_path / "entries.pt", weights_only=True))
    assert second.counters[VISITED] == 7
    assert room(first) == room(second)
    marked = np.full(12, -1), np.full(12, -1)
    for stamp in range(100):
        a, b = rng.choice(12, 2, replace=False).tolist()
        value = float(rng.integers(-1, 2))  # so that many are equal, and only the order of heaps tells them apart
        first, second = touch(first, a, b, value), touch(second, a, b, value)
        answers = [best_unmarked(entries, *marked, STAMP) for entries in (first, second)]
        assert answers[0] == answers[1]
        marked[0][rng.integers(12)] = marked[1][rng.integers(12)] = STAMP if stamp % 3 == 0 else -1
    check_heaps(second)
    ours, theirs = state(first), state(second)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name]
