"""The loops of the oracles that are solved by dynamic programming, compiled by Numba."""

from __future__ import annotations

from torchssvm.core.jit import njit


@njit
def shortest_paths(costs, arcs, tails, heads, source, sink, distance, through, y, value):
    """The cheapest path of every example, by one pass over the arcs in topological order: 1 in ``y`` ``[B, D]``.

    ``arcs`` are the numbers of the arcs, sorted by their tails' places in a topological order; ``distance`` and
    ``through`` are room for a number for each node. ``value`` ``[B]`` is infinite where no path leads to the sink.
    """
    for b in range(costs.shape[0]):
        for node in range(distance.shape[0]):
            distance[node] = float("inf")
        distance[source] = 0.0
        for k in range(arcs.shape[0]):
            arc = arcs[k]
            reached = distance[tails[arc]] + costs[b, arc]
            if reached < distance[heads[arc]]:
                distance[heads[arc]] = reached
                through[heads[arc]] = arc
        value[b] = distance[sink]
        node = sink
        while node != source and value[b] < float("inf"):
            arc = through[node]
            y[b, arc] = 1
            node = tails[arc]


@njit
def knapsacks(values, weights, capacity, best, taken, y):
    """The best items of every example within its capacity ``[B]``, at most C: they become 1 in ``y`` ``[B, D]``.

    ``best`` is room for C + 1 numbers, and ``taken`` for ``[D, C + 1]`` bool.
    """
    for b in range(values.shape[0]):
        for c in range(capacity[b] + 1):
            best[c] = 0.0
        for i in range(weights.shape[0]):
            for c in range(capacity[b], -1, -1):
                taken[i, c] = c >= weights[i] and best[c - weights[i]] + values[b, i] > best[c]
                if taken[i, c]:
                    best[c] = best[c - weights[i]] + values[b, i]
        left = capacity[b]
        for i in range(weights.shape[0] - 1, -1, -1):
            if taken[i, left]:
                y[b, i] = 1
                left -= weights[i]


@njit
def spanning_trees(order, edges, parent, y):
    """Take the edges, ``order`` ``[B, D]``, if they join two pieces: they become 1 in ``y`` ``[B, D]``.

    ``parent`` is room for an integer for each node: up to the node that stands for its piece.
    """
    for b in range(order.shape[0]):
        for node in range(parent.shape[0]):
            parent[node] = node
        for k in range(order.shape[1]):
            edge = order[b, k]
            left, right = edges[edge, 0], edges[edge, 1]
            while parent[left] != left:
                parent[left] = parent[parent[left]]
                left = parent[left]
            while parent[right] != right:
                parent[right] = parent[parent[right]]
                right = parent[right]
            if left != right:
                parent[left] = right
                y[b, edge] = 1
