"""Means of label sets whose labels are given, and whose pairs are those that the weights like."""

from __future__ import annotations

import numpy as np

_SWEEPS = 3


def pairs_of_means(q: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How often two labels are on together, in distributions over label sets whose labels are on ``q`` of the time.

    What agrees with the labels in the local polytope need not be the mean of label sets. Two families always are: of
    independent labels, ``q_i q_j``; and of labels that one number u, uniform in [0, 1], decides, each being on where
    ``u < q_k`` or where ``u > 1 - q_k``: together ``min(q_i, q_j)`` if their sides are the same, else
    ``max(0, q_i + q_j - 1)``. Sides are found by local search, from those where labels go wrong together and from those
    where they are on together. Each example takes what its weights prefer: that has the largest slope of the dual.

    Args:
        q: ``[B, K]``, 0 to 1.
        y: ``[B, K]`` bool, the targets.
        weights: ``[K, K]``, of pairs, symmetric, 0 on the diagonal.

    Returns:
        ``[B, P]``, the pairs i < j.
    """
    i, j = np.triu_indices(q.shape[1], 1)
    best = q[:, i] * q[:, j]
    lowest, highest = np.maximum(q[:, i] + q[:, j] - 1.0, 0.0), np.minimum(q[:, i], q[:, j])
    for side in (y.copy(), np.ones_like(y)):
        _turn(side, q, weights)
        tied = np.where(side[:, i] == side[:, j], highest, lowest)
        best = np.where(((tied - best) @ weights[i, j] > 0.0)[:, None], tied, best)
    return best


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
