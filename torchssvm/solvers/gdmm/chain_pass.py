"""One pass of GDMM over chains ([Y16] Algorithm 4), compiled by Numba, and the NumPy arrays that it reads and writes.

Signs and factors are those of the augmented Lagrangian times n: ``g_j = -(theta_j + delta_j) - sum_f F_jf`` for a
variable and ``g_f = -theta_f + F_f,left(a) + F_f,right(b)`` for a factor, with the force ``F = rho e + multiplier`` of
the excess ``e = M pi_f - pi_j``.

A block is a distribution over configurations. The augmented Lagrangian is the quadratic ``<g, d> + 1/2 d^T H d`` in the
block's change d; the rules differ in how they minimise it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit, njit_fastmath
from torchssvm.kinds.examples import Examples
from torchssvm.solvers.gdmm.problem import squares_of
from torchssvm.solvers.gdmm.ragged import Ragged, drop, empty, insert, offsets, repacked, single
from torchssvm.solvers.gdmm.walks import add_to_pair, best_pair, pair_value, room_for_pairs

PROJECT, AWAY = 0, 1
_NOTHING = 1e-15  # mass below this is rounding: moving it would be an empty step


@njit
def project(point, size, order, out):
    """Project ``point[:size]`` on the simplex, into ``out``; O(size^2), as few configurations are active."""
    for i in range(size):
        p = i
        while p > 0 and point[order[p - 1]] < point[i]:
            order[p] = order[p - 1]
            p -= 1
        order[p] = i
    highest = point[order[0]]  # differences to the highest are exact, however large it is
    total, shift = 0.0, 0.0
    for i in range(size):
        rest = point[order[i]] - highest
        total += rest
        trial = (total - 1.0) / (i + 1)
        if rest - trial > 0.0:
            shift = trial
    for i in range(size):
        rest = point[i] - highest - shift
        out[i] = rest if rest > 0.0 else 0.0


@njit
def away_direction(mass, gradient, size, out):
    """Away-step Frank-Wolfe ([Y16] Algorithm 2) in a block, whose active set has ``mass`` and ``gradient``, ``[size]``.

    ``out`` gets the direction ``v - pi``, or ``pi - v'`` for the corner v' that should lose mass. Returns ``-<gradient,
    out>`` and the largest step that stays in the simplex.
    """
    towards, away, mean = -1, -1, 0.0
    for i in range(size):
        mean += mass[i] * gradient[i]
        if towards < 0 or gradient[i] < gradient[towards]:
            towards = i
        if mass[i] > _NOTHING and (away < 0 or gradient[i] > gradient[away]):
            away = i
    forward, backward = mean - gradient[towards], gradient[away] - mean
    if forward >= backward or mass[away] >= 1.0:
        for i in range(size):
            out[i] = -mass[i]
        out[towards] += 1.0
        return forward, 1.0
    for i in range(size):
        out[i] = mass[i]
    out[away] -= 1.0
    return backward, mass[away] / (1.0 - mass[away])


@njit
def exact_step(slope, curvature, largest):
    """The minimum of ``-slope step + 1/2 curvature step^2`` on ``[0, largest]``; a slope below zero is rounding."""
    if slope <= 0.0:
        return 0.0
    return largest if curvature * largest <= slope else slope / curvature


class Tokens(NamedTuple):
    """The training set, token after token; biases are features that are always 1."""

    column: Any  # [M] int32
    value: Any  # [M] of the weights' dtype
    row: Any  # [tokens + 1] int64, where each token's features begin
    y: Any  # [tokens] int64
    cost: Any  # [tokens] float64, the cost of a wrong label
    start: Any  # [n + 1] int64, where each chain begins
    square: Any  # [tokens] float64, |x_t|^2


class Duals(NamedTuple):
    """Distributions of all factors on their active sets, with excesses and multipliers."""

    variables: Ragged  # a list for each token: labels and their mass
    factors: Ragged  # a list for each token with a next one in its chain: ``a K + b`` and their mass
    sides: Ragged  # two for each token t, of the labels of t and t + 1 in factor t: M pi_f - pi_j and multiplier


class Options(NamedTuple):
    """The parameters of a pass."""

    scale: float  # lam n
    rho: float  # penalty of the augmented Lagrangian, times n
    rule: int  # how blocks move, see ``blocks``
    greedy: bool  # whether a visit moves the steepest block, once for each block, instead of each block once


class Scratch(NamedTuple):
    """Scratch arrays for one block."""

    scores: Any  # [K]
    tables: Any  # [2, K]
    mass: Any  # [A], of the block's active set
    gradient: Any  # [A]
    point: Any  # [A]
    order: Any  # [A] int64
    new: Any  # [A]
    marked_left: Any  # [K] int64
    marked_right: Any  # [K] int64
    labels: Any  # [2, S] int64, of both sides
    forces: Any  # [2, S]
    totals: Any  # [3]: squared moves of variables for each of their factors, entries the oracle looked at, its calls
    stamp: Any  # [1] int64


def make_tokens(examples: Examples, num_features: int, has_bias: bool, has_boundary: bool) -> Tokens:
    """Lists of features with the biases among them: ``num_features`` for all, the next two for both ends of a chain."""
    tokens = int(examples.line[-1])
    if examples.dense:
        rows, columns = np.nonzero(examples.x)
        counts = np.bincount(rows, minlength=tokens)
        values = examples.x[rows, columns]
    else:
        counts, columns, values = np.diff(examples.row), examples.column, examples.value
        values = values if len(values) else np.ones(len(columns), values.dtype)
    pieces = [(np.repeat(np.arange(tokens), counts), columns, values)]
    if has_bias:
        pieces.append((np.arange(tokens), np.full(tokens, num_features), np.ones(tokens, values.dtype)))
    if has_boundary:
        ones = np.ones(len(examples.start) - 1, values.dtype)
        pieces.append((examples.start[:-1], np.full(len(ones), num_features + 1), ones))
        pieces.append((examples.start[1:] - 1, np.full(len(ones), num_features + 2), ones))
    token, column, value = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    order = np.argsort(token, kind="stable")
    row = offsets(np.bincount(token, minlength=tokens))
    square = np.bincount(token, weights=squares_of(value), minlength=tokens)
    return Tokens(
        column[order].astype(np.int32),
        np.ascontiguousarray(value[order]),
        row,
        examples.y,
        examples.cost,
        examples.start,
        square,
    )


def make_duals(tokens: Tokens, num_states: int) -> Duals:
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
    active = int(max(np.diff(duals.variables.start).max(), np.diff(duals.factors.start).max(), 1))
    around = int(max(np.diff(duals.sides.start).max(), 1))
    mass, gradient, point, new = np.zeros((4, active))
    block = mass, gradient, point, np.zeros(active, np.int64), new
    marked, sides = np.zeros((2, num_states), np.int64), (np.zeros((2, around), np.int64), np.zeros((2, around)))
    scores, tables = np.zeros(num_states), np.zeros((2, num_states))
    return Scratch(scores, tables, *block, marked[0], marked[1], *sides, np.zeros(3), np.zeros(1, np.int64))


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


@njit_fastmath
def add_row(scores, row, factor):
    """``scores += factor row``."""
    for k in range(len(scores)):
        scores[k] += factor * row[k]


@njit
def fill_scores(t, tokens, weights, scores):
    """``theta_t + delta_t``."""
    scores[:] = 0.0
    for p in range(tokens.row[t], tokens.row[t + 1]):
        add_row(scores, weights[tokens.column[p]], tokens.value[p])
    own = scores[tokens.y[t]]
    for k in range(len(scores)):
        scores[k] += tokens.cost[t]
    scores[tokens.y[t]] = own


@njit
def _propose_variable(t, first, end, tokens, weights, duals, options, scratch):
    """Find the new distribution of variable t, in ``scratch.new``; returns the decrease by the model."""
    variables, sides, scores = duals.variables, duals.sides, scratch.scores
    _leave(variables, t)
    fill_scores(t, tokens, weights, scores)
    around = 0
    for side in (2 * t - 1, 2 * t):
        if (t > first) if side < 2 * t else (t + 1 < end):
            around += 1
            for p in range(sides.start[side], sides.start[side] + sides.size[side]):
                scores[sides.key[p]] += options.rho * sides.x[p] + sides.y[p]
    best = 0
    for k in range(1, len(scores)):
        if scores[k] > scores[best]:
            best = k
    insert(variables, t, best)
    start, size = variables.start[t], variables.size[t]
    for c in range(size):
        scratch.mass[c] = variables.x[start + c]
        scratch.gradient[c] = -scores[variables.key[start + c]]
    curvature = tokens.square[t] / options.scale + options.rho * around
    if options.rule == AWAY:
        slope, largest = away_direction(scratch.mass, scratch.gradient, size, scratch.point)
        squared = 0.0
        for c in range(size):
            squared += scratch.point[c] ** 2
        return _step(slope, curvature * squared, largest, size, scratch)
    return _project(curvature, size, scratch)


@njit
def _step(slope, curvature, largest, size, scratch):
    """Exact line search along ``scratch.point``; renormalises, as away steps would drift from sum 1."""
    step = exact_step(slope, curvature, largest)
    total = 0.0
    for c in range(size):
        moved = scratch.mass[c] + step * scratch.point[c]
        scratch.new[c] = moved if moved > 1e-16 else 0.0
        total += scratch.new[c]
    for c in range(size if step > 0.0 else 0):
        scratch.new[c] /= total
    return step * (slope - 0.5 * step * curvature)


@njit
def _project(curvature, size, scratch):
    """The minimum of the quadratic model over the active set ([Y16] eq. 25)."""
    if curvature <= 0.0:  # no features, no neighbours: all mass goes to the best label
        curvature = 1e-12
    for c in range(size):
        scratch.point[c] = scratch.mass[c] - scratch.gradient[c] / curvature
    project(scratch.point, size, scratch.order, scratch.new)
    gain = 0.0
    for c in range(size):
        change = scratch.new[c] - scratch.mass[c]
        gain -= change * (scratch.gradient[c] + 0.5 * curvature * change)
    return gain


@njit
def _move_variable(t, first, end, tokens, weights, duals, options, scratch):
    variables, sides = duals.variables, duals.sides
    start = variables.start[t]
    for c in range(variables.size[t]):
        change = scratch.new[c] - scratch.mass[c]
        if change == 0.0:
            continue
        label = variables.key[start + c]
        variables.x[start + c] = scratch.new[c]
        scratch.totals[0] += change * change * ((t > first) + (t + 1 < end))
        for p in range(tokens.row[t], tokens.row[t + 1]):
            weights[tokens.column[p], label] -= tokens.value[p] * (change / options.scale)
        if t > first:
            sides.x[insert(sides, 2 * t - 1, label)] -= change
        if t + 1 < end:
            sides.x[insert(sides, 2 * t, label)] -= change
    _leave(variables, t)


@njit
def _leave(lists, t):
    c = lists.size[t] - 1
    while c >= 0:
        p = lists.start[t] + c
        if lists.x[p] == 0.0:
            drop(lists, t, p)
        c -= 1


@njit
def _propose_factor(t, pairs, duals, options, scratch):
    """As :func:`_propose_variable`, for the factor of t and t + 1."""
    factors, sides, states = duals.factors, duals.sides, len(scratch.scores)
    _leave(factors, t)
    for s in range(2):
        side = 2 * t + s
        start = sides.start[side]
        for c in range(sides.size[side]):
            scratch.labels[s, c] = sides.key[start + c]
            scratch.forces[s, c] = options.rho * sides.x[start + c] + sides.y[start + c]
    left, right = sides.size[2 * t], sides.size[2 * t + 1]
    a, b = best_pair(pairs, scratch, left, right)
    insert(factors, t, a * states + b)
    start, size = factors.start[t], factors.size[t]
    most = 0.0
    for c in range(size):
        key = factors.key[start + c]
        a, b = key // states, key % states
        scratch.mass[c] = factors.x[start + c]
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
        scratch.gradient[c] = force - pair_value(pairs, a, b)
        if shared > most:
            most = shared
    if options.rule == AWAY:
        slope, largest = away_direction(scratch.mass, scratch.gradient, size, scratch.point)
        return _step(slope, _curvature(t, factors, options, states, scratch.point), largest, size, scratch)
    # The largest row sum of the block's Hessian bounds it (Gershgorin); [Y16] 5.1 takes rho |N(f)| |A_f|.
    return _project(1.0 / options.scale + options.rho * most, size, scratch)


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
    factors, sides, states = duals.factors, duals.sides, len(scratch.scores)
    start = factors.start[t]
    for c in range(factors.size[t]):
        change = scratch.new[c] - scratch.mass[c]
        if change == 0.0:
            continue
        key = factors.key[start + c]
        a, b = key // states, key % states
        factors.x[start + c] = scratch.new[c]
        add_to_pair(pairs, a, b, -change / options.scale)
        sides.x[insert(sides, 2 * t, a)] += change
        sides.x[insert(sides, 2 * t + 1, b)] += change
    _leave(factors, t)


@njit
def update_multipliers(begin, end, tokens, duals, step, states, totals):
    """``multiplier += step e`` for the chains ``begin`` to ``end - 1``; recomputes the excesses, which removes drift.

    ``step`` is eta, times n. ``totals`` ``[5]`` get the sum of squared excesses, sum and largest of the total
    variations ``1/2 sum_a |e(a)|``, sums of the squares of the variables' masses and of the multipliers.
    """
    variables, factors, sides = duals.variables, duals.factors, duals.sides
    for i in range(begin, end):
        for t in range(tokens.start[i], tokens.start[i + 1] - 1):
            for s in range(2):
                side = 2 * t + s
                for p in range(sides.start[side], sides.start[side] + sides.size[side]):
                    sides.x[p] = 0.0
                for p in range(factors.start[t], factors.start[t] + factors.size[t]):
                    label = factors.key[p] // states if s == 0 else factors.key[p] % states
                    sides.x[insert(sides, side, label)] += factors.x[p]
                for p in range(variables.start[t + s], variables.start[t + s] + variables.size[t + s]):
                    sides.x[insert(sides, side, variables.key[p])] -= variables.x[p]
                    totals[3] += variables.x[p] * variables.x[p]
                _settle(sides, side, step, totals)


@njit
def _settle(sides, side, step, totals):
    """Move the multipliers of one side, and drop labels with neither excess nor multiplier."""
    apart, c = 0.0, sides.size[side] - 1
    while c >= 0:
        p = sides.start[side] + c
        excess = sides.x[p]
        apart += 0.5 * abs(excess)
        totals[0] += excess * excess
        sides.y[p] += step * excess
        totals[4] += sides.y[p] * sides.y[p]
        if excess == 0.0 and sides.y[p] == 0.0:
            drop(sides, side, p)
        c -= 1
    totals[1] += apart
    totals[2] = max(totals[2], apart)
