"""The loops that find the best label sets, compiled by Numba."""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.structures.multilabel.message_passing import TINY, branch, pass_messages, reduce


@njit
def row_sums(weights, positive, negative):
    """Sums of the positive and of the negative entries of each row of ``weights`` ``[K, K]``, for :func:`screen`."""
    for k in range(len(weights)):
        above, below = 0.0, 0.0
        for w in weights[k]:
            above += max(w, 0.0)
            below += min(w, 0.0)
        positive[k], negative[k] = above, below


@njit
def decode(unary, weights, max_rounds, effort, begin, end, sums, memory, labels, value, bound):
    """Decode the examples ``begin`` to ``end - 1``.

    Args:
        unary: ``[B, K]`` float64, the score of each label, its loss included.
        weights: ``[B or 1, K, K]`` float64, symmetric with a zero diagonal: the scores of pairs.
        max_rounds: Most rounds over all pairs of an example; at least 1.
        effort: The most pair updates of branch and bound for an example with a gap; 0 for no branching.
        sums: Room for 2 K numbers.
        memory: A ``workspace(K)`` of this thread.
        labels: ``[B, K]`` int64, to be filled with 0 and 1.
        value: ``[B]`` float64, to be filled: the score of the labels.
        bound: ``[B]`` float64, to be filled: an upper bound of all scores, up to rounding; equal to the value if the
            labels are optimal.
    """
    size = unary.shape[1]
    positive, negative = sums[:size], sums[size : 2 * size]
    for row in range(begin, end):
        pairs = weights[row if weights.shape[0] > 1 else 0]
        if row == begin or weights.shape[0] > 1:
            row_sums(pairs, positive, negative)
        value[row], bound[row] = decode_row(
            unary[row], pairs, positive, negative, max_rounds, effort, memory, labels[row]
        )


@njit
def decode_row(unary, weights, positive, negative, max_rounds, effort, memory, labels):
    """Decode one example as :func:`decode` does: fill ``labels`` ``[K]``, return value and bound."""
    count = screen(unary, weights, positive, negative, memory, labels)
    if count == 0:
        value = score(unary, weights, labels, memory)
        return value, value
    reduce(unary, weights, labels, memory)
    if np.isfinite(memory.scale[0]):
        best, bound = pass_messages(memory, max_rounds)
        if effort > 0 and bound - best > TINY * memory.scale[0]:
            best, bound = branch(memory, best, bound, effort)
        gap = bound - best
    else:
        gap = np.nan
    for a in range(count):
        labels[memory.free[a]] = memory.best[a]
    value = score(unary, weights, labels, memory)
    # best and bound cover only the undecided labels, so only their gap is used; a gap within rounding is 0.
    return value, value if gap <= TINY * memory.scale[0] else value + gap


@njit
def screen(unary, weights, positive, negative, memory, labels):
    """Decide labels that are the same in all best sets and in all maximisers of the linear program.

    A label is off if it lowers the score even with all labels that attract it on, and on if it raises the score even
    with all labels that repel it on. Decided labels tighten the test for the others. ``labels`` ``[K]`` get 0, 1, or -1
    for an undecided label, and ``memory.free`` and ``memory.sizes[0]`` these in ascending order, and their number.

    Returns:
        The number of undecided labels.
    """
    free, on = memory.free, memory.place
    count, chosen = 0, 0
    for k in range(len(unary)):
        if unary[k] + positive[k] < 0.0:
            labels[k] = 0
        elif unary[k] + negative[k] > 0.0:
            labels[k] = 1
            on[chosen] = k
            chosen += 1
        else:
            labels[k] = -1
            free[count] = k
            count += 1
    changed = True
    while changed and count:
        left = 0
        for a in range(count):
            k = free[a]
            row, known = weights[k], unary[k]
            for c in range(chosen):
                known += row[on[c]]
            low = high = known
            for c in range(left):
                low += min(row[free[c]], 0.0)
                high += max(row[free[c]], 0.0)
            for c in range(a + 1, count):
                low += min(row[free[c]], 0.0)
                high += max(row[free[c]], 0.0)
            if high < 0.0:
                labels[k] = 0
            elif low > 0.0:
                labels[k] = 1
                on[chosen] = k
                chosen += 1
            else:
                free[left] = k
                left += 1
        changed, count = left < count, left
    memory.sizes[0] = count
    return count


@njit
def score(unary, weights, labels, memory):
    """The score of a set of labels; not finite if an entry of ``unary`` is not."""
    on, count, total = memory.place, 0, 0.0
    for k in range(len(unary)):
        if labels[k] == 1:
            total += unary[k]
            for c in range(count):
                total += weights[k, on[c]]
            on[count] = k
            count += 1
        elif not np.isfinite(unary[k]):
            return np.nan
    return total


@njit
def add_pairs(labelings, mass, total):
    """``total[b, p] += mass[b, c]`` where both labels of pair p are on in ``labelings[b, c]``.

    Few labels are on, so the time goes into the scan for them.
    """
    size = labelings.shape[2]
    for b in range(labelings.shape[0]):
        for c in range(labelings.shape[1]):
            labels = labelings[b, c]
            for i in range(size):
                if labels[i] == 1:
                    # The pairs of i begin after those of all before it: (size - 1) + (size - 2) + ...
                    before = i * size - i * (i + 1) // 2 - i - 1
                    for j in range(i + 1, size):
                        if labels[j] == 1:
                            total[b, before + j] += mass[b, c]
