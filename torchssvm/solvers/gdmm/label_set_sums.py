"""Sums over label sets: multipliers, scores, the weights of duals.

Names and signs are those of ``label_set_pass``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchssvm.core.jit import njit, njit_fastmath
from torchssvm.solvers.gdmm.chain_pass import add_row


@njit
def update_multipliers(q, factors, step, totals):
    """``multiplier += step e``; totals as in ``chain_pass``."""
    states = q.shape[1]
    for i in range(len(q)):
        for f in range(factors.start[i], factors.start[i] + factors.size[i]):
            for s in range(2):
                label = factors.key[f] // states if s == 0 else factors.key[f] % states
                excess = factors.mass[f, 0] + factors.mass[f, 1 + s] - q[i, label]
                factors.multiplier[f, s] += step * excess
                totals[0] += excess * excess
                totals[1] += abs(excess)
                totals[2] = max(totals[2], abs(excess))
                totals[3] += q[i, label] * q[i, label]
                totals[4] += factors.multiplier[f, s] * factors.multiplier[f, s]


@njit
def sum_features(sets, q, scale, total):
    """``total += (1/(lam n)) sum_i x_i (y_i - q_i)^T``; returns ``sum_i <delta_i, q_i>`` with its constants."""
    loss = 0.0
    states = q.shape[1]
    for i in range(len(q)):
        for k in range(states):
            gap = (1.0 if sets.y[i, k] else 0.0) - q[i, k]
            if gap != 0.0:
                loss += sets.cost[k] * abs(gap)
                for p in range(sets.row[i], sets.row[i + 1]):
                    total[sets.column[p], k] += sets.value[p] * (gap / scale)
    return loss


@njit
def score_sets(begin, end, sets, weights, out):
    """Scores of the labels of examples ``begin`` to ``end - 1``, ``[end - begin, K]``."""
    for i in range(begin, end):
        out[i - begin, :] = 0.0
        for p in range(sets.row[i], sets.row[i + 1]):
            add_row(out[i - begin], weights[sets.column[p]], sets.value[p])


@njit
def sum_factors(sets, q, factors, scale, total):
    """``total += (1/(lam n)) sum_i (y y^T - both)`` over the pairs i < j: the weights that the factors stand for."""
    states = q.shape[1]
    for i in range(len(q)):
        for f in range(factors.start[i], factors.start[i] + factors.size[i]):
            a, b = factors.key[f] // states, factors.key[f] % states
            target = 1.0 if sets.y[i, a] and sets.y[i, b] else 0.0
            total[a, b] += (target - factors.mass[f, 0]) / scale


@njit
def sum_consistent(i, sets, q, factors, labels, both, share, total):
    """``total += share (y y^T - both)`` for one example, with ``both`` the nearest mass consistent with q.

    The nearest mass to that of a made factor, else to the target's, within the Frechet bounds ``max(0, q_i + q_j - 1)``
    and ``min(q_i, q_j)``, the only constraints of the local polytope. ``labels`` ``[K]`` int64 and ``both`` ``[K, K]``,
    -1 before and after, are scratch; ``share`` is ``1 / (lam n)``.
    """
    states, many = q.shape[1], 0
    for k in range(states):
        if q[i, k] > 0.0 or sets.y[i, k]:
            labels[many] = k
            many += 1
    for f in range(factors.start[i], factors.start[i] + factors.size[i]):
        both[factors.key[f] // states, factors.key[f] % states] = factors.mass[f, 0]
    for c in range(many):
        for d in range(c + 1, many):
            a, b = labels[c], labels[d]
            target = 1.0 if sets.y[i, a] and sets.y[i, b] else 0.0
            mass = both[a, b] if both[a, b] >= 0.0 else target
            mass = min(max(mass, q[i, a] + q[i, b] - 1.0, 0.0), q[i, a], q[i, b])
            total[a, b] += share * (target - mass)
    for f in range(factors.start[i], factors.start[i] + factors.size[i]):
        both[factors.key[f] // states, factors.key[f] % states] = -1.0


@njit
def sum_all_consistent(sets, q, factors, labels, both, share, total):
    """:func:`sum_consistent` for all examples."""
    for i in range(len(q)):
        sum_consistent(i, sets, q, factors, labels, both, share, total)


@njit
def sum_gains(pairs):
    """Recompute ``pairs.gain``."""
    for k in range(len(pairs.gain)):
        total = 0.0
        for j in range(len(pairs.gain)):
            total += max(pairs.value[k, j], 0.0)
        pairs.gain[k] = total


_ROUNDS = 3
_TINY = 1e-12  # a decrease that may be rounding


class Means(NamedTuple):
    """Distributions over label sets, one for each example, with label marginals ``q``.

    A point of the local polytope need not be a mean of label sets; these always are. A number u, uniform on a circle of
    length 1, decides all labels of an example: label k is on where u lies in an arc of length ``q_k``. Two labels are
    on together where their arcs overlap.
    """

    q: np.ndarray  # [n, K], 0 to 1
    begin: np.ndarray  # [n, K], where each arc begins
    rest: np.ndarray  # [K, K], ``sum_i (y_i y_i^T - pairs_i)`` above the diagonal: the weights of pairs times ``lam n``

    def pairs(self, rows: np.ndarray) -> np.ndarray:
        """Probabilities that two labels are on together, ``[B, P]`` for the pairs i < j of the examples ``rows``."""
        labels = self.q.shape[1]
        found = np.zeros((len(rows), labels * (labels - 1) // 2))
        _list_pairs(rows, self.q, self.begin, found)
        return found


def choose_means(q: np.ndarray, y: np.ndarray) -> Means:
    """Choose arcs with small pair weights, which make the dual large.

    Losses and feature weights depend on ``q`` only, not on the arcs. Initially labels are wrong together as far as
    possible. Then one arc after another moves to the least sum of squared pair weights among the candidates: the ends
    of the other arcs, and the minimum along the circle from the best of them.
    """
    labels = q.shape[1]
    begin, rest = np.where(y, 0.0, 1.0 - q), np.zeros((labels, labels))
    _sum_rest(q, y, begin, rest)
    others, near = np.zeros(labels, np.int64), np.zeros((3, labels))
    for _ in range(_ROUNDS):
        _move_arcs(q, begin, rest, others, near)
    rest[:] = 0.0
    _sum_rest(q, y, begin, rest)  # recomputed, to remove the rounding of the moves
    return Means(q, begin, rest)


@njit
def _overlap(first, own, second, other):
    """The overlap of two arcs of lengths ``own`` and ``other`` that begin at ``first`` and ``second`` in [0, 1]."""
    ahead = second - first
    ahead = ahead + 1.0 if ahead < 0.0 else ahead
    return max(min(own, ahead + other) - ahead, 0.0) + max(min(own, ahead + other - 1.0), 0.0)


@njit
def _list_pairs(rows, q, begin, found):
    labels = q.shape[1]
    for r in range(len(rows)):
        i, place = rows[r], 0
        for a in range(labels):
            for b in range(a + 1, labels):
                if q[i, a] > 0.0 and q[i, b] > 0.0:
                    found[r, place] = _overlap(begin[i, a], q[i, a], begin[i, b], q[i, b])
                place += 1


@njit
def _sum_rest(q, y, begin, rest):
    """``rest += sum_i (y_i y_i^T - pairs_i)``."""
    labels = q.shape[1]
    for i in range(len(q)):
        for a in range(labels):
            if not (q[i, a] > 0.0 or y[i, a]):
                continue
            for b in range(a + 1, labels):
                if q[i, b] > 0.0 or y[i, b]:
                    target = 1.0 if y[i, a] and y[i, b] else 0.0
                    rest[a, b] += target - _overlap(begin[i, a], q[i, a], begin[i, b], q[i, b])


@njit
def _move_arcs(q, begin, rest, others, near):
    """Move every arc once, except empty and full ones, whose overlaps do not depend on their place.

    Scratch: ``others`` ``[K]`` int64; ``near`` ``[3, K]`` gets where their arcs begin, their lengths, and the overlaps
    with the moving arc at which the pair weights are 0.
    """
    for i in range(len(q)):
        for k in range(q.shape[1]):
            own, place = q[i, k], begin[i, k]
            if not 0.0 < own < 1.0:
                continue
            many = 0
            for j in range(q.shape[1]):
                if j != k and 0.0 < q[i, j] < 1.0:
                    others[many] = j
                    near[0, many], near[1, many] = begin[i, j], q[i, j]
                    near[2, many] = rest[min(j, k), max(j, k)] + _overlap(place, own, begin[i, j], q[i, j])
                    many += 1
            cost = _cost(place, own, near, many)
            for d in range(many):
                end = near[0, d] + near[1, d]
                trial = end - np.floor(end)
                found = _cost(trial, own, near, many)
                if found < cost - _TINY:
                    place, cost = trial, found
            for sign in (1.0, -1.0):
                trial = place + sign * _way(place, own, sign, near, many)
                trial -= np.floor(trial)
                found = _cost(trial, own, near, many)
                if found < cost - _TINY:
                    place, cost = trial, found
            if place != begin[i, k]:
                begin[i, k] = place
                for d in range(many):
                    j = others[d]
                    rest[min(j, k), max(j, k)] = near[2, d] - _overlap(place, own, near[0, d], near[1, d])


@njit_fastmath
def _cost(place, own, near, many):
    """The sum of squared pair weights of a label with its arc at ``place``."""
    total = 0.0
    for d in range(many):
        left = near[2, d] - _overlap(place, own, near[0, d], near[1, d])
        total += left * left
    return total


@njit
def _way(place, own, sign, near, many):
    """Distance forward (back for ``sign`` -1) to the minimum, if no other end comes in between."""
    slope, curvature = 0.0, 0.0
    for d in range(many):
        change = _is_in(place + own, sign, near[0, d], near[1, d]) - _is_in(place, sign, near[0, d], near[1, d])
        slope += sign * change * (near[2, d] - _overlap(place, own, near[0, d], near[1, d]))
        curvature += change * change
    return max(slope, 0.0) / curvature if curvature > 0.0 else 0.0


@njit
def _is_in(point, sign, begin, length):
    """1 if the arc contains what comes right after the point (before it for ``sign`` -1), else 0."""
    after = point - begin
    after -= np.floor(after)
    if sign > 0.0:
        return 1.0 if after < length else 0.0
    return 1.0 if 0.0 < after <= length else 0.0
