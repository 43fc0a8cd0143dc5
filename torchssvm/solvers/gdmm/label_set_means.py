"""Means of label sets whose labels are given, and whose pairs make the weights small. Compiled by Numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchssvm.core.jit import njit, njit_fastmath

_SWEEPS = 3
_TINY = 1e-12  # a decrease that may be rounding


class Means(NamedTuple):
    """Distributions over label sets, one for each example, whose labels are on ``q`` of the time.

    What agrees with the labels in the local polytope need not be the mean of label sets. This always is: a number u,
    uniform on a circle of length 1, decides all labels of an example, each being on where u lies in an arc of length
    ``q_k``. Two labels are on together where their arcs overlap.

    Attributes:
        q: ``[n, K]``, 0 to 1.
        begin: ``[n, K]``, where each arc begins.
        rest: ``[K, K]``, ``sum_i (y_i y_i^T - pairs_i)`` above the diagonal: the weights of pairs times ``lam n``.
    """

    q: np.ndarray
    begin: np.ndarray
    rest: np.ndarray

    def pairs(self, rows: np.ndarray) -> np.ndarray:
        """How often two labels are on together, ``[B, P]`` for the pairs i < j of the examples ``rows``."""
        labels = self.q.shape[1]
        found = np.zeros((len(rows), labels * (labels - 1) // 2))
        _list_pairs(rows, self.q, self.begin, found)
        return found


def choose_means(q: np.ndarray, y: np.ndarray) -> Means:
    """Arcs for which the weights of pairs are small, and so the dual is large.

    The losses, and the weights of features, are those of ``q`` whatever the arcs. At first labels are wrong together as
    far as they can be; then one arc after another goes where the sum of the squared weights is least, of the places
    that are looked at: the ends of the other arcs, and from the best of them the minimum along the circle.

    Args:
        q: ``[n, K]``, 0 to 1.
        y: ``[n, K]`` bool, the targets.
    """
    labels = q.shape[1]
    begin, rest = np.where(y, 0.0, 1.0 - q), np.zeros((labels, labels))
    _sum_rest(q, y, begin, rest)
    others, near = np.zeros(labels, np.int64), np.zeros((3, labels))
    for _ in range(_SWEEPS):
        _move_arcs(q, begin, rest, others, near)
    rest[:] = 0.0
    _sum_rest(q, y, begin, rest)  # without the rounding of the moves
    return Means(q, begin, rest)


@njit
def _overlap(first, own, second, other):
    """What two arcs have in common: of lengths ``own`` and ``other``, from ``first`` and ``second`` in [0, 1] on."""
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
    """Every arc once, where it can matter: one that is empty or the whole circle overlaps the same everywhere.

    Args:
        q, begin, rest: As in :class:`Means`.
        others: ``[K]`` int64, room.
        near: ``[3, K]`` float64, room: where the arcs of ``others`` begin, their lengths, and the overlaps with the arc
            that moves at which the weights of the pairs would be 0.
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
    """The sum of the squared weights of the label's pairs, with its arc at ``place``."""
    total = 0.0
    for d in range(many):
        left = near[2, d] - _overlap(place, own, near[0, d], near[1, d])
        total += left * left
    return total


@njit
def _way(place, own, sign, near, many):
    """How far the arc must go forward (or back, ``sign`` -1) to the minimum, if no other end comes in between."""
    slope, curvature = 0.0, 0.0
    for d in range(many):
        change = _is_in(place + own, sign, near[0, d], near[1, d]) - _is_in(place, sign, near[0, d], near[1, d])
        slope += sign * change * (near[2, d] - _overlap(place, own, near[0, d], near[1, d]))
        curvature += change * change
    return max(slope, 0.0) / curvature if curvature > 0.0 else 0.0


@njit
def _is_in(point, sign, begin, length):
    """1 if the arc holds what comes after the point (before it, for ``sign`` -1), else 0."""
    after = point - begin
    after -= np.floor(after)
    if sign > 0.0:
        return 1.0 if after < length else 0.0
    return 1.0 if 0.0 < after <= length else 0.0
