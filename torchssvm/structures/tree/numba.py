"""The loops of max-sum on trees, compiled by Numba."""

from __future__ import annotations

from torchssvm.core.jit import njit
from torchssvm.core.vectors import first_equal, largest_sum, set_row
from torchssvm.structures.maxplus import (
    add,
    first_maximiser,
    first_of_largest,
    maxplus_rows,
)


@njit
def decode(node, edges, parents, lengths, group, height, begin, end, memory, places, labels, value):
    """Decode the trees ``begin`` to ``end - 1``, ``group`` of them together, level by level.

    Args:
        node: ``[B, N, K]``.
        edges: ``[B or 1, 1, K, K]`` (state of the child, state of its parent), one matrix if ``group > 1``; or
            ``[B or 1, N, K, K]`` (state of the parent, state of the child).
        parents: ``[B or 1, N]``, -1 at roots.
        lengths: ``[B]``; empty if all are N.
        group: Number of trees that read the edges together.
        height: Rows of a block of the edges, which stays in the cache meanwhile.
        memory: Room for ``2 * group * N`` rows of scores.
        places: Room for ``(2 * group + 1) * N + 2`` integers.
        labels, value: ``[B, N]`` and ``[B]``, to be filled.

    Returns:
        -1, or the first row whose length is not in 1 to N or whose parents do not form trees.
    """
    longest, states = node.shape[1], node.shape[2]
    size = group * longest * states
    beliefs = memory[:size].reshape(group * longest, states)  # best score of each subtree, by its root's state
    messages = memory[size : 2 * size].reshape(group * longest, states)  # by the parent's state
    depth = places[: group * longest].reshape(group, longest)
    jobs = places[group * longest : 2 * group * longest]
    starts = places[2 * group * longest : (2 * group + 1) * longest + 2]
    for first in range(begin, end, group):
        members = min(group, end - first)
        for g in range(members):
            b = first + g
            length = lengths[b] if lengths.shape[0] else longest
            parent = parents[b if parents.shape[0] > 1 else 0]
            if length < 1 or length > longest or not _find_depths(parent, length, depth[g]):
                return b
            for v in range(length):
                set_row(beliefs[g * longest + v], node[b, v], None, None)
        chain = first if edges.shape[0] > 1 else 0
        deepest = _sort_by_depth(depth[:members], lengths, first, longest, jobs, starts)

        for level in range(deepest, 0, -1):
            now = jobs[starts[level] : starts[level + 1]]
            if edges.shape[1] == 1:
                maxplus_rows(messages, beliefs, now, edges[chain, 0], height, level % 2 == 0, False)
            else:
                for job in now:
                    for k in range(states):
                        messages[job, k] = largest_sum(edges[chain, job % longest, k], beliefs[job])
            for job in now:  # siblings in ascending order
                g, v = job // longest, job % longest
                above = parents[first + g if parents.shape[0] > 1 else 0, v]
                add(beliefs[g * longest + above], messages, job, states)

        for g in range(members):
            length = lengths[first + g] if lengths.shape[0] else longest
            labels[first + g, length:] = -1
        previous = -1
        for job in jobs[: starts[1]]:  # the roots
            g, v = job // longest, job % longest
            best = first_of_largest(beliefs[job], states)
            labels[first + g, v] = best
            if g == previous:
                value[first + g] += beliefs[job, best]
            else:
                value[first + g] = beliefs[job, best]
            previous = g
        for job in jobs[starts[1] : starts[deepest + 1]]:
            g, v = job // longest, job % longest
            b = first + g
            above = labels[b, parents[b if parents.shape[0] > 1 else 0, v]]
            if edges.shape[1] > 1:
                row = edges[chain, v, above].reshape(states, 1)
                labels[b, v] = first_equal(beliefs[job], row, 0, states, messages[job, above])
            else:
                labels[b, v] = first_maximiser(messages[job], beliefs[job], edges[chain, 0], above, states)
    return -1


@njit
def _find_depths(parent, length, depth):
    """Fill ``depth`` with each node's distance from its root; False if the parents do not form trees."""
    for v in range(length):
        depth[v] = -1
    for v in range(length):
        u, steps = v, 0
        while u >= 0 and depth[u] < 0:
            steps += 1
            if steps > length or parent[u] < -1 or parent[u] >= length:
                return False
            u = parent[u]
        level = steps - 1 + (depth[u] + 1 if u >= 0 else 0)
        u = v
        for _ in range(steps):
            depth[u] = level
            level -= 1
            u = parent[u]
    return True


@njit
def _sort_by_depth(depth, lengths, first, longest, jobs, starts):
    """Fill ``jobs`` with ``g * N + v`` by ascending depth, and ``starts`` with the place where each depth begins."""
    starts[:] = 0
    deepest = 0
    for g in range(depth.shape[0]):
        for v in range(lengths[first + g] if lengths.shape[0] else longest):
            deepest = max(deepest, depth[g, v])
            starts[depth[g, v] + 1] += 1
    for level in range(deepest + 1):
        starts[level + 1] += starts[level]
    for g in range(depth.shape[0]):
        for v in range(lengths[first + g] if lengths.shape[0] else longest):
            jobs[starts[depth[g, v]]] = g * longest + v
            starts[depth[g, v]] += 1
    for level in range(deepest + 1, 0, -1):  # each entry now holds the start of the next depth
        starts[level] = starts[level - 1]
    starts[0] = 0
    return deepest
