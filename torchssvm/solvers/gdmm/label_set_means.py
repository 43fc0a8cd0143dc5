"""Means of label sets in GDMM: distributions over outputs with given marginals of the labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit, njit_fastmath

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
        masses = np.zeros((len(rows), labels * (labels - 1) // 2))
        _list_pairs(rows, self.q, self.begin, masses)
        return masses


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
def _overlap(first, length, second, other_length):
    """The overlap of two arcs; ``first`` and ``second`` in [0, 1] are their beginnings."""
    ahead = second - first
    ahead = ahead + 1.0 if ahead < 0.0 else ahead
    return max(min(length, ahead + other_length) - ahead, 0.0) + max(min(length, ahead + other_length - 1.0), 0.0)


@njit
def _list_pairs(rows, q, begin, masses):
    labels = q.shape[1]
    for r in range(len(rows)):
        i, place = rows[r], 0
        for a in range(labels):
            for b in range(a + 1, labels):
                if q[i, a] > 0.0 and q[i, b] > 0.0:
                    masses[r, place] = _overlap(begin[i, a], q[i, a], begin[i, b], q[i, b])
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
            length, place = q[i, k], begin[i, k]
            if not 0.0 < length < 1.0:
                continue
            many = 0
            for j in range(q.shape[1]):
                if j != k and 0.0 < q[i, j] < 1.0:
                    others[many] = j
                    near[0, many], near[1, many] = begin[i, j], q[i, j]
                    near[2, many] = rest[min(j, k), max(j, k)] + _overlap(place, length, begin[i, j], q[i, j])
                    many += 1
            cost = _cost(place, length, near, many)
            for d in range(many):
                end = near[0, d] + near[1, d]
                trial = end - np.floor(end)
                trial_cost = _cost(trial, length, near, many)
                if trial_cost < cost - _TINY:
                    place, cost = trial, trial_cost
            for sign in (1.0, -1.0):
                trial = place + sign * _way(place, length, sign, near, many)
                trial -= np.floor(trial)
                trial_cost = _cost(trial, length, near, many)
                if trial_cost < cost - _TINY:
                    place, cost = trial, trial_cost
            if place != begin[i, k]:
                begin[i, k] = place
                for d in range(many):
                    j = others[d]
                    rest[min(j, k), max(j, k)] = near[2, d] - _overlap(place, length, near[0, d], near[1, d])


@njit_fastmath
def _cost(place, length, near, many):
    """The sum of squared pair weights of a label with its arc at ``place``."""
    total = 0.0
    for d in range(many):
        left = near[2, d] - _overlap(place, length, near[0, d], near[1, d])
        total += left * left
    return total


@njit
def _way(place, length, sign, near, many):
    """Distance forward (back for ``sign`` -1) to the minimum, if no other end comes in between."""
    slope, curvature = 0.0, 0.0
    for d in range(many):
        change = _is_in(place + length, sign, near[0, d], near[1, d]) - _is_in(place, sign, near[0, d], near[1, d])
        slope += sign * change * (near[2, d] - _overlap(place, length, near[0, d], near[1, d]))
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
