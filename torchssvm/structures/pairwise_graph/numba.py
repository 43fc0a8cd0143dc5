"""The loops that pass messages on a graph, compiled by Numba.

Nodes are numbered in the order of a sweep; edge e joins ``first[e] < second[e]``. The score of labels y is
``sum_p node[p, y_p] + sum_e table[e, y_first, y_second]``. Messages move scores from edges to nodes, ``ahead[e]`` to the
second end and ``back[e]`` to the first; clusters move scores between the edges of a cycle. No move changes the score of
any labels, so that the maxima of what nodes, edges and cycles hold always add up to an upper bound of all scores.
"""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit


@njit
def largest(scores):
    """The maximum of ``[K]``."""
    top = scores[0]
    for score in scores:
        top = score if score > top else top
    return top


@njit
def gather(node, begin, end, incoming, ahead, back, p, into):
    """``into[k]``: the node's scores and all messages to it."""
    for k in range(node.shape[1]):
        into[k] = node[p, k]
    for e in range(begin[p], begin[p + 1]):
        for k in range(node.shape[1]):
            into[k] += back[e, k]
    for q in range(end[p], end[p + 1]):
        for k in range(node.shape[1]):
            into[k] += ahead[incoming[q], k]


@njit
def sweep_ahead(node, table, second, begin, end, incoming, first, tree, ahead, back, labels, room):
    """Messages to later nodes; ``labels`` takes each node's best, given those of the nodes before it."""
    size, states = node.shape
    total, own = room[0], room[1]
    for p in range(size):
        gather(node, begin, end, incoming, ahead, back, p, total)
        for k in range(states):
            own[k] = total[k]
        for q in range(end[p], end[p + 1]):
            e = incoming[q]
            for k in range(states):
                own[k] += table[e, labels[first[e]], k] - ahead[e, k]
        best = 0
        for k in range(1, states):
            if own[k] > own[best]:
                best = k
        labels[p] = best
        out = begin[p + 1] - begin[p]
        share = 1.0 if tree else 1.0 / max(out, end[p + 1] - end[p], 1)
        for e in range(begin[p], begin[p + 1]):
            for k in range(states):
                ahead[e, k] = -np.inf
            for j in range(states):
                given = share * total[j] - back[e, j]
                for k in range(states):
                    score = given + table[e, j, k]
                    ahead[e, k] = score if score > ahead[e, k] else ahead[e, k]
            top = largest(ahead[e])
            for k in range(states):
                ahead[e, k] -= top


@njit
def sweep_back(node, table, second, begin, end, incoming, first, tree, ahead, back, room):
    """Messages to earlier nodes; returns an upper bound of all scores."""
    size, states = node.shape
    total, bound = room[0], 0.0
    for p in range(size - 1, -1, -1):
        gather(node, begin, end, incoming, ahead, back, p, total)
        top = largest(total)
        bound += top
        into = end[p + 1] - end[p]
        share = 1.0 if tree else 1.0 / max(begin[p + 1] - begin[p], into, 1)
        for q in range(end[p], end[p + 1]):
            e = incoming[q]
            high = -np.inf
            for k in range(states):
                best = -np.inf
                for j in range(states):
                    score = share * (total[j] - top) - ahead[e, j] + table[e, k, j]
                    best = score if score > best else best
                back[e, k] = best
                high = best if best > high else high
            for k in range(states):
                back[e, k] -= high
            bound += high
    return bound


@njit
def climb(node, table, second, begin, end, incoming, first, labels, room):
    """Relabel single nodes while the score rises; returns the score."""
    size, states = node.shape
    total = room[0]
    for _ in range(size):
        changed = False
        for p in range(size):
            for k in range(states):
                total[k] = node[p, k]
            for e in range(begin[p], begin[p + 1]):
                for k in range(states):
                    total[k] += table[e, k, labels[second[e]]]
            for q in range(end[p], end[p + 1]):
                for k in range(states):
                    total[k] += table[incoming[q], labels[first[incoming[q]]], k]
            best = labels[p]
            for k in range(states):
                if total[k] > total[best] + 1e-12 * abs(total[best]):
                    best = k
            changed |= best != labels[p]
            labels[p] = best
        if not changed:
            break
    value = 0.0
    for p in range(size):
        value += node[p, labels[p]]
    for e in range(len(first)):
        value += table[e, labels[first[e]], labels[second[e]]]
    return value


@njit
def join(a, b, into):
    """The best way over the middle node: ``into[i, j] = max_k a[i, k] + b[k, j]``."""
    states = len(a)
    for i in range(states):
        for j in range(states):
            into[i, j] = -np.inf
        for k in range(states):
            known = a[i, k]
            for j in range(states):
                score = known + b[k, j]
                into[i, j] = score if score > into[i, j] else into[i, j]


@njit
def tighten(cycles, turned, moved, node, table, second, begin, end, incoming, first, ahead, back, total, room):
    """Each cycle of three or four edges shares its max-marginals evenly between its edges.

    Args:
        cycles: ``[C, 4]``, the edges of each cycle in its order; -1 at the fourth place of a triangle.
        turned: ``[C, 4]``, whether the edge's second end comes first on the cycle.
        moved: ``[C, 4, K, K]``, the scores that each cycle holds of its edges, in the order of the edge.
        total: Room for K numbers.
        room: Room for ``[12, K, K]``.
    """
    states = node.shape[1]
    for c in range(len(cycles)):
        length = 3 if cycles[c, 3] < 0 else 4
        for s in range(length):
            e, way = cycles[c, s], room[s]
            p = second[e] if turned[c, s] else first[e]
            # A third of what the node at the edge's begin on the cycle has goes along.
            gather(node, begin, end, incoming, ahead, back, p, total)
            for k in range(states):
                if turned[c, s]:
                    ahead[e, k] -= 0.25 * total[k]
                else:
                    back[e, k] -= 0.25 * total[k]
            for j in range(states):
                for k in range(states):
                    score = table[e, j, k] - back[e, j] - ahead[e, k] + moved[c, s, j, k]
                    if turned[c, s]:
                        way[k, j] = score
                    else:
                        way[j, k] = score
        if length == 3:
            join(room[1], room[2], room[4])
            join(room[2], room[0], room[5])
            join(room[0], room[1], room[6])
        else:
            join(room[0], room[1], room[8])
            join(room[2], room[3], room[9])
            join(room[1], room[9], room[4])
            join(room[9], room[0], room[5])
            join(room[3], room[8], room[6])
            join(room[8], room[2], room[7])
        for s in range(length):
            e, way, rest = cycles[c, s], room[s], room[4 + s]
            for j in range(states):
                for k in range(states):
                    a, b = (k, j) if turned[c, s] else (j, k)
                    fair = (way[a, b] + rest[b, a]) / length
                    moved[c, s, j, k] = way[a, b] - fair
                    table[e, j, k] = fair + back[e, j] + ahead[e, k]


@njit
def pass_messages(
    node, table, second, begin, end, incoming, first, tree, cycles, turned, rounds, tolerance, ahead, back, moved,
    score_table, room, cluster_room, trial, labels,
):  # fmt: skip
    """Rounds of messages until the bound meets the best score found.

    Args:
        node: ``[N, K]``.
        table: ``[E, K, K]``, changed by clusters.
        second: ``[E]``.
        begin: ``[N + 1]``: node p is the first end of the edges ``begin[p]`` to ``begin[p + 1] - 1``.
        end: ``[N + 1]``, of ``incoming`` in the same way.
        incoming: ``[E]``, edges sorted by their second end.
        first: ``[E]``.
        tree: Whether there is no cycle: one round is exact.
        cycles: See :func:`tighten`.
        turned: See :func:`tighten`.
        rounds: ``[2]``, the most rounds without clusters, and with them.
        tolerance: Relative gap that counts as none.
        ahead: ``[E, K]``, messages.
        back: ``[E, K]``, messages.
        moved: See :func:`tighten`.
        score_table: ``[E, K, K]``, as they came.
        room: Room for ``[2, K]``.
        cluster_room: Room for ``[12, K, K]``.
        trial: Room for N labels.
        labels: ``[N]``, to be filled.

    Returns:
        The score of the labels and the bound.
    """
    best, bound = -np.inf, np.inf
    clusters = False
    used = 0
    last = np.inf
    while True:
        found = sweep_back(node, table, second, begin, end, incoming, first, tree, ahead, back, room)
        bound = min(bound, found)
        sweep_ahead(node, table, second, begin, end, incoming, first, tree, ahead, back, trial, room)
        value = climb(node, score_table, second, begin, end, incoming, first, trial, room)
        if value > best:
            best = value
            for p in range(len(labels)):
                labels[p] = trial[p]
        if not bound - best > tolerance * (1.0 + abs(best)) or tree:
            break
        used += 1
        slow = last - bound < 1e-4 * (bound - best)
        last = bound
        if not clusters and (slow or used >= rounds[0]):
            if rounds[1] == 0 or len(cycles) == 0:
                break
            clusters, used, slow = True, 0, False
        if clusters:
            if used >= rounds[1] or (slow and used > 5):
                break
            tighten(
                cycles, turned, moved, node, table, second, begin, end, incoming, first, ahead, back, room[0],
                cluster_room,
            )  # fmt: skip
    return best, max(bound, best)
