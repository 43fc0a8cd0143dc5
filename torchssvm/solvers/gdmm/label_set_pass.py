"""One pass of GDMM over label sets ([Y16] Algorithm 4 and C-2), compiled by Numba, and the arrays that it works on.

A label k is a variable with mass q_k of being on; its factors with the other labels score when both are on. Masses,
excesses and multipliers are kept for "on" only; "off" follows. Gradients are of the augmented Lagrangian
times n, with the force ``F = rho e + multiplier`` of the excess ``e = M pi_f - q``.

An example has K (K - 1) / 2 factors, and few matter. If the target's mass of "both on" fits the labels,
``max(0, q_i + q_j - 1) <= y_i y_j <= min(q_i, q_j)``, then the factor agrees with them without changing a weight. Only
factors that violate this, and those that the factorwise oracle finds, are made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit
from torchssvm.solvers.gdmm.blocks import AWAY, Block, away_direction, make_block, minimise_along, minimise_model
from torchssvm.solvers.gdmm.pairs import add_to_pair, room_for_pairs
from torchssvm.solvers.gdmm.ragged import Ragged, place_of
from torchssvm.solvers.gdmm.training_set import add_row, score_row
from torchssvm.solvers.gdmm.walks import best_entry


class SetDuals(NamedTuple):
    """Distributions of all variables and of the factors that were made, with multipliers."""

    q: Any  # [n, K] float64, the mass of each label's being on
    gain: Any  # [K] float64, ``sum_j max(0, v[k, j])`` over the pair weights v
    factors: Ragged  # a list for each example, of keys ``i K + j`` for i < j, with
    # mass [total, 3]: both on, the first alone, the second alone; multiplier [total, 2], of the first and the second


class SetScratch(NamedTuple):
    """Scratch arrays for one example."""

    scores: Any  # [K], label on less label off, features alone
    change: Any  # [K]
    force: Any  # [K]
    count: Any  # [K] int64, factors of the label
    likely: Any  # [K] int64
    labels: Any  # [K] int64, for the sorted oracle
    offset: Any  # [K]
    excluded: Any  # [E] int64
    mark: Any  # [K] int64
    block: Block  # of four configurations
    totals: Any  # [3], as in ``chain_pass``
    stamp: Any  # [1] int64


def make_set_scratch(num_labels: int, excluded: int) -> SetScratch:
    """Scratch arrays for examples with at most ``excluded`` factors."""
    scores, change, force, offset = np.zeros((4, num_labels))
    count, likely, labels, mark = np.zeros((4, num_labels), np.int64)
    skipped, stamp = np.zeros(excluded, np.int64), np.zeros(1, np.int64)
    vectors = scores, change, force, count, likely, labels, offset, skipped, mark
    return SetScratch(*vectors, make_block(4), np.zeros(3), stamp)


_TINY = 1e-12


@njit
def visit_label_sets(order, begin, sets, weights, pairs, duals, options, explore, scratch):
    """Visit the examples ``order[begin:]``, one after another, until one might need more room among the entries.

    The factorwise oracle walks sorted pairs, where they are; to ``explore`` adds a factor even if none scores by
    itself, as three labels together may. ``scratch.totals`` are increased. Returns how many of ``order`` were visited.
    """
    for v in range(begin, len(order)):
        i, factors = order[v], duals.factors
        if room_for_pairs(pairs) < factors.start[i + 1] - factors.start[i]:
            return v
        score_row(i, sets, weights, scratch.scores)
        scratch.change[:] = 0.0
        if options.greedy:
            _visit_greedily(i, sets, pairs, duals, options, scratch)
        else:
            _feel(i, duals, options, scratch)
            for k in range(len(scratch.scores)):
                _move_label(i, k, sets, duals, options, scratch)
            for f in range(factors.start[i], factors.start[i] + factors.size[i]):
                _propose_factor(i, f, pairs, duals, options, scratch)
                _move_factor(f, pairs, duals, options, scratch)
        for p in range(sets.row[i], sets.row[i + 1]):
            add_row(weights[sets.column[p]], scratch.change, -sets.value[p] / options.scale)
        _make_factors(i, sets, pairs, duals, options, explore, scratch)
    return len(order)


@njit
def _visit_greedily(i, sets, pairs, duals, options, scratch):
    """Block-greedy coordinate descent ([Y16] Algorithm 3): always move the block with the largest model decrease."""
    states, factors, begin = len(scratch.scores), duals.factors, duals.factors.start[i]
    for _ in range(states + factors.size[i]):
        _feel(i, duals, options, scratch)
        best, label, factor = 0.0, -1, -1
        for k in range(states):
            _, _, gain = _label_step(i, k, sets, duals, options, scratch)
            if gain > best:
                best, label = gain, k
        for f in range(begin, begin + factors.size[i]):
            gain = _propose_factor(i, f, pairs, duals, options, scratch)
            if gain > best:
                best, factor = gain, f
        if best <= _TINY:
            return
        if factor >= 0:
            _propose_factor(i, factor, pairs, duals, options, scratch)
            _move_factor(factor, pairs, duals, options, scratch)
        else:
            _move_label(i, label, sets, duals, options, scratch)


@njit
def _feel(i, duals, options, scratch):
    """Forces of the factors on the labels, and the number of factors of each label."""
    states, q, factors = len(scratch.scores), duals.q, duals.factors
    scratch.force[:] = 0.0
    scratch.count[:] = 0
    for f in range(factors.start[i], factors.start[i] + factors.size[i]):
        for s in range(2):
            label = factors.key[f] // states if s == 0 else factors.key[f] % states
            excess = factors.mass[f, 0] + factors.mass[f, 1 + s] - q[i, label]
            scratch.force[label] += options.rho * excess + factors.multiplier[f, s]
            scratch.count[label] += 1


@njit
def _label_step(i, k, sets, duals, options, scratch):
    """Mass of a label now and at the minimum of its one-dimensional block, and the decrease."""
    slope = _alone(i, k, sets, scratch) + scratch.force[k]
    curvature = sets.square[i] / options.scale + options.rho * scratch.count[k]
    before = duals.q[i, k]
    if curvature <= 0.0:  # no features, no factors: the block is linear
        after = 1.0 if slope > 0.0 else (0.0 if slope < 0.0 else before)
    else:
        after = min(max(before + slope / curvature, 0.0), 1.0)
    moved = after - before
    return before, after, moved * (slope - 0.5 * curvature * moved)


@njit
def _move_label(i, k, sets, duals, options, scratch):
    """Minimise one variable exactly; the weights are updated when the example is done."""
    before, after, _ = _label_step(i, k, sets, duals, options, scratch)
    moved = after - before
    if moved != 0.0:
        duals.q[i, k] = after
        scratch.change[k] += moved
        scratch.scores[k] -= moved * (sets.square[i] / options.scale)
        scratch.force[k] -= moved * (options.rho * scratch.count[k])
        scratch.totals[0] += moved * moved * scratch.count[k]


@njit
def _propose_factor(i, f, pairs, duals, options, scratch):
    """Find the new distribution of the factor, in ``scratch.block.new``; returns the decrease by the model."""
    states, q, factors = len(scratch.scores), duals.q, duals.factors
    a, b = factors.key[f] // states, factors.key[f] % states
    block, mass = scratch.block, scratch.block.mass
    for s in range(3):
        mass[s] = factors.mass[f, s]
    mass[3] = max(1.0 - mass[0] - mass[1] - mass[2], 0.0)
    first = options.rho * (mass[0] + mass[1] - q[i, a]) + factors.multiplier[f, 0]
    second = options.rho * (mass[0] + mass[2] - q[i, b]) + factors.multiplier[f, 1]
    block.gradient[0] = first + second - pairs.dense[a, b]
    block.gradient[1], block.gradient[2], block.gradient[3] = first, second, 0.0
    if options.rule == AWAY:
        point = block.point
        slope, largest = away_direction(mass, block.gradient, 4, point)
        both, left, right = point[0], point[0] + point[1], point[0] + point[2]
        curvature = both * both / options.scale + options.rho * (left * left + right * right)
        return minimise_along(block, 4, slope, curvature, largest, False)
    # The largest eigenvalue of the features' part, and of rho (a a^T + b b^T) with a = (1, 1, 0, 0), b = (1, 0, 1, 0).
    return minimise_model(block, 4, 1.0 / options.scale + 3.0 * options.rho)


@njit
def _move_factor(f, pairs, duals, options, scratch):
    states, factors, gain, new = len(scratch.scores), duals.factors, duals.gain, scratch.block.new
    moved = new[0] - factors.mass[f, 0]
    for s in range(3):
        factors.mass[f, s] = new[s]
    if moved != 0.0:
        a, b = factors.key[f] // states, factors.key[f] % states
        old = pairs.dense[a, b]
        add_to_pair(pairs, a, b, -moved / options.scale)
        better = max(pairs.dense[a, b], 0.0) - max(old, 0.0)
        gain[a] += better
        gain[b] += better


@njit
def _make_factors(i, sets, pairs, duals, options, explore, scratch):
    """Add the factors that cannot agree with their labels unchanged, and those that the oracle finds.

    Considers only labels that may be on in a best labeling: partly on, on in the target, or with a positive score if
    all labels that attract them were on. Of their pairs, adds those that gain when both labels go on.
    """
    states, many, likely = len(scratch.scores), 0, scratch.likely
    q, factors = duals.q, duals.factors
    for k in range(states):
        if q[i, k] > 0.0 or sets.y[i, k] or _alone(i, k, sets, scratch) + duals.gain[k] > 0.0:
            likely[many] = k
            many += 1
    best, best_a, best_b = -np.inf, -1, -1
    for c in range(many):
        a = likely[c]
        for d in range(c + 1, many):
            b = likely[d]
            both = 1.0 if sets.y[i, a] and sets.y[i, b] else 0.0
            if both < q[i, a] + q[i, b] - 1.0 - _TINY or both > min(q[i, a], q[i, b]) + _TINY:
                _make_factor(i, a, b, both, states, q, factors)
            elif not pairs.ordered and both == 0.0 and pairs.dense[a, b] > 0.0:
                value = pairs.dense[a, b] + _ease(i, a, sets, q, scratch) + _ease(i, b, sets, q, scratch)
                if value > 0.0:
                    _make_factor(i, a, b, both, states, q, factors)
                elif explore and value > best and place_of(factors, i, a * states + b) < 0:
                    best, best_a, best_b = value, a, b
    scratch.totals[2] += 1
    if not pairs.ordered:
        scratch.totals[1] += many * (many - 1) // 2
    else:
        best_a, best_b = _walk(i, sets, pairs, duals, options, scratch)
        if best_a >= 0 and (pairs.dense[best_a, best_b] <= 0.0 or (sets.y[i, best_a] and sets.y[i, best_b])):
            best_a = -1
    if best_a >= 0:
        _make_factor(i, min(best_a, best_b), max(best_a, best_b), 0.0, states, q, factors)


@njit
def _alone(i, k, sets, scratch):
    """The gain of switching the label on, with the loss and without its factors."""
    return scratch.scores[k] + (-sets.cost[k] if sets.y[i, k] else sets.cost[k])


@njit
def _ease(i, k, sets, q, scratch):
    """The cost of switching the label on: 0 where it is partly on."""
    if q[i, k] > 0.0:
        return 0.0
    return min(_alone(i, k, sets, scratch), 0.0)


@njit
def _walk(i, sets, pairs, duals, options, scratch):
    """[Y16] C-2: the factor with the steepest gradient, by a walk in descending order of weights."""
    q, factors, size, many = duals.q, duals.factors, duals.factors.size[i], 0
    for k in range(len(scratch.scores)):
        if q[i, k] > 0.0 and not sets.y[i, k]:
            scratch.labels[many] = k
            scratch.offset[many] = -options.rho * q[i, k]
            many += 1
    for c in range(size):
        key = factors.key[factors.start[i] + c]
        p = c
        while p > 0 and scratch.excluded[p - 1] > key:
            scratch.excluded[p] = scratch.excluded[p - 1]
            p -= 1
        scratch.excluded[p] = key
    scratch.stamp[0] += 1
    side, marks = (scratch.labels, scratch.offset, many), (scratch.mark, scratch.mark)
    _, a, b = best_entry(pairs.entries, *side, *side, scratch.excluded[:size], marks, scratch.stamp[0])
    return a, b


@njit
def _make_factor(i, a, b, both, states, q, factors):
    """Add a factor with the target's mass of "both on", and otherwise as close to its labels as possible.

    Without room, the factor is left for the next pass.
    """
    f = factors.start[i] + factors.size[i]
    if f >= factors.start[i + 1] or place_of(factors, i, a * states + b) >= 0:
        return
    factors.size[i] += 1
    factors.key[f] = a * states + b
    first, second = max(q[i, a] - both, 0.0), max(q[i, b] - both, 0.0)
    over = both + first + second
    if over > 1.0:
        shrink = (1.0 - both) / (first + second)
        first, second = first * shrink, second * shrink
    factors.mass[f, 0], factors.mass[f, 1], factors.mass[f, 2] = both, first, second
    factors.multiplier[f, 0] = 0.0
    factors.multiplier[f, 1] = 0.0
