"""Weights of label pairs, and the factorwise oracle over them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.solvers.gdmm.entry_heaps import add, change, find, room, value_of
from torchssvm.solvers.gdmm.sorted_entries import SortedEntries, make_entries
from torchssvm.solvers.gdmm.walks import indicator_fmo


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
    held = find(pairs.entries, a, b)
    if held < 0:
        add(pairs.entries, a, b, difference)
    else:
        change(pairs.entries, held, pairs.entries.value[held] + difference)


@njit
def best_pair(pairs, scratch, left, right):
    """Factorwise oracle: the pair with the largest ``v[a, b] - F_left(a) - F_right(b)``, of ``left`` and ``right``
    labels.
    """
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
    """All pairs, row after row."""
    states = len(dense)
    forces, own = scratch.tables[0], scratch.tables[1]
    forces[:] = 0.0
    own[:] = 0.0
    for p in range(left):
        own[scratch.labels[0, p]] = scratch.forces[0, p]
    for p in range(right):
        forces[scratch.labels[1, p]] = scratch.forces[1, p]
    best, found_a, found_b = -np.inf, 0, 0
    for a in range(states):
        row = dense[a]
        for b in range(states):
            value = row[b] - forces[b] - own[a]
            if value > best:
                best, found_a, found_b = value, a, b
    scratch.totals[1] += states * states
    return found_a, found_b
