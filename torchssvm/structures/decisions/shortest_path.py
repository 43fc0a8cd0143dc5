"""Shortest paths in graphs without cycles, by dynamic programming."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchssvm.core.arguments import check_whole
from torchssvm.core.structure import digest
from torchssvm.structures.decisions import combinatorial as kernels
from torchssvm.structures.decisions.oracle import Array, DecisionOracle, Solved, node_pairs, refuse_given

_MOST_LISTED = 1000


class ShortestPath(DecisionOracle):
    """The cheapest path from one node to another in a directed graph without cycles; y marks its arcs.

    One pass over the arcs in topological order is exact for costs of any sign. Dijkstra's algorithm is not: training
    solves with the costs ``c_hat - c / 2``, which are negative where a true cost is more than twice the predicted one.
    In graphs with cycles such costs make the problem NP-hard: state it as an :class:`IntegerProgram`.

    Args:
        arcs: ``[D, 2]``, the tail and the head of every arc; nodes are whole numbers from 0.
        source: The first node.
        sink: The last node.

    Raises:
        ValueError: The arcs form a cycle, or no path leads from source to sink.

    Example:
        >>> around = ShortestPath([[0, 1], [1, 2], [0, 2]], source=0, sink=2)
        >>> Decisions(around).decode(torch.tensor([[1.0, 1.0, 3.0]]))
        tensor([[1, 1, 0]])
    """

    quick = True

    def __init__(self, arcs: Any, source: int, sink: int) -> None:
        self.arcs = node_pairs(arcs, "arcs")
        self.num_costs = len(self.arcs)
        self.num_nodes = int(self.arcs.max()) + 1
        self.source, self.sink = check_whole(source, "source", 0), check_whole(sink, "sink", 0)
        self.order = _topological(self.arcs, self.num_nodes)
        known = max(self.source, self.sink) < self.num_nodes
        if not known or np.isinf(self.solve(np.zeros((1, self.num_costs)))[1][0]):
            raise ValueError(f"no path of arcs leads from source={source} to sink={sink}")

    @classmethod
    def grid(cls, rows: int, columns: int) -> ShortestPath:
        """From the first to the last cell of a grid, steps to the right and down.

        Arcs are in PyEPO's order: those within row 0, those from row 0 to row 1, those within row 1, and so on.

        Args:
            rows: Rows of cells.
            columns: Columns of cells.
        """
        rows, columns = check_whole(rows, "rows"), check_whole(columns, "columns")
        arcs = []
        for row in range(rows):
            first = row * columns
            arcs += [(cell, cell + 1) for cell in range(first, first + columns - 1)]
            arcs += [(cell, cell + columns) for cell in range(first, first + columns) if row < rows - 1]
        return cls(arcs, 0, rows * columns - 1)

    def constructor_arguments(self) -> dict[str, Any]:
        """Constructor arguments that are not attributes of the same name, to rebuild an equal oracle."""
        return {"arcs": torch.from_numpy(self.arcs)}

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """Dynamic programming; of equally cheap ways to a node, the first one in topological order."""
        refuse_given(self, given)
        y, value = np.zeros(costs.shape, np.int64), np.empty(len(costs))
        room = np.empty(self.num_nodes), np.empty(self.num_nodes, np.int64)
        tails, heads = np.ascontiguousarray(self.arcs.T)
        kernels.shortest_paths(costs, self.order, tails, heads, self.source, self.sink, *room, y, value)
        return y, value, None

    def decisions(self, given: Array | None = None) -> Array | None:
        """All paths, if they are few."""
        ways = np.zeros(self.num_nodes)
        ways[self.source] = 1.0
        for tail, head in self.arcs[self.order]:
            ways[head] += ways[tail]
        if ways[self.sink] > _MOST_LISTED:
            return None
        paths: list[list[list[int]]] = [[] for _ in range(self.num_nodes)]  # to the sink, from nodes that are reached
        paths[self.sink].append([])
        for arc in self.order[::-1].tolist():
            tail, head = self.arcs[arc]
            if ways[tail]:
                paths[tail] += [[arc, *path] for path in paths[head]]
        return np.stack([np.isin(np.arange(self.num_costs), path) for path in paths[self.source]]).astype(np.int64)

    def __repr__(self) -> str:
        return f"ShortestPath({digest(torch.from_numpy(self.arcs))}, source={self.source}, sink={self.sink})"


def _topological(arcs: Array, num_nodes: int) -> Array:
    """The arcs, sorted by their tails' places in a topological order: Kahn's algorithm."""
    place, waiting = np.full(num_nodes, -1), np.bincount(arcs[:, 1], minlength=num_nodes)
    ready, count = np.flatnonzero(waiting == 0).tolist(), 0
    while ready:
        place[node := ready.pop(0)] = count
        count += 1
        for head in arcs[arcs[:, 0] == node, 1]:
            waiting[head] -= 1
            if not waiting[head]:
                ready.append(int(head))
    if count < num_nodes:
        raise ValueError(f"arcs form a cycle through nodes {np.flatnonzero(place < 0)[:8].tolist()}")
    return np.argsort(place[arcs[:, 0]], kind="stable")
