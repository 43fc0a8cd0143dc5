"""The choice of pairs of labels that a model of label sets scores."""

from __future__ import annotations

import numpy as np
from scipy.special import rel_entr
from scipy.stats import chi2

_MOST = 5  # of each label; more took longer, and predicted no better
_CHANCE = 0.05  # the probability that some pair of independent labels is taken
_EXCLUSIVE = 0.5
"""Labels exclude each other where their number varies less than this share of the variance of independent labels."""


def all_pairs(y: np.ndarray) -> np.ndarray:
    """The pairs of labels that are on in some rows of ``y`` ``[n, K]`` and off in others: ``[P, 2]`` int64."""
    varies = np.asarray(y.any(0) & ~y.all(0))
    i, j = np.triu_indices(y.shape[1], 1)
    return np.stack([i, j], 1)[varies[i] & varies[j]]


def choose_pairs(y: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
    """The pairs whose counts differ from independent labels by more than chance: ``[P, 2]`` int64.

    The likelihood ratio of a table of two by two is tested, at a level of 5 % for all pairs together. Of each label at
    most five pairs are taken, the clearest first. Where examples have about equally many labels, as if the
    labels excluded each other, single counts are too small for a test: then every label is also paired with the five
    that are on most often.

    Args:
        y: ``[n, K]``, 1 where a label is on.
        times: ``[n]``, how often each example counts; None is once.
    """
    y = y.astype(np.float64)
    times = np.ones(len(y)) if times is None else times
    n, on = times.sum(), times @ y
    pairs = all_pairs(y)
    i, j = pairs.T
    both = (y.T @ (y * times[:, None]))[i, j]
    ratio = np.zeros(len(pairs))
    for count, first, second in (
        (both, on[i], on[j]),
        (on[i] - both, on[i], n - on[j]),
        (on[j] - both, n - on[i], on[j]),
        (n - on[i] - on[j] + both, n - on[i], n - on[j]),
    ):
        # Rounding of weights leaves counts below 0 or above the margins; a margin of 0 has no count.
        ratio += 2.0 * rel_entr(count.clip(0.0, np.minimum(first, second)), first * (second / n))
    taken = np.zeros(len(pairs), bool)
    left = np.full(y.shape[1], _MOST)
    limit = chi2.isf(_CHANCE / max(len(pairs), 1), 1)
    for p in np.argsort(-ratio, kind="stable")[: int((ratio > limit).sum())]:
        if left[i[p]] and left[j[p]]:
            left[i[p]] -= 1
            left[j[p]] -= 1
            taken[p] = True
    share, size = on / n, y.sum(1)
    spread = np.average(np.square(size - share.sum()), weights=times)
    if spread < _EXCLUSIVE * (share * (1.0 - share)).sum():
        often = np.argsort(-np.where(on < n, on, 0.0), kind="stable")[:_MOST]
        taken |= np.isin(i, often) | np.isin(j, often)
    return pairs[taken]
