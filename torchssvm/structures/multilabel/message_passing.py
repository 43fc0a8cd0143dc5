"""Message passing between labels with pairwise scores: an upper bound of all scores, and a good label set.

Branch and bound, for examples that messages leave open, is a depth-first search that fixes label by label.

The linear program over the local polytope has a dual with one variable c_ij for each pair, between 0 and its weight
w_ij (see :func:`one_round`). MPLP [1]_ minimises it pair by pair; the update below is the same in terms of c. Among all
minimisers c_ij it takes the one that balances both beliefs, which is coordinate descent on ``|b(c)|^2``. Coordinate
descent on the bound alone could stop before the optimum; this does not.

References:
    .. [1] A. Globerson and T. Jaakkola. Fixing max-product: convergent message passing algorithms for MAP
       LP-relaxations. NIPS 2007.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit

EPS = float(np.finfo(np.float64).eps)
_ROUNDS = 2  # of branch and bound, for each subproblem, which starts from the messages of the previous one


class Workspace(NamedTuple):
    """Working memory to decode one example of up to K labels, with P = K (K - 1) / 2 pairs: see :func:`workspace`.

    The undecided labels form a problem of U labels, numbered from 0, and their E pairs with non-zero weight.
    """

    sizes: np.ndarray  # ``[2]``, U and E
    tiny: np.ndarray  # ``[1]``, what rounding may do to the sum of all scores: smaller gaps count as none
    free: np.ndarray  # ``[K]``, the U undecided labels
    # ``[K]``, the number of each label among the undecided ones, or -1; first used for the labels that are on
    place: np.ndarray
    unary: np.ndarray  # ``[K]``, scores of the undecided labels, including their pairs with labels that are on
    belief: np.ndarray  # ``[K]``, the beliefs b
    fixed: np.ndarray  # ``[K]``, 0 or 1 where branching has decided, else -1
    labels: np.ndarray  # ``[K]``, the current labels
    gain: np.ndarray  # ``[K]``, what flipping a label gains
    best: np.ndarray  # ``[K]``, the best labels so far
    first: np.ndarray  # ``[P]``, one end of each of the E pairs
    second: np.ndarray  # ``[P]``, the other end
    weight: np.ndarray  # ``[P]``, w
    split: np.ndarray  # ``[P]``, c: the share of the weight that the first end gets, between 0 and the weight
    active: np.ndarray  # ``[P]``, the pairs with no fixed end
    trail: np.ndarray  # ``[K]``, labels in the order in which they were fixed
    mark: np.ndarray  # ``[K]``, the length of the trail at each depth
    tried: np.ndarray  # ``[K]``, whether the second value is being searched at each depth
    above: np.ndarray  # ``[K]``, the bound at each depth


def workspace(num_labels: int) -> Workspace:
    """Uninitialised memory for K labels; each thread needs some."""
    pairs = num_labels * (num_labels - 1) // 2
    sizes = {"sizes": 2, "tiny": 1, "first": pairs, "second": pairs, "weight": pairs, "split": pairs, "active": pairs}
    numbers = {"tiny", "unary", "belief", "gain", "weight", "split", "above"}
    return Workspace(
        *(
            np.empty(sizes.get(name, num_labels), np.float64 if name in numbers else np.int64)
            for name in Workspace._fields
        )
    )


@njit
def reduce(unary, weights, labels, memory):
    """Build the problem of the undecided labels, with the decided labels fixed.

    Pairs are ordered by ``(i + j) mod K``: pairs with the same remainder have no label in common. ``labels`` ``[K]``
    are 0, 1, or -1 for an undecided label; ``memory.free`` holds these in ascending order, ``memory.sizes[0]`` their
    number.
    """
    size, count, edges, total = len(unary), memory.sizes[0], 0, 0.0
    place = memory.place
    for k in range(size):
        place[k] = -1
    for a in range(count):
        k = memory.free[a]
        place[k] = a
        score = unary[k]
        for j in range(size):
            if labels[j] == 1:
                score += weights[k, j]
        memory.unary[a] = score
        memory.best[a] = 0
        total += abs(score)
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
    memory.tiny[0] = EPS * size * total


@njit
def pass_messages(memory, max_rounds):
    """Run up to ``max_rounds`` rounds; returns the score of ``memory.best`` and the lowest bound."""
    for a in range(memory.sizes[0]):
        memory.fixed[a] = -1
    active, base = restrict(memory)
    best, bound = -np.inf, np.inf
    tiny = memory.tiny[0]
    next_check = 1
    for done in range(1, max_rounds + 1):
        moved = one_round(memory, active)
        settled = moved <= tiny
        if done < next_check and done < max_rounds and not settled:
            continue
        next_check = done + 1 + done // 4
        bound = min(bound, dual_value(memory, active, base))
        best = decode_beliefs(memory, best)
        if settled or bound - best <= tiny:
            break
    return best, bound


@njit
def restrict(memory):
    """Set the beliefs of the free labels; returns the number of active pairs and the score of the fixed labels."""
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
def one_round(memory, active):
    """Update each active pair once; returns the sum of all absolute changes.

    An attractive pair (w > 0) splits its weight into c for the first label and w - c for the second, so that b_i = b_j.
    A repulsive pair (w < 0) adds c to both beliefs and -c to the bound, so that b_i = -b_j.
    """
    belief, moved = memory.belief, 0.0
    for place in range(active):
        e = memory.active[place]
        i, j, w, share = memory.first[e], memory.second[e], memory.weight[e], memory.split[e]
        sign = 1.0 if w > 0.0 else -1.0
        wanted = share + 0.5 * (sign * belief[j] - belief[i])
        change = min(max(wanted, min(w, 0.0)), max(w, 0.0)) - share
        memory.split[e] = share + change
        belief[i] += change
        belief[j] -= sign * change
        moved += abs(change)
    return moved


@njit
def dual_value(memory, active, base):
    """The upper bound: ``sum_i max(0, b_i) - sum_{w_ij < 0} c_ij``, plus the score of the fixed labels."""
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
    """Decode positive beliefs as on, improve by flips, and keep the best; returns the best score."""
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
    """Flip single labels or pairs while the score rises; returns the score."""
    labels, gain = memory.labels, memory.gain
    tiny = memory.tiny[0]
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
            # The weight counts if both are on, so flipping a changes the gain of flipping the other.
            gain[other] += w if labels[a] == labels[other] else -w
    gain[a] = -gain[a]
    labels[a] = 1 - labels[a]


@njit
def branch(memory, best, bound, effort):
    """Close the gap between ``best`` and ``bound`` with at most about ``effort`` pair updates; returns both.

    Any messages bound any subproblem, so backtracking only has to undo the fixed labels.
    """
    tiny = memory.tiny[0]
    fixed, trail, mark = memory.fixed, memory.trail, memory.mark
    for a in range(memory.sizes[0]):
        fixed[a] = -1
    depth, length = 0, 0
    while effort > 0:
        above, best, length, spent = _examine(memory, best, length)
        effort -= spent
        if above - best > tiny:
            a = _choose(memory)
            mark[depth], memory.tried[depth], memory.above[depth] = length, 0, above
            fixed[a] = 1 if memory.belief[a] > 0.0 else 0
        else:
            # Backtrack to a label whose other value may be better.
            while depth > 0 and (memory.tried[depth - 1] == 1 or memory.above[depth - 1] - best <= tiny):
                depth -= 1
            if depth == 0:
                return best, best
            depth -= 1
            a = trail[mark[depth]]
            for place in range(mark[depth] + 1, length):
                fixed[trail[place]] = -1
            fixed[a] = 1 - fixed[a]
            memory.tried[depth] = 1
            length = mark[depth]
        trail[length] = a
        depth, length = depth + 1, length + 1
    # Open subproblems: the untried values of the labels on the trail, and the current one.
    left = best
    for d in range(depth):
        if memory.tried[d] == 0 or d == depth - 1:
            left = max(left, memory.above[d])
    return best, min(bound, left)


@njit
def _examine(memory, best, length):
    """Bound the current subproblem; fix the labels whose other value cannot be better than ``best``."""
    tiny, spent = memory.tiny[0], 0
    while True:
        active, base = restrict(memory)
        above = dual_value(memory, active, base)
        spent += memory.sizes[0] + memory.sizes[1]
        for _ in range(_ROUNDS):
            if above - best <= tiny:
                return above, best, length, spent
            one_round(memory, active)
            spent += active
            above = dual_value(memory, active, base)
        best = decode_beliefs(memory, best)
        if above - best <= tiny:
            return above, best, length, spent
        before = length
        for a in range(memory.sizes[0]):
            if memory.fixed[a] < 0 and above - abs(memory.belief[a]) - best <= tiny:
                memory.fixed[a] = 1 if memory.belief[a] > 0.0 else 0
                memory.trail[length] = a
                length += 1
        if length == before:
            return above, best, length, spent


@njit
def _choose(memory):
    """The least certain label: the largest sum of its pairs' ``|w|`` less twice its ``|b|``."""
    gain = memory.gain
    for a in range(memory.sizes[0]):
        gain[a] = 0.0
    for e in range(memory.sizes[1]):
        i, j = memory.first[e], memory.second[e]
        if memory.fixed[i] < 0 and memory.fixed[j] < 0:
            gain[i] += abs(memory.weight[e])
            gain[j] += abs(memory.weight[e])
    chosen = -1
    for a in range(memory.sizes[0]):
        if memory.fixed[a] < 0:
            gain[a] -= 2.0 * abs(memory.belief[a])
            if chosen < 0 or gain[a] > gain[chosen]:
                chosen = a
    return chosen
