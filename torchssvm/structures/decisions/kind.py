"""Decisions for the compiled loop: a row of features for each variable, or one for all.

Each oracle is a kind and breaks ties as its ``solve`` does.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import ByKind, njit
from torchssvm.compiler.vectors import sort_falling
from torchssvm.core.potentials import SINGLE, Potentials
from torchssvm.kinds import block
from torchssvm.kinds.adapter import Extra, HeadAdapter, Reading, Shapes
from torchssvm.kinds.block import amount, loss_of, size_of
from torchssvm.kinds.examples import Examples
from torchssvm.structures.decisions.combinatorial import (
    Assignment,
    Knapsack,
    Selection,
    ShortestPath,
    SpanningTree,
    knapsacks,
    shortest_paths,
    spanning_trees,
    whole_numbers,
)
from torchssvm.structures.matching.oracle import make_room as make_matching_room
from torchssvm.structures.matching.oracle import match

# The kinds begin with whether each variable has a row of features; whether losses may be negative, as known costs are
# counted with them; and 2 where costs are maximised, -2 otherwise.
Paths = namedtuple("Paths", "shared negative factor order tails heads source sink")  # see ``shortest_paths``
Selections = namedtuple("Selections", "shared negative factor at_most given")  # ``given`` ``[n]`` is how many
Knapsacks = namedtuple("Knapsacks", "shared negative factor weights given")  # ``given`` ``[n]`` are the capacities
Trees = namedtuple("Trees", "shared negative factor edges")
Assignments = namedtuple("Assignments", "shared negative factor tasks")


# Room to decode one example: costs and decisions, ``[1, D]``; numbers, integers and flags of the oracle
Room = namedtuple("Room", "costs y order value numbers places partner taken")


def make_room(oracle: Any, kind: Any) -> Room:
    """Room for examples of a kind."""
    size, nodes = oracle.num_costs, getattr(oracle, "num_nodes", 0)
    most = int(kind.given.max()) if isinstance(kind, Knapsacks) else 0
    partner = np.zeros(0, np.int64)
    if isinstance(kind, Assignments):
        numbers, places, partner = make_matching_room(oracle.workers, oracle.tasks)
    else:
        numbers, places = np.zeros(max(nodes, most + 1)), np.zeros(max(nodes, size), np.int64)
    taken = np.zeros((size, most + 1), np.bool_)
    row = np.zeros((1, size), np.int64)
    return Room(np.zeros((1, size)), row, row.copy(), np.zeros(1), numbers, places, partner, taken)


@ByKind
def solve(kind, i, room):
    """Write the best decision of example i for ``room.costs`` into ``room.y``, which is zero."""


@solve.of(Paths)
@njit
def solve_path(kind, i, room):
    graph = kind.order, kind.tails, kind.heads, kind.source, kind.sink
    shortest_paths(room.costs, *graph, room.numbers, room.places, room.y, room.value)


@solve.of(Knapsacks)
@njit
def solve_knapsack(kind, i, room):
    knapsacks(room.costs, kind.weights, kind.given[i : i + 1], room.numbers, room.taken, room.y)


@njit
def sort_by_gain(kind, room):
    """The variables from the best to the worst; ``room.costs`` are gains afterwards."""
    size = room.costs.shape[1]
    for d in range(size):
        room.costs[0, d] = room.costs[0, d] if kind.factor > 0.0 else -room.costs[0, d]
        room.order[0, d] = d
    sort_falling(room.costs[0], room.order[0], size, room.places)


@solve.of(Selections)
@njit
def solve_selection(kind, i, room):
    sort_by_gain(kind, room)
    for place in range(kind.given[i]):
        d = room.order[0, place]
        room.y[0, d] = room.costs[0, d] > 0.0 or not kind.at_most


@solve.of(Trees)
@njit
def solve_tree(kind, i, room):
    sort_by_gain(kind, room)
    spanning_trees(room.order, kind.edges, room.places, room.y)


@solve.of(Assignments)
@njit
def solve_assignment(kind, i, room):
    gains, least, most = room.costs[0], np.inf, -np.inf
    for d in range(len(gains)):
        gains[d] = gains[d] if kind.factor > 0.0 else -gains[d]
        least, most = min(least, gains[d]), max(most, gains[d])
    for d in range(len(gains)):
        gains[d] = gains[d] - least + (most - least if most > least else 1.0)
    workers = len(gains) // kind.tasks
    match(gains.reshape(workers, kind.tasks), workers, kind.tasks, room.numbers, room.places, room.partner)
    for s in range(workers):
        if room.partner[s] >= 0:  # scores that are not finite match nobody
            room.y[0, s * kind.tasks + room.partner[s]] = 1


@njit
def decode(kind, examples, i, length, scratch, transition, labels):
    """The best decision under ``c_hat + delta``; the target where it is better."""
    emission, room, start, size = scratch.emission, scratch.room, examples.start[i], size_of(examples, i)
    for d in range(size):
        room.costs[0, d] = np.float64(emission[d, 0] if kind.shared else emission[0, d]) + examples.cost[start + d]
        room.y[0, d] = 0
    solve(kind, i, room)
    ahead = 0.0
    for d in range(size):
        labels[d] = room.y[0, d]
        moved = labels[d] - examples.y[start + d]
        if moved:
            cost = np.float64(emission[d, 0] if kind.shared else emission[0, d]) + examples.cost[start + d]
            ahead += kind.factor * moved * cost
    if ahead < 0.0:
        for d in range(size):
            labels[d] = examples.y[start + d]
    return loss_of(kind, examples, i, labels)


@njit
def list_parts(kind, examples, i, labels, other, task):
    """The variables, times 2 or -2."""
    total = 0.0
    for d in range(size_of(examples, i)):
        if labels[d] or other[d]:
            row, column = (d, 0) if kind.shared else (0, d)
            total += amount(task, task.rows, row, column, kind.factor * labels[d], kind.factor * other[d])
    return total


@njit
def loss(kind, examples, i, labels):
    """The regret, with the known costs."""
    total, start = 0.0, examples.start[i]
    for d in range(size_of(examples, i)):
        total += (labels[d] - examples.y[start + d]) * examples.cost[start + d]
    total *= kind.factor
    return total if kind.negative else max(total, 0.0)


@njit
def mean_loss(kind, examples, i, t, psi, total, absolute):
    """Losses are linear in the parts."""
    told, size, start = 0.0, 0.0, examples.start[i] + t
    for d in range(1 if kind.shared else size_of(examples, i)):
        term = examples.cost[start + d] * np.float64(psi[d])
        told -= term
        size += abs(term)
    return told, size


for _kind in (Paths, Selections, Knapsacks, Trees, Assignments):
    block.decode.of(_kind)(decode)
    block.list_parts.of(_kind)(list_parts)
    block.loss_of.of(_kind)(loss)
    block.mean_loss.of(_kind)(mean_loss)


ORACLES = (Assignment, Knapsack, Selection, ShortestPath, SpanningTree)
"""Oracles with a compiled kernel."""


class DecisionAdapter(HeadAdapter):
    """:class:`LinearDecisions` with one of ``ORACLES``. Labels are decisions, and their costs are ``delta``."""

    emission, ragged, notes = SINGLE, False, True

    def __init__(self, head: Any) -> None:
        super().__init__(head)
        self.products, self.known = not head.shared, False

    @override
    def inputs(self, x: Any) -> Any:
        return x if isinstance(x, Tensor) else x.x

    @override
    def read(self, x: Any, target: Any, potentials: Potentials) -> Reading:
        y = target.y.to(torch.int64)
        if bool(((target.y != 0) & (target.y != 1)).any()):
            raise ValueError("target.y has numbers other than 0 and 1: make targets by Decisions(oracle).target(costs)")
        structure: Any = self.structure
        given, oracle = potentials.given, structure.oracle  # type: ignore[attr-defined]
        structure.regret(structure.target(target.cost, given), target)
        self.known |= target.fixed is not None
        batch, size = y.shape
        if given is None:
            most = getattr(oracle, "k", getattr(oracle, "capacity", 0))
            numbers = np.full(batch, most)
        else:
            numbers = whole_numbers(given.cpu().numpy(), batch, "the size")
        one, features = torch.ones(batch, dtype=torch.int64), self.inputs(x)
        return Reading(
            y.flatten(),
            structure.loss_potentials(target)[0].flatten(),
            size * one,
            features.flatten(0, 1) if self.head.shared else features,
            rows=size * one if self.head.shared else one,
            extra={"given": (one, torch.from_numpy(numbers))},
        )

    @override
    def kind(self, examples: Examples, extra: Extra) -> Any:
        oracle: Any = self.structure.oracle  # type: ignore[attr-defined]
        given = extra["given"][1].numpy()
        common = self.head.shared, self.known, 2.0 if oracle.maximize else -2.0
        if isinstance(oracle, ShortestPath):
            tails, heads = np.ascontiguousarray(oracle.arcs.T)
            return Paths(*common, oracle.order, tails, heads, oracle.source, oracle.sink)
        if isinstance(oracle, Selection):
            return Selections(*common, oracle.at_most, given)
        if isinstance(oracle, Knapsack):
            return Knapsacks(*common, oracle.weights, np.minimum(given, oracle.weights.sum()))
        if isinstance(oracle, SpanningTree):
            return Trees(*common, oracle.edges)
        return Assignments(*common, oracle.tasks)

    @override
    def room_of(self, examples: Examples) -> Callable[[], Any]:
        return partial(make_room, self.structure.oracle, examples.kind)  # type: ignore[attr-defined]

    @override
    def part_shapes(self, lengths: Tensor) -> Shapes:
        return {self.emission: (torch.ones_like(lengths), (self.head.structure.num_costs,))}

    @override
    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        return 0, torch.ones_like(lengths)
