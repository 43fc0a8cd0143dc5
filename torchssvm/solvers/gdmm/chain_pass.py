"""One pass of GDMM over chains ([Y16] Algorithm 4), compiled by Numba, and the NumPy arrays that it reads and writes.

Tokens are variables, and neighbours are factors. Signs and factors belong to the augmented Lagrangian times n:
``g_j = -(theta_j + delta_j) - sum_f F_jf`` for a variable and ``g_f = -theta_f + F_f,left(a) + F_f,right(b)`` for a
factor, with the force ``F = rho e + multiplier`` of the excess ``e = M pi_f - pi_j``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit
from torchssvm.solvers.gdmm.blocks import AWAY, Block, away_direction, make_block, minimise_along, minimise_model
from torchssvm.solvers.gdmm.pairs import add_to_pair, best_pair, pair_value, room_for_pairs
from torchssvm.solvers.gdmm.ragged import Ragged, drop, empty, insert, repacked, single
from torchssvm.solvers.gdmm.training_set import TrainingSet, score_row


class Duals(NamedTuple):
    """Distributions of all factors on their active sets, with excesses and multipliers."""

    variables: Ragged  # a list for each token: labels and their mass
    factors: Ragged  # a list for each token with a next one in its chain: ``a K + b`` and their mass
    sides: Ragged  # two for each token t, of the labels of t and t + 1 in factor t: M pi_f - pi_j and multiplier


class Scratch(NamedTuple):
    """Scratch arrays for one block."""

    scores: Any  # [K]
    tables: Any  # [2, K]
    block: Block
    marks: Any  # [K] int64 of both sides
    labels: Any  # [2, S] int64, of both sides
    forces: Any  # [2, S]
    totals: Any  # [3]: squared moves of variables for each of their factors, entries the oracle looked at, its calls
    stamp: Any  # [1] int64


def make_duals(tokens: TrainingSet, num_states: int) -> Duals:
    """All mass on the targets."""
    factors = single(tokens.y * num_states + np.append(tokens.y[1:], 0))
    factors.size[tokens.start[1:] - 1] = 0
    return Duals(single(tokens.y), factors, empty(2 * len(tokens.y)))


def with_room(duals: Duals, *, visits: int) -> Duals:
    """The same duals, with room for what ``visits`` visits of every block can add."""
    variables, factors, sides = duals
    labels = variables.size + visits
    pairs = factors.size + visits
    around = np.empty(len(sides.size), np.int64)
    around[0::2] = labels + pairs  # labels of the token and of the pairs
    around[1::2] = np.append(labels[1:], 0) + pairs
    return Duals(repacked(variables, visits), repacked(factors, visits), repacked(sides, around))


def make_scratch(duals: Duals, num_states: int) -> Scratch:
    """Scratch arrays for the largest block."""
    active, around = (max(int(np.diff(lists.start).max()) for lists in some) for some in (duals[:2], duals[2:]))
    marks, sides = tuple(np.zeros((2, num_states), np.int64)), np.zeros((2, max(around, 1)))
    scores, tables, labels = np.zeros(num_states), np.zeros((2, num_states)), sides.astype(np.int64)
    block = make_block(max(active, 1))
    return Scratch(scores, tables, block, marks, labels, sides, np.zeros(3), np.zeros(1, np.int64))


@njit
def visit_chains(order, begin, tokens, weights, pairs, duals, options, scratch):
    """Visit the chains ``order[begin:]``, one after another, until one might need more room among the pairs.

    Changes ``weights`` ``[F, K]``, ``pairs`` and ``duals``; increases ``scratch.totals``; returns how many were
    visited.
    """
    for v in range(begin, len(order)):
        i = order[v]
        first, end = tokens.start[i], tokens.start[i + 1]
        if room_for_pairs(pairs) < 2 * (end - first) * (2 * (end - first) if options.greedy else 1):
            return v
        if options.greedy:
            _visit_greedily(first, end, tokens, weights, pairs, duals, options, scratch)
            continue
        for t in range(first, end):
            _propose_variable(t, first, end, tokens, weights, duals, options, scratch)
            _move_variable(t, first, end, tokens, weights, duals, options, scratch)
        for t in range(first, end - 1):
            _propose_factor(t, pairs, duals, options, scratch)
            _move_factor(t, pairs, duals, options, scratch)
    return len(order)


@njit
def _visit_greedily(first, end, tokens, weights, pairs, duals, options, scratch):
    """Block-greedy coordinate descent ([Y16] Algorithm 3): always move the block with the largest model decrease."""
    for _ in range(2 * (end - first) - 1):
        best, token, is_factor = 0.0, first, False
        for t in range(first, end):
            gain = _propose_variable(t, first, end, tokens, weights, duals, options, scratch)
            if gain > best:
                best, token, is_factor = gain, t, False
            if t + 1 < end:
                gain = _propose_factor(t, pairs, duals, options, scratch)
                if gain > best:
                    best, token, is_factor = gain, t, True
        if best <= 0.0:
            return
        if is_factor:
            _propose_factor(token, pairs, duals, options, scratch)
            _move_factor(token, pairs, duals, options, scratch)
        else:
            _propose_variable(token, first, end, tokens, weights, duals, options, scratch)
            _move_variable(token, first, end, tokens, weights, duals, options, scratch)


@njit
def fill_scores(t, tokens, weights, scores):
    """``theta_t + delta_t``."""
    score_row(t, tokens, weights, scores)
    target = scores[tokens.y[t]]
    for k in range(len(scores)):
        scores[k] += tokens.cost[t]
    scores[tokens.y[t]] = target


@njit
def _propose_variable(t, first, end, tokens, weights, duals, options, scratch):
    """Find the new distribution of variable t, in ``block.new``; returns the decrease by the model."""
    variables, sides, scores, block = duals.variables, duals.sides, scratch.scores, scratch.block
    _leave(variables, t)
    fill_scores(t, tokens, weights, scores)
    around = 0
    for side in (2 * t - 1, 2 * t):
        if (t > first) if side < 2 * t else (t + 1 < end):
            around += 1
            for p in range(sides.start[side], sides.start[side] + sides.size[side]):
                scores[sides.key[p]] += options.rho * sides.mass[p] + sides.multiplier[p]
    best = 0
    for k in range(1, len(scores)):
        if scores[k] > scores[best]:
            best = k
    insert(variables, t, best)
    start, size = variables.start[t], variables.size[t]
    for c in range(size):
        block.mass[c] = variables.mass[start + c]
        block.gradient[c] = -scores[variables.key[start + c]]
    curvature = tokens.square[t] / options.scale + options.rho * around
    if options.rule == AWAY:
        slope, largest = away_direction(block.mass, block.gradient, size, block.point)
        squared = 0.0
        for c in range(size):
            squared += block.point[c] ** 2
        return minimise_along(block, size, slope, curvature * squared, largest, True)
    # Without features and neighbours, all mass goes to the best label.
    return minimise_model(block, size, curvature if curvature > 0.0 else 1e-12)


@njit
def _move_variable(t, first, end, tokens, weights, duals, options, scratch):
    variables, sides, block = duals.variables, duals.sides, scratch.block
    start = variables.start[t]
    for c in range(variables.size[t]):
        change = block.new[c] - block.mass[c]
        if change == 0.0:
            continue
        label = variables.key[start + c]
        variables.mass[start + c] = block.new[c]
        scratch.totals[0] += change * change * ((t > first) + (t + 1 < end))
        for p in range(tokens.row[t], tokens.row[t + 1]):
            weights[tokens.column[p], label] -= tokens.value[p] * (change / options.scale)
        if t > first:
            sides.mass[insert(sides, 2 * t - 1, label)] -= change
        if t + 1 < end:
            sides.mass[insert(sides, 2 * t, label)] -= change
    _leave(variables, t)


@njit
def _leave(lists, t):
    c = lists.size[t] - 1
    while c >= 0:
        p = lists.start[t] + c
        if lists.mass[p] == 0.0:
            drop(lists, t, p)
        c -= 1


@njit
def _propose_factor(t, pairs, duals, options, scratch):
    """As :func:`_propose_variable`, for the factor of t and t + 1."""
    factors, sides, states, block = duals.factors, duals.sides, len(scratch.scores), scratch.block
    _leave(factors, t)
    for s in range(2):
        side = 2 * t + s
        start = sides.start[side]
        for c in range(sides.size[side]):
            scratch.labels[s, c] = sides.key[start + c]
            scratch.forces[s, c] = options.rho * sides.mass[start + c] + sides.multiplier[start + c]
    left, right = sides.size[2 * t], sides.size[2 * t + 1]
    a, b = best_pair(pairs, scratch, left, right)
    insert(factors, t, a * states + b)
    start, size = factors.start[t], factors.size[t]
    most = 0.0
    for c in range(size):
        key = factors.key[start + c]
        a, b = key // states, key % states
        block.mass[c] = factors.mass[start + c]
        force, shared = 0.0, 0
        for p in range(left):
            if scratch.labels[0, p] == a:
                force += scratch.forces[0, p]
        for p in range(right):
            if scratch.labels[1, p] == b:
                force += scratch.forces[1, p]
        for d in range(size):
            other = factors.key[start + d]
            shared += (other // states == a) + (other % states == b)
        block.gradient[c] = force - pair_value(pairs, a, b)
        if shared > most:
            most = shared
    if options.rule == AWAY:
        slope, largest = away_direction(block.mass, block.gradient, size, block.point)
        return minimise_along(block, size, slope, _curvature(t, factors, options, states, block.point), largest, True)
    # The largest row sum of the block's Hessian bounds it (Gershgorin); [Y16] 5.1 takes rho |N(f)| |A_f|.
    return minimise_model(block, size, 1.0 / options.scale + options.rho * most)


@njit
def _curvature(t, factors, options, states, direction):
    """``|Phi d|^2 / (lam n) + rho sum_j |M_j d|^2`` of a direction in the factor's block."""
    start, size = factors.start[t], factors.size[t]
    squared, tied = 0.0, 0.0
    for c in range(size):
        squared += direction[c] ** 2
        key = factors.key[start + c]
        for d in range(size):
            other = factors.key[start + d]
            alike = (other // states == key // states) + (other % states == key % states)
            tied += alike * direction[c] * direction[d]
    return squared / options.scale + options.rho * tied


@njit
def _move_factor(t, pairs, duals, options, scratch):
    """As :func:`_move_variable`, for the factor of t and t + 1."""
    factors, sides, block, states = duals.factors, duals.sides, scratch.block, len(scratch.scores)
    start = factors.start[t]
    for c in range(factors.size[t]):
        change = block.new[c] - block.mass[c]
        if change == 0.0:
            continue
        key = factors.key[start + c]
        a, b = key // states, key % states
        factors.mass[start + c] = block.new[c]
        add_to_pair(pairs, a, b, -change / options.scale)
        sides.mass[insert(sides, 2 * t, a)] += change
        sides.mass[insert(sides, 2 * t + 1, b)] += change
    _leave(factors, t)


@njit
def update_multipliers(tokens, duals, step, states, totals):
    """``multiplier += step e``; recomputes the excesses, which removes drift.

    ``step`` is eta, times n. ``totals`` ``[5]`` get the sum of squared excesses, sum and largest of the total
    variations ``1/2 sum_a |e(a)|``, sums of the squares of the variables' masses and of the multipliers.
    """
    variables, factors, sides = duals.variables, duals.factors, duals.sides
    for i in range(len(tokens.start) - 1):
        for t in range(tokens.start[i], tokens.start[i + 1] - 1):
            for s in range(2):
                side = 2 * t + s
                for p in range(sides.start[side], sides.start[side] + sides.size[side]):
                    sides.mass[p] = 0.0
                for p in range(factors.start[t], factors.start[t] + factors.size[t]):
                    label = factors.key[p] // states if s == 0 else factors.key[p] % states
                    sides.mass[insert(sides, side, label)] += factors.mass[p]
                for p in range(variables.start[t + s], variables.start[t + s] + variables.size[t + s]):
                    sides.mass[insert(sides, side, variables.key[p])] -= variables.mass[p]
                    totals[3] += variables.mass[p] * variables.mass[p]
                _settle(sides, side, step, totals)


@njit
def _settle(sides, side, step, totals):
    """Move the multipliers of one side, and drop labels with neither excess nor multiplier."""
    apart, c = 0.0, sides.size[side] - 1
    while c >= 0:
        p = sides.start[side] + c
        excess = sides.mass[p]
        apart += 0.5 * abs(excess)
        totals[0] += excess * excess
        sides.multiplier[p] += step * excess
        totals[4] += sides.multiplier[p] * sides.multiplier[p]
        if excess == 0.0 and sides.multiplier[p] == 0.0:
            drop(sides, side, p)
        c -= 1
    totals[1] += apart
    totals[2] = max(totals[2], apart)
