"""Choices that are solved exactly and quickly: selections, knapsacks, assignments, spanning trees."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from torchssvm.compiler.jit import njit
from torchssvm.core.arguments import check_flags, check_readable, check_whole
from torchssvm.core.structure import digest
from torchssvm.structures.decisions.oracle import Array, DecisionOracle, Solved, costs_of, node_pairs, refuse_given
from torchssvm.structures.matching.oracle import best_matching

_MOST_LISTED = 12


class Selection(DecisionOracle):
    """The k items with the highest total value.

    The number may differ from example to example: ``Situations(x, given=k)`` with ``k`` ``[B]`` int64.

    Args:
        num_items: D.
        k: How many are chosen.
        at_most: Whether fewer may be chosen: items of negative value are then left out.
        maximize: Whether values are maximised; False chooses the k lowest costs.

    Raises:
        ValueError: ``k`` is not in 0 to ``num_items``.

    Example:
        >>> Decisions(Selection(4, k=2)).decode(torch.tensor([[1.0, 5.0, 3.0, 4.0]]))
        tensor([[0, 1, 0, 1]])
    """

    quick = True

    def __init__(self, num_items: int, k: int, *, at_most: bool = False, maximize: bool = True) -> None:
        check_flags(at_most=at_most, maximize=maximize)
        self.num_costs = check_whole(num_items, "num_items")
        self.k = check_whole(k, "k", 0, most=self.num_costs)
        self.at_most = at_most
        self.maximize = maximize

    def constructor_arguments(self) -> dict[str, Any]:
        """Constructor arguments that are not attributes of the same name, to rebuild an equal oracle."""
        return {"num_items": self.num_costs}

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """By sorting; of equal items, the first ones."""
        gains = costs if self.maximize else -costs
        k = np.full(len(costs), self.k) if given is None else whole_numbers(given, len(costs), "k", self.num_costs)
        rank = np.argsort(np.argsort(-gains, axis=1, kind="stable"), axis=1, kind="stable")
        y = rank < k.reshape(-1, 1)
        if self.at_most:
            y &= gains > 0.0
        return y.astype(np.int64), costs_of(y, costs), None

    def decisions(self, given: Array | None = None) -> Array | None:
        """All selections of up to 12 items."""
        k = self.k if given is None else int(given)
        return _subsets(self.num_costs, lambda y: (y.sum(1) <= k) & (self.at_most | (y.sum(1) == k)))

    def __repr__(self) -> str:
        return f"Selection({self.num_costs}, k={self.k}, at_most={self.at_most}, maximize={self.maximize})"


class Knapsack(DecisionOracle):
    """The items with the highest total value whose weights, whole numbers, sum to at most a capacity.

    Dynamic programming takes D times the capacity steps. For weights that are not whole, or several constraints, take
    :class:`IntegerProgram`. Capacities may differ: ``Situations(x, given=capacities)`` with ``[B]`` int64.

    Args:
        weights: ``[D]`` whole numbers, at least 0.

    Raises:
        ValueError: A weight is negative or not whole, or ``capacity`` is negative.

    Example:
        >>> Decisions(Knapsack([3, 2, 2], capacity=4)).decode(torch.tensor([[5.0, 3.0, 3.0]]))
        tensor([[0, 1, 1]])
    """

    maximize = True
    quick = True

    def __init__(self, weights: Any, capacity: int) -> None:
        check_readable(weights, "weights")
        given = np.asarray(weights)
        self.weights = np.ascontiguousarray(given, dtype=np.int64)
        if self.weights.ndim != 1 or not len(self.weights) or (self.weights != given).any() or self.weights.min() < 0:
            raise ValueError(f"weights={weights!r} must be [D] whole numbers of at least 0: else use IntegerProgram")
        self.num_costs = len(self.weights)
        self.capacity = check_whole(capacity, "capacity", 0)

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """Dynamic programming; an item that adds nothing is left out."""
        capacity = (
            np.full(len(costs), self.capacity) if given is None else whole_numbers(given, len(costs), "the capacity")
        )
        most = min(int(capacity.max(initial=0)), int(self.weights.sum()))
        y = np.zeros(costs.shape, np.int64)
        room = np.empty(most + 1), np.empty((self.num_costs, most + 1), np.bool_)
        knapsacks(costs, self.weights, np.minimum(capacity, most), *room, y)
        return y, costs_of(y, costs), None

    def decisions(self, given: Array | None = None) -> Array | None:
        """All choices among up to 12 items."""
        capacity = self.capacity if given is None else int(given)
        return _subsets(self.num_costs, lambda y: y @ self.weights <= capacity)

    def __repr__(self) -> str:
        return f"Knapsack({digest(torch.from_numpy(self.weights))}, capacity={self.capacity})"


class Assignment(DecisionOracle):
    """Each of S workers gets one of T tasks, no task twice; costs and decisions are ``[B, S * T]``, row by row.

    :func:`torchssvm.structures.best_matching` solves it; :class:`Matching` is for pairs that are targets themselves and
    may stay apart.

    Args:
        workers: S.
        tasks: T, at least S; None is S.
        maximize: Whether costs are values, to be maximised.

    Raises:
        ValueError: There are fewer tasks than workers.

    Example:
        >>> Decisions(Assignment(2)).decode(torch.tensor([[1.0, 2.0, 2.0, 4.0]]))
        tensor([[0, 1, 1, 0]])
    """

    quick = True

    def __init__(self, workers: int, tasks: int | None = None, *, maximize: bool = False) -> None:
        check_flags(maximize=maximize)
        self.workers = check_whole(workers, "workers")
        self.tasks = self.workers if tasks is None else check_whole(tasks, "tasks", self.workers)
        self.num_costs = self.workers * self.tasks
        self.maximize = maximize

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """A matching with scores that are all positive, so that nobody stays without a task."""
        refuse_given(self, given)
        gains = costs if self.maximize else -costs
        least, most = gains.min(1, keepdims=True), gains.max(1, keepdims=True)
        positive = torch.from_numpy(gains - least + np.where(most > least, most - least, 1.0))
        y = best_matching(positive.view(-1, self.workers, self.tasks)).flatten(1).to(torch.int64).numpy()
        return y, costs_of(y, costs), None

    def decisions(self, given: Array | None = None) -> Array | None:
        """All assignments of up to 5 workers to up to 6 tasks."""
        if self.workers > 5 or self.tasks > 6:
            return None
        chosen = np.array([*itertools.permutations(range(self.tasks), self.workers)])
        return np.eye(self.tasks, dtype=np.int64)[chosen].reshape(-1, self.num_costs)

    def __repr__(self) -> str:
        return f"Assignment({self.workers}, {self.tasks}, maximize={self.maximize})"


class SpanningTree(DecisionOracle):
    """The edges of the cheapest tree that joins all nodes of a graph, by Kruskal's algorithm.

    Trees with arcs from a root are the outputs of :class:`Arborescence`.

    Args:
        edges: ``[D, 2]``, the ends of every edge; nodes are whole numbers from 0.
        maximize: Whether costs are values, to be maximised.

    Raises:
        ValueError: The graph is not connected.

    Example:
        >>> triangle = SpanningTree([[0, 1], [1, 2], [0, 2]])
        >>> Decisions(triangle).decode(torch.tensor([[1.0, 3.0, 2.0]]))
        tensor([[1, 0, 1]])
    """

    quick = True

    def __init__(self, edges: Any, *, maximize: bool = False) -> None:
        check_flags(maximize=maximize)
        self.edges = node_pairs(edges, "edges")
        self.num_costs = len(self.edges)
        self.num_nodes = int(self.edges.max()) + 1
        self.maximize = maximize
        if (size := int(self.solve(np.zeros((1, self.num_costs)))[0].sum())) < self.num_nodes - 1:
            raise ValueError(f"edges join {self.num_nodes} nodes in {self.num_nodes - size} pieces: a tree needs one")

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """Kruskal's algorithm; of equal edges, the first ones."""
        refuse_given(self, given)
        order = np.argsort(-costs if self.maximize else costs, axis=1, kind="stable")
        y = np.zeros(costs.shape, np.int64)
        spanning_trees(order, self.edges, np.empty(self.num_nodes, np.int64), y)
        return y, costs_of(y, costs), None

    def decisions(self, given: Array | None = None) -> Array | None:
        """All trees of up to 12 edges: as many edges as a tree has, and no other tree among them is the best."""
        size = self.num_nodes - 1

        def trees(y: Array) -> Array:
            right = y.sum(1) == size
            right[right] = (self.solve(np.where(self.maximize, 1.0, -1.0) * y[right])[0] == y[right]).all(1)
            return right

        return _subsets(self.num_costs, trees)

    def __repr__(self) -> str:
        return f"SpanningTree({digest(torch.from_numpy(self.edges))}, maximize={self.maximize})"


def whole_numbers(given: Array, batch: int, what: str, most: int = 2**63 - 1) -> Array:
    """``given``, ``[B]`` or ``[B, 1]``, as int64 ``[B]``; ValueError unless they are whole numbers, 0 to ``most``."""
    flat = given.reshape(-1)
    if given.shape not in ((batch,), (batch, 1)) or not ((flat >= 0) & (flat % 1 == 0) & (flat <= most)).all():
        raise ValueError(f"given={given.tolist()} must be [{batch}] whole numbers, {what} of each example, 0 or more")
    return flat.astype(np.int64)


def _subsets(size: int, allowed: Any) -> Array | None:
    """The 0/1 vectors of up to 12 numbers that are allowed: ``[K, D] -> [K]`` bool."""
    if size > _MOST_LISTED:
        return None
    every = np.indices((2,) * size).reshape(size, -1).T
    return every[allowed(every)]


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


_MOST_PATHS = 1000


class ShortestPath(DecisionOracle):
    """The cheapest path from one node to another in a directed graph without cycles; y marks its arcs.

    One pass over the arcs in topological order is exact for costs of any sign. Dijkstra's algorithm is not: training
    solves with the costs ``c_hat - c / 2``, which are negative where a true cost is more than twice the predicted one.
    In graphs with cycles such costs make the problem NP-hard: state it as an :class:`IntegerProgram`.

    Args:
        arcs: ``[D, 2]``, the tail and the head of every arc; nodes are whole numbers from 0.

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
            raise ValueError(f"arcs must have a path from source={source} to sink={sink}")

    @classmethod
    def grid(cls, rows: int, columns: int) -> ShortestPath:
        """From the first to the last cell of a grid, steps to the right and down.

        Arcs are in PyEPO's order: those within row 0, those from row 0 to row 1, those within row 1, and so on.
        """
        rows, columns = check_whole(rows, "rows"), check_whole(columns, "columns")
        arcs = []
        for row in range(rows):
            first = row * columns
            arcs += [(cell, cell + 1) for cell in range(first, first + columns - 1)]
            arcs += [(cell, cell + columns) for cell in range(first, first + columns) if row < rows - 1]
        return cls(arcs, 0, rows * columns - 1)

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """Dynamic programming; of equally cheap ways to a node, the first one in topological order."""
        refuse_given(self, given)
        y, value = np.zeros(costs.shape, np.int64), np.empty(len(costs))
        room = np.empty(self.num_nodes), np.empty(self.num_nodes, np.int64)
        tails, heads = np.ascontiguousarray(self.arcs.T)
        shortest_paths(costs, self.order, tails, heads, self.source, self.sink, *room, y, value)
        return y, value, None

    def decisions(self, given: Array | None = None) -> Array | None:
        """All paths, if they are few."""
        ways = np.zeros(self.num_nodes)
        ways[self.source] = 1.0
        for tail, head in self.arcs[self.order]:
            ways[head] += ways[tail]
        if ways[self.sink] > _MOST_PATHS:
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
