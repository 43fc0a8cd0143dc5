"""Bounds of chains in GDMM: hinges by Viterbi over few pairs, and pair distributions that agree with the tokens'.

Transitions are zero except for pairs that some dual contains. Viterbi looks at these pairs, and at the best previous
label without such a pair: O(pairs + K) for each token instead of K^2. Pair distributions with common marginals are the
marginals of a distribution over labelings, so that rounding gives a feasible dual point of the structural SVM.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit
from torchssvm.solvers.gdmm.chain_pass import Duals, fill_scores
from torchssvm.solvers.gdmm.ragged import Ragged, offsets, place_of
from torchssvm.structures.maxplus import first_of_largest

BEST = 32  # number of best previous labels that are kept sorted


class Columns(NamedTuple):
    """A sparse matrix of transitions by its columns, the next labels."""

    start: Any  # [K + 1] int64
    row: Any  # [pairs] int32, ascending in every column
    value: Any  # [pairs] float64


def columns_of(key: np.ndarray, value: np.ndarray, num_states: int) -> Columns:
    """Sums of values ``[M]`` float64 by their keys ``a K + b``, ``[M]`` int64, which may repeat."""
    by_column = (key % num_states) * num_states + key // num_states
    pairs, place = np.unique(by_column, return_inverse=True)
    sums = np.bincount(place, weights=value, minlength=len(pairs))
    start = np.searchsorted(pairs, np.arange(num_states + 1) * num_states)
    return Columns(start.astype(np.int64), (pairs % num_states).astype(np.int32), sums)


@njit
def exact_hinges(begin, end, tokens, weights, columns, tables, best, stamps, hinges):
    """Structured hinges of the chains ``begin`` to ``end - 1``, at ``weights`` ``[F, K]``, into ``hinges`` ``[n]``.

    Scratch: ``tables`` ``[3, K]``; ``best`` ``[BEST]`` int64; ``stamps`` ``[K]`` int64, zero.
    """
    states = len(columns.start) - 1
    scores, previous, following = tables[0], tables[1], tables[2]
    clock = 0
    for i in range(begin, end):
        true = 0.0
        for t in range(tokens.start[i], tokens.start[i + 1]):
            fill_scores(t, tokens, weights, scores)
            true += scores[tokens.y[t]]
            if t == tokens.start[i]:
                for k in range(states):
                    previous[k] = scores[k]
                continue
            true += _value(columns, tokens.y[t - 1], tokens.y[t])
            many = _order_best(previous, best)
            for b in range(states):
                clock += 1
                following[b] = scores[b] + _best_before(b, previous, columns, best, many, stamps, clock)
            for k in range(states):
                previous[k] = following[k]
        hinges[i] = previous[first_of_largest(previous, states)] - true


@njit
def _best_before(b, previous, columns, best, many, stamps, clock):
    """``max_a previous[a] + transition[a, b]``."""
    first, largest, met = best[0], -1.0e300, False
    for q in range(columns.start[b], columns.start[b + 1]):
        a = columns.row[q]
        met |= a == first
        value = previous[a] + columns.value[q]
        if value > largest:
            largest = value
    if not met:
        return max(largest, previous[first])
    for q in range(columns.start[b], columns.start[b + 1]):
        stamps[columns.row[q]] = clock
    for c in range(many):
        if stamps[best[c]] != clock:
            return max(largest, previous[best[c]])
    for a in range(len(previous)):
        if stamps[a] != clock:
            largest = max(largest, previous[a])
    return largest


@njit
def _order_best(values, best):
    """Write the positions of the largest values, sorted, to ``best``; returns their number."""
    size = 0
    for k in range(len(values)):
        if size == len(best) and values[k] <= values[best[size - 1]]:
            continue
        p = size if size < len(best) else size - 1
        while p > 0 and values[best[p - 1]] < values[k]:
            best[p] = best[p - 1]
            p -= 1
        best[p] = k
        size = min(size + 1, len(best))
    return size


@njit
def _value(columns, a, b):
    for q in range(columns.start[b], columns.start[b + 1]):
        if columns.row[q] == a:
            return columns.value[q]
    return 0.0


def round_chains(duals: Duals, num_states: int) -> Ragged:
    """Pairs with their mass for every factor; its marginals are ``duals.variables``.

    Rows and columns with too much mass are scaled down, and the missing mass is added as a product (Altschuler, Weed,
    Rigollet 2017, Algorithm 2). This moves at most twice the total variation between the marginals.
    """
    variables, factors, _ = duals
    room = np.where(factors.size > 0, factors.size + variables.size * np.append(variables.size[1:], 0), 0)
    start = offsets(room)
    total, widest = int(start[-1]), int(variables.size.max())
    rounded = Ragged(start, np.zeros(len(room), np.int64), np.zeros(total, np.int64), np.zeros(total), np.zeros(0))
    _round(variables, factors, num_states, np.zeros((2, widest)), np.zeros((2, widest)), rounded)
    return rounded


@njit
def _round(variables, factors, states, sums, scale, rounded):
    for t in range(len(factors.size)):
        if factors.size[t] == 0:
            continue
        begin, size = rounded.start[t], 0
        for p in range(factors.start[t], factors.start[t] + factors.size[t]):
            key = factors.key[p]
            if place_of(variables, t, key // states) >= 0 and place_of(variables, t + 1, key % states) >= 0:
                rounded.key[begin + size], rounded.mass[begin + size] = key, factors.mass[p]
                size += 1
        for s in range(2):
            _sum_side(variables, t + s, s, states, rounded, begin, size, sums[s])
            for c in range(variables.size[t + s]):
                total, wanted = sums[s, c], variables.mass[variables.start[t + s] + c]
                scale[s, c] = wanted / total if total > wanted else 1.0
            for p in range(begin, begin + size):
                label = rounded.key[p] // states if s == 0 else rounded.key[p] % states
                rounded.mass[p] *= scale[s, place_of(variables, t + s, label) - variables.start[t + s]]
        missing = 0.0
        for s in range(2):
            _sum_side(variables, t + s, s, states, rounded, begin, size, sums[s])
            for c in range(variables.size[t + s]):
                short = variables.mass[variables.start[t + s] + c] - sums[s, c]
                sums[s, c] = short if short > 0.0 else 0.0
                if s == 1:
                    missing += sums[s, c]
        if missing > 0.0:
            for c in range(variables.size[t]):
                for d in range(variables.size[t + 1]):
                    mass = sums[0, c] * sums[1, d] / missing
                    if mass > 0.0:
                        key = variables.key[variables.start[t] + c] * states
                        rounded.key[begin + size] = key + variables.key[variables.start[t + 1] + d]
                        rounded.mass[begin + size] = mass
                        size += 1
        rounded.size[t] = size


@njit
def _sum_side(variables, t, s, states, rounded, begin, size, sums):
    """Mass of the pairs by the label of one side."""
    sums[: variables.size[t]] = 0.0
    for p in range(begin, begin + size):
        label = rounded.key[p] // states if s == 0 else rounded.key[p] % states
        sums[place_of(variables, t, label) - variables.start[t]] += rounded.mass[p]
