"""Means of label sets whose labels are given, and whose pairs make the weights small."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_SWEEPS = 3
_NUMBERS = 1 << 22  # pairs at a time


class Means(NamedTuple):
    """Distributions over label sets, one for each example, whose labels are on ``q`` of the time.

    What agrees with the labels in the local polytope need not be the mean of label sets. Two families always are: of
    independent labels, ``q_i q_j``; and of labels that one number u, uniform in [0, 1], decides, each being on where
    ``u < q_k`` or where ``u > 1 - q_k``: together ``min(q_i, q_j)`` if their sides are the same, else
    ``max(0, q_i + q_j - 1)``. These are mixtures of both.

    Attributes:
        q: ``[n, K]``, 0 to 1.
        side: ``[n, K]`` bool, on which side of u each label is on.
        tied: ``[n]``, the share of the second family.
    """

    q: np.ndarray
    side: np.ndarray
    tied: np.ndarray

    def pairs(self, rows: np.ndarray) -> np.ndarray:
        """How often two labels are on together, ``[B, P]`` for the pairs i < j of the examples ``rows``."""
        q, side = self.q[rows], self.side[rows]
        i, j = np.triu_indices(q.shape[1], 1)
        apart = q[:, i] * q[:, j]
        return apart + self.tied[rows, None] * (_tied(q, side, i, j) - apart)


def choose_means(q: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Means:
    """The mixtures whose dual is largest, of those that are looked at.

    Each example first takes the sides that its weights prefer, which has the largest slope of the dual; they are found
    by local search, from those where labels go wrong together and from those where they are on together. All examples
    at once may go too far along that slope: one share of all of them is found by exact line search. The losses, and
    the weights of features, are those of ``q`` whatever is chosen.

    Args:
        q: ``[n, K]``, 0 to 1.
        y: ``[n, K]`` bool, the targets.
        weights: ``[K, K]``, of pairs, symmetric, 0 on the diagonal.
    """
    n, labels = q.shape
    i, j = np.triu_indices(labels, 1)
    side, tied = np.ones_like(y), np.zeros(n)
    start, change = np.zeros(len(i)), np.zeros(len(i))  # sums of y y^T - q q^T, and of what tying takes off it
    step = max(1, _NUMBERS // max(len(i), 1))
    for begin in range(0, n, step):
        rows = slice(begin, begin + step)
        its_q, its_y = q[rows], y[rows]
        apart = its_q[:, i] * its_q[:, j]
        start += (its_y[:, i] & its_y[:, j]).sum(0) - apart.sum(0)
        best = np.zeros(len(its_q))
        for its_side in (its_y.copy(), np.ones_like(its_y)):
            _turn(its_side, its_q, weights)
            gain = (_tied(its_q, its_side, i, j) - apart) @ weights[i, j]
            better = gain > best
            best = np.where(better, gain, best)
            side[rows][better] = its_side[better]
        tied[rows] = best > 0.0
        change -= tied[rows] @ (_tied(its_q, side[rows], i, j) - apart)
    length = float(change @ change)
    share = min(max(-float(start @ change) / length, 0.0), 1.0) if length > 0.0 else 0.0
    return Means(q, side, share * tied)


def _tied(q: np.ndarray, side: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    own, other = q[:, i], q[:, j]
    return np.where(side[:, i] == side[:, j], np.minimum(own, other), np.maximum(own + other - 1.0, 0.0))


def _turn(side: np.ndarray, q: np.ndarray, weights: np.ndarray) -> None:
    """Turn one label after another to the other side, while the weights gain by it."""
    moving = (q > 0.0) & (q < 1.0)  # the pairs of others are the same on both sides
    for _ in range(_SWEEPS):
        turned = False
        for k in range(q.shape[1]):
            rows = moving[:, k].nonzero()[0]
            own, others = q[rows, k, None], q[rows]
            together = (np.minimum(own, others) - np.maximum(own + others - 1.0, 0.0)) * weights[k]
            gain = np.where(side[rows] == side[rows, k, None], -together, together).sum(1)
            side[rows[gain > 1e-12], k] ^= True
            turned |= bool((gain > 1e-12).any())
        if not turned:
            return
