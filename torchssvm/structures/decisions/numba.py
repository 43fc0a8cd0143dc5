"""The loops of the oracles that are solved by dynamic programming, compiled by Numba."""

from __future__ import annotations

from torchssvm.core.jit import njit


@njit
def shortest_paths(costs, arcs, tails, heads, source, sink, distance, through, y, value):
    """The cheapest path of every example, by one pass over the arcs in topological order.

    Args:
        costs: ``[B, D]``.
        arcs: ``[D]``, the numbers of the arcs, sorted by their tails' places in a topological order.
        tails: ``[D]``, the tails of the arcs.
        heads: ``[D]``, the heads of the arcs.
        source: The first node.
        sink: The last node.
        distance: Room for a number for each node.
        through: Room for an integer for each node.
        y: ``[B, D]`` zeros; arcs on the path become 1.
        value: ``[B]``, to be filled; infinite where no path leads to the sink.
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
