"""The order in which messages pass on a graph, and its short cycles; made once for every graph."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class Plan(NamedTuple):
    """A graph as the loops take it; nodes are numbered in the order of a search in breadth, edges by their ends."""

    order: np.ndarray  # ``[N]``, the node at each place
    slot: np.ndarray  # ``[E']``, the edge that each given edge becomes; several between two nodes are one. -1 is none
    turn: np.ndarray  # ``[E']`` bool, whether the given edge's second end comes first
    first: np.ndarray  # ``[E]``, the earlier end
    second: np.ndarray  # ``[E]``, the later end
    begin: np.ndarray  # ``[N + 1]``, where the edges of each first end begin
    end: np.ndarray  # ``[N + 1]``, where the edges of each second end begin in ``incoming``
    incoming: np.ndarray  # ``[E]``, the edges sorted by their second end
    tree: bool  # whether there is no cycle
    cycles: np.ndarray  # ``[C, 4]``, the edges of triangles and of cycles of four without a chord; -1 fills up
    turned: np.ndarray  # ``[C, 4]`` bool, whether the edge's second end comes first on the cycle


class Plans(NamedTuple):
    """Plans one after another, one for all equal graphs."""

    of: np.ndarray  # ``[n]`` int64, the plan of each graph
    start: np.ndarray  # ``[P + 1, 4]`` int64, where the nodes, given edges, edges and cycles of each plan begin
    arrays: Plan  # the arrays of all plans, one after another; ``tree`` is ``[P]``


def join_plans(graphs: Iterable[tuple[int, bytes]]) -> Plans:
    """The plans of graphs, given as to :func:`make_plan`."""
    numbers: dict[tuple[int, bytes], int] = {}
    of = np.array([numbers.setdefault(graph, len(numbers)) for graph in graphs])
    plans = [make_plan(*graph) for graph in numbers]
    sizes = [[len(one) for one in (plan.order, plan.slot, plan.first, plan.cycles)] for plan in plans]
    start = np.zeros((len(plans) + 1, 4), np.int64)
    np.cumsum(sizes, 0, out=start[1:])
    arrays: Any = (np.concatenate([np.atleast_1d(one) for one in several]) for several in zip(*plans, strict=True))
    return Plans(of, start, Plan(*arrays))


@functools.lru_cache(maxsize=4096)
def make_plan(size: int, edges: bytes) -> Plan:
    """The plan of a graph of ``size`` nodes; ``edges`` are the bytes of int64 ``[E', 2]``, and -1 is none."""
    given = np.frombuffer(edges, np.int64).reshape(-1, 2)
    real = given[:, 0] >= 0
    ends = given[real]
    order, parts = _search(size, ends)
    place = np.empty(size, np.int64)
    place[order] = np.arange(size)
    ranked = place[ends]
    low, high = ranked.min(1), ranked.max(1)
    slot, turn = np.full(len(given), -1), np.zeros(len(given), np.bool_)
    keys, slot[real] = np.unique(low * size + high, return_inverse=True)
    turn[real] = ranked[:, 0] > ranked[:, 1]
    first, second = keys // size, keys % size
    incoming = np.argsort(second, kind="stable")
    cycles, turned = _cycles(size, first, second)
    return Plan(
        order,
        slot,
        turn,
        first,
        second,
        np.searchsorted(first, np.arange(size + 1)),
        np.searchsorted(second[incoming], np.arange(size + 1)),
        incoming,
        len(keys) == size - parts,
        cycles,
        turned,
    )


def _search(size: int, ends: np.ndarray) -> tuple[np.ndarray, int]:
    """The nodes in the order of a search in breadth, and the number of connected parts."""
    near: list[list[int]] = [[] for _ in range(size)]
    for p, q in ends.tolist():
        near[p].append(q)
        near[q].append(p)
    order: list[int] = []
    seen = [False] * size
    parts = 0
    for root in range(size):
        if not seen[root]:
            seen[root] = True
            parts += 1
            place = len(order)
            order.append(root)
            while place < len(order):
                for q in near[order[place]]:
                    if not seen[q]:
                        seen[q] = True
                        order.append(q)
                place += 1
    return np.array(order, np.int64), parts


def _cycles(size: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All triangles, and all cycles of four edges without a chord; at most as many as twice the edges."""
    edge = {pair: e for e, pair in enumerate(zip(first.tolist(), second.tolist(), strict=True))}
    near: list[set[int]] = [set() for _ in range(size)]
    for p, q in edge:
        near[p].add(q)
        near[q].add(p)
    chains: list[tuple[int, ...]] = []
    for a in range(size):
        around = sorted(q for q in near[a] if q > a)  # the smallest node of a cycle comes first
        for i, b in enumerate(around):
            for d in around[i + 1 :]:
                if d in near[b]:
                    chains.append((a, b, d))
                else:
                    chains += [(a, b, c, d) for c in sorted(near[b] & near[d]) if c > a and c not in near[a]]
    chains = chains[: 2 * len(edge)]  # a dense graph has many, and memory grows with them
    cycles, turned = np.full((len(chains), 4), -1), np.zeros((len(chains), 4), np.bool_)
    for row, nodes in enumerate(chains):
        for s, p in enumerate(nodes):
            q = nodes[(s + 1) % len(nodes)]
            cycles[row, s], turned[row, s] = edge[min(p, q), max(p, q)], p > q
    return cycles, turned
