"""The weights of all label pairs, and the factorwise oracle on them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit
from torchssvm.solvers.gdmm.sorted_entries import SortedEntries, add, change, find, make_entries, room, value_of
from torchssvm.solvers.gdmm.walks import best_entry


class PairWeights(NamedTuple):
    """Weights of label pairs: sorted entries for the sorted oracle, and a table for all others and for label sets."""

    ordered: bool  # whether ``entries`` hold the weights
    entries: SortedEntries  # the touched pairs
    dense: Any  # [K, K] float64, or ``[0, 0]`` where only ``entries`` hold the weights


def make_pairs(num_states: int, *, ordered: bool, symmetric: bool = False) -> PairWeights:
    """All zero; unordered pairs are ``symmetric``, and always have the table."""
    dense = np.zeros((num_states, num_states) if symmetric or not ordered else (0, 0))
    return PairWeights(ordered, make_entries(num_states, num_states, symmetric=symmetric), dense)


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
    return room(pairs.entries) if pairs.ordered else 1 << 60


@njit
def pair_value(pairs, a, b):
    """The weight of a pair."""
    return pairs.dense[a, b] if len(pairs.dense) else value_of(pairs.entries, a, b)


@njit
def add_to_pair(pairs, a, b, difference):
    """Add ``difference`` to the weight of a pair."""
    if len(pairs.dense):
        pairs.dense[a, b] += difference
        if pairs.entries.symmetric:
            pairs.dense[b, a] = pairs.dense[a, b]
    if pairs.ordered:
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
    labels, forces, marks = scratch.labels, scratch.forces, scratch.marks
    sides = labels[0], forces[0], left, labels[1], forces[1], right
    _, a, b = best_entry(pairs.entries, *sides, marks[0][:0], marks, scratch.stamp[0])
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
