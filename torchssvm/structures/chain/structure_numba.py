"""What chains do label by label on a CPU, compiled by Numba; the torch operations in ``chain.py`` give the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.core.jit import compiled


@compiled
def mask(labels: Any, lengths: Any, states: int, masked: Any) -> bool:
    """Write the labels with -1 beyond each length; False if a label is not one of the states."""
    for b in range(labels.shape[0]):
        for t in range(labels.shape[1]):
            masked[b, t] = labels[b, t] if t < lengths[b] else -1
            if t < lengths[b] and not 0 <= labels[b, t] < states:
                return False
    return True


@compiled
def augment(emission: Any, costs: Any, uniform: float, normalize: bool, labels: Any, augmented: Any) -> bool:
    """Add a position's cost to all states but the label's; False if a label is not one of the states.

    Without ``costs`` (no rows) every real position costs ``uniform``, or the T-th part of it.
    """
    for b in range(emission.shape[0]):
        cost = 0.0
        if not costs.shape[0]:
            length = 0
            for t in range(labels.shape[1]):
                length += labels[b, t] >= 0
            cost = uniform / length if normalize and length else uniform
        for t in range(emission.shape[1]):
            if costs.shape[0]:
                cost = costs[b, t]
            added = emission.dtype.type(cost if labels[b, t] >= 0 else 0.0)
            for k in range(emission.shape[2]):
                augmented[b, t, k] = emission[b, t, k] + added
            label = max(labels[b, t], 0)
            if label >= emission.shape[2]:
                return False
            augmented[b, t, label] = emission[b, t, label]
    return True


@compiled
def examine(
    found: Any,
    labels: Any,
    costs: Any,
    uniform: float,
    normalize: bool,
    emission: Any,
    pairs: Any,
    score: Any,
    loss: Any,
) -> bool:
    """Relative score and loss of ``found``; NaN where some potential of the example is not finite.

    Costs as in ``augment``. False if ``found`` or ``labels`` are not one of the states somewhere.
    """
    for b in range(found.shape[0]):
        matrix = pairs[b if pairs.shape[0] > 1 else 0]
        length = 0
        while length < labels.shape[1] and labels[b, length] >= 0:
            length += 1
        each = uniform / length if normalize and length else uniform
        # Both scores are summed as those of cached labelings are (oracles.chain_scores), and the loss position by
        # position: a labeling scores the same wherever it comes from, so that ties are decided alike.
        own, true, cost = 0.0, 0.0, 0.0
        for t in range(length):
            state, label = found[b, t], labels[b, t]
            if not 0 <= state < emission.shape[2] or label >= emission.shape[2]:
                return False
            own += emission[b, t, state]
            true += emission[b, t, label]
            if state != label:
                cost += costs[b, t] if costs.shape[0] else each
            if t > 0:
                step = matrix[t - 1 if matrix.shape[0] > 1 else 0]
                own += step[found[b, t - 1], state]
                true += step[labels[b, t - 1], label]
        wrong = 0
        for row in emission[b]:
            for value in row:
                wrong |= not abs(value) < np.inf
        if b == 0 or pairs.shape[0] > 1:
            wrong_pairs = 0
            for step in matrix:
                for row in step:
                    for value in row:
                        wrong_pairs |= not abs(value) < np.inf
        score[b], loss[b] = np.nan if wrong or wrong_pairs else own - true, cost
    return True


@compiled
def scatter(found: Any, labels: Any, emission: Any, pairs: Any) -> bool:
    """Add the states and pairs of ``found`` to the parts, and take away those of ``labels``.

    False, and nothing done, if ``found`` or ``labels`` are not one of the states somewhere.
    """
    for b in range(found.shape[0]):
        for t in range(found.shape[1]):
            if labels[b, t] >= emission.shape[2]:
                return False
            if labels[b, t] >= 0 and not 0 <= found[b, t] < emission.shape[2]:
                return False
    for b in range(found.shape[0]):
        for t in range(found.shape[1]):
            state, label = found[b, t], labels[b, t]
            if label < 0:
                break
            emission[b, t, state] += 1.0
            emission[b, t, label] -= 1.0
            if t > 0:
                place = t - 1 if pairs.shape[1] > 1 else 0
                pairs[b, place, found[b, t - 1], state] += 1.0
                pairs[b, place, labels[b, t - 1], label] -= 1.0
    return True
