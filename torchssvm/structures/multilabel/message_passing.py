"""Messages between labels that are scored in pairs: an upper bound of all label sets, and one that comes near.

The linear program over the local polytope has a dual with one number c_ij for every pair, between 0 and its weight w_ij
(see :func:`sweep`). MPLP [1]_ minimises it one pair after another; what is below is the same update in these
numbers. It takes the c_ij for which both labels are equally sure, among all that are as good, and that is coordinate
descent on ``|b(c)|^2``: so it does not stop short of the optimum, as coordinate descent on the bound alone would.

References:
    .. [1] A. Globerson and T. Jaakkola. Fixing max-product: convergent message passing algorithms for MAP
       LP-relaxations. NIPS 2007.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchssvm.core.jit import njit

TINY = 1e-12  # of the sum of all scores: gaps up to this are rounding


class Workspace(NamedTuple):
    """Working memory to decode one example of up to K labels, with P = K (K - 1) / 2 pairs: see :func:`workspace`.

    What is left to decide is a problem of U labels, numbered from 0, and of their E pairs with a weight that is not 0.

    Attributes:
        sizes: ``[2]``, U and E.
        scale: ``[1]``, the sum of the absolute values of all scores.
        free: ``[K]``, the U labels.
        place: ``[K]``, the number of a label among them, or -1; before that, the labels that are on.
        unary: ``[K]``, their own scores, with those of the pairs with labels that are on.
        belief: ``[K]``, b.
        fixed: ``[K]``, 0 or 1 where branching has decided, else -1.
        labels: ``[K]``, some labels.
        gain: ``[K]``, what flipping a label gains.
        best: ``[K]``, the best labels that were seen.
        first: ``[P]``, one end of each of the E pairs.
        second: ``[P]``, its other end.
        weight: ``[P]``.
        split: ``[P]``, c: what the first end is given of the weight, between 0 and the weight.
        active: ``[P]``, the pairs of which no end is fixed.
        trail: ``[K]``, labels in the order in which they were fixed.
        mark: ``[K]``, how long the trail was at every depth.
        tried: ``[K]``, whether the second side of a depth is being searched.
        above: ``[K]``, the bound at every depth.
    """

    sizes: np.ndarray
    scale: np.ndarray
    free: np.ndarray
    place: np.ndarray
    unary: np.ndarray
    belief: np.ndarray
    fixed: np.ndarray
    labels: np.ndarray
    gain: np.ndarray
    best: np.ndarray
    first: np.ndarray
    second: np.ndarray
    weight: np.ndarray
    split: np.ndarray
    active: np.ndarray
    trail: np.ndarray
    mark: np.ndarray
    tried: np.ndarray
    above: np.ndarray


def workspace(num_labels: int) -> Workspace:
    """Memory of any content for K labels; a thread needs its own."""
    pairs = num_labels * (num_labels - 1) // 2
    sizes = {"sizes": 2, "scale": 1, "first": pairs, "second": pairs, "weight": pairs, "split": pairs, "active": pairs}
    numbers = {"scale", "unary", "belief", "gain", "weight", "split", "above"}
    return Workspace(
        *(
            np.empty(sizes.get(name, num_labels), np.float64 if name in numbers else np.int64)
            for name in Workspace._fields
        )
    )


@njit
def reduce(unary, weights, labels, memory):
    """Make the problem of the labels that are undecided, when the others are what they are.

    Pairs are ordered by ``(i + j) mod K``: those that share the remainder have no label in common.

    Args:
        unary: ``[K]``.
        weights: ``[K, K]``.
        labels: ``[K]``, 0, 1, or -1 where a label is undecided.
        memory: Its ``free`` holds the undecided labels in ascending order, and ``sizes[0]`` their number.
    """
    size, count, edges, total = len(unary), memory.sizes[0], 0, 0.0
    place = memory.place
    for k in range(size):
        place[k] = -1
    for a in range(count):
        k = memory.free[a]
        place[k] = a
        own = unary[k]
        for j in range(size):
            if labels[j] == 1:
                own += weights[k, j]
        memory.unary[a] = own
        memory.best[a] = 0
        total += abs(own)
    for remainder in range(size):
        for a in range(count):
            i = memory.free[a]
            j = remainder - i if remainder >= i else remainder - i + size
            if j > i and place[j] >= 0 and weights[i, j] != 0.0:
                memory.first[edges], memory.second[edges] = a, place[j]
                memory.weight[edges], memory.split[edges] = weights[i, j], weights[i, j] / 2
                total += abs(weights[i, j])
                edges += 1
    memory.sizes[1] = edges
    memory.scale[0] = total


@njit
def pass_messages(memory, sweeps):
    """Send all messages up to ``sweeps`` times; returns the score of ``memory.best`` and the lowest bound."""
    for a in range(memory.sizes[0]):
        memory.fixed[a] = -1
    active, base = restrict(memory)
    best, bound = -np.inf, np.inf
    tiny = TINY * memory.scale[0]
    next_check = 1
    for done in range(1, sweeps + 1):
        moved = sweep(memory, active)
        settled = moved <= tiny
        if done < next_check and done < sweeps and not settled:
            continue
        next_check = done + 1 + done // 4
        bound = min(bound, dual_value(memory, active, base))
        best = decode_beliefs(memory, best)
        if settled or bound - best <= tiny:
            break
    return best, bound


@njit
def restrict(memory):
    """Beliefs of the labels that are not fixed; returns how many pairs are active, and the score of what is fixed."""
    fixed, belief = memory.fixed, memory.belief
    count, base = 0, 0.0
    for a in range(memory.sizes[0]):
        belief[a] = memory.unary[a]
        if fixed[a] == 1:
            base += memory.unary[a]
    for e in range(memory.sizes[1]):
        i, j, w = memory.first[e], memory.second[e], memory.weight[e]
        if fixed[i] < 0 and fixed[j] < 0:
            belief[i] += memory.split[e]
            belief[j] += w - memory.split[e] if w > 0.0 else memory.split[e]
            memory.active[count] = e
            count += 1
        elif fixed[i] == 1 and fixed[j] == 1:
            base += w
        elif fixed[i] == 1:
            belief[j] += w
        elif fixed[j] == 1:
            belief[i] += w
    return count, base


@njit
def sweep(memory, active):
    """One update of every active pair; returns how much all of them moved.

    A pair that attracts, w > 0, splits its weight: c is for the first label and w - c for the second, and b_i = b_j is
    the aim. One that repels, w < 0, takes -c from the bound and adds c to both, and b_i = -b_j is the aim.
    """
    belief, moved = memory.belief, 0.0
    for place in range(active):
        e = memory.active[place]
        i, j, w, held = memory.first[e], memory.second[e], memory.weight[e], memory.split[e]
        sign = 1.0 if w > 0.0 else -1.0
        wanted = held + 0.5 * (sign * belief[j] - belief[i])
        change = min(max(wanted, min(w, 0.0)), max(w, 0.0)) - held
        memory.split[e] = held + change
        belief[i] += change
        belief[j] -= sign * change
        moved += abs(change)
    return moved


@njit
def dual_value(memory, active, base):
    """The upper bound: ``sum_i max(0, b_i) - sum_{w_ij < 0} c_ij``, and what is fixed."""
    total = base
    for a in range(memory.sizes[0]):
        if memory.fixed[a] < 0:
            total += max(memory.belief[a], 0.0)
    for place in range(active):
        e = memory.active[place]
        if memory.weight[e] < 0.0:
            total -= memory.split[e]
    return total


@njit
def decode_beliefs(memory, best):
    """Labels with a belief above 0 are on, and flips improve them; the new best score, whose labels are kept."""
    labels = memory.labels
    for a in range(memory.sizes[0]):
        labels[a] = memory.fixed[a] if memory.fixed[a] >= 0 else (1 if memory.belief[a] > 0.0 else 0)
    value = climb(memory)
    if value > best:
        for a in range(memory.sizes[0]):
            memory.best[a] = labels[a]
        return value
    return best


@njit
def climb(memory):
    """Flip single labels and pairs with a weight as long as the score gains; returns the score."""
    labels, gain = memory.labels, memory.gain
    tiny = TINY * memory.scale[0]
    value = 0.0
    for a in range(memory.sizes[0]):
        gain[a] = memory.unary[a]
    for e in range(memory.sizes[1]):
        i, j, w = memory.first[e], memory.second[e], memory.weight[e]
        if labels[j] == 1:
            gain[i] += w
        if labels[i] == 1:
            gain[j] += w
            if labels[j] == 1:
                value += w
    for a in range(memory.sizes[0]):
        if labels[a] == 1:
            value += memory.unary[a]
            gain[a] = -gain[a]
    for _ in range(2 * memory.sizes[0]):
        one, other, most = -1, -1, tiny
        for a in range(memory.sizes[0]):
            if memory.fixed[a] < 0 and gain[a] > most:
                one, most = a, gain[a]
        if one < 0:
            for e in range(memory.sizes[1]):
                i, j = memory.first[e], memory.second[e]
                if memory.fixed[i] < 0 and memory.fixed[j] < 0:
                    together = memory.weight[e] if labels[i] == labels[j] else -memory.weight[e]
                    if gain[i] + gain[j] + together > most:
                        one, other, most = i, j, gain[i] + gain[j] + together
        if one < 0:
            break
        value += most
        _flip(memory, one)
        if other >= 0:
            _flip(memory, other)
    return value


@njit
def _flip(memory, a):
    labels, gain = memory.labels, memory.gain
    for e in range(memory.sizes[1]):
        i, j, w = memory.first[e], memory.second[e], memory.weight[e]
        if i == a or j == a:
            other = i + j - a
            # The weight counts where both are on: flipping a changes what flipping the other gains.
            gain[other] += w if labels[a] == labels[other] else -w
    gain[a] = -gain[a]
    labels[a] = 1 - labels[a]
