"""Bipartite matchings for the compiled loop: a row of features for each edge, a row of scores for each left node.

All edges share one vector of weights, so that sums over the features take the place of products of pairs of edges.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import dot, exact_dot, set_row
from torchssvm.core.potentials import SINGLE, Potentials
from torchssvm.core.structure import fit
from torchssvm.kinds import block
from torchssvm.kinds.adapter import Extra, Reading, Shapes, VectorAdapter
from torchssvm.kinds.block import amount, loss_of, size_of
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.long import add_token, product, take_square
from torchssvm.structures.matching.oracle import make_room, match


class Edges(NamedTuple):
    """Numbers of right nodes of each example, ``[n]`` int64.

    Labels have a row for each left node, which is -1 beyond the right nodes; rows of features do not.
    """

    widths: Any


# Room to match one example: its scores, the room of ``match``, and the partners
EdgeRoom = namedtuple("EdgeRoom", "scores numbers places partner")


def make_edge_room(left: int, right: int) -> EdgeRoom:
    """Room for up to so many nodes."""
    return EdgeRoom(np.zeros((left, right)), *make_room(left, right))


@njit
def spread(line, widths, start, wide, labels, costs, y, cost):
    """Copy labels and costs, edge after edge, to rows of ``wide`` numbers."""
    for i in range(len(widths)):
        for place in range(line[i + 1] - line[i]):
            at = start[i] + place // widths[i] * wide + place % widths[i]
            y[at], cost[at] = labels[line[i] + place], costs[line[i] + place]


@block.potentials.of(Edges)
@njit
def edge_potentials(kind, examples, model, i, scratch):
    fill_scores(kind, examples, i, model.emission, scratch.emission)
    return False


@njit
def fill_scores(kind, examples, i, weights, scores):
    """``x . weights`` of all edges, with ``weights`` ``[F, 1]``; 0 beyond the right nodes."""
    line, width, column = examples.line[i], kind.widths[i], weights.reshape(weights.size)
    for s in range(examples.length[i]):
        row = scores[s]
        for t in range(width):
            row[t] = dot(examples.x[line], column) if examples.dense else product(examples, line, False, column)
            line += 1
        set_row(row[width:], None, None, 0.0)


@block.list_parts.of(Edges)
@njit
def list_edges(kind, examples, i, labels, other, task):
    total, length = 0.0, examples.length[i]
    wide = size_of(examples, i) // length
    for s in range(length):
        for t in range(kind.widths[i]):
            on, other_on = labels[s * wide + t] == 1, other[s * wide + t] == 1
            if on or other_on:
                total += amount(task, task.rows, s, t, 1.0 if on else 0.0, 1.0 if other_on else 0.0)
    return total


@block.loss_of.of(Edges)
@njit
def edge_loss(kind, examples, i, labels):
    total, start = 0.0, examples.start[i]
    for place in range(size_of(examples, i)):
        if (labels[place] == 1) != (examples.y[start + place] == 1):
            total += examples.cost[start + place]
    return total


@block.mean_loss.of(Edges)
@njit
def edge_mean_loss(kind, examples, i, t, psi, total, absolute):
    told, size, row = 0.0, 0.0, examples.start[i] + t * (size_of(examples, i) // examples.length[i])
    for k in range(kind.widths[i]):
        term = examples.cost[row + k] * np.float64(psi[k])
        told += term if examples.y[row + k] == 1 else -term
        size += abs(term)
    return told, size


@block.decode.of(Edges)
@njit
def decode_edges(kind, examples, i, length, scratch, transition, labels):
    start, width, room = examples.start[i], kind.widths[i], scratch.room
    wide = size_of(examples, i) // length
    for s in range(length):
        for t in range(wide):
            labels[s * wide + t] = 0 if t < width else -1
            if t < width:
                cost, is_true = examples.added[start + s * wide + t], examples.y[start + s * wide + t] == 1
                room.scores[s, t] = scratch.emission[s, t] + (-cost if is_true else cost)
    match(room.scores, length, width, room.numbers, room.places, room.partner)
    for s in range(length):
        if room.partner[s] >= 0:
            labels[s * wide + room.partner[s]] = 1
    return loss_of(kind, examples, i, labels)


@njit
def sum_edges(kind, examples, i, parts, sums):
    """``sums += x^T parts``."""
    line = examples.line[i]
    for s in range(examples.length[i]):
        for t in range(kind.widths[i]):
            if parts[s, t] != 0.0:
                add_token(examples, line, np.float64(parts[s, t]), False, sums)
            line += 1


@njit
def forget_sums(kind, examples, i, parts, sums):
    """Set the sums of the same parts back to zero; returns their squared length."""
    total, line = 0.0, examples.line[i]
    for s in range(examples.length[i]):
        for t in range(kind.widths[i]):
            if parts[s, t] != 0.0:
                total += take_square(examples, line, sums)
                if examples.dense:
                    return total
            line += 1
    return total


@block.respond_to_parts.of(Edges)
@njit
def edge_respond_to_parts(kind, examples, model, i, length, psi, pairs, rows, scratch, slots, count, corner, is_new):
    sums, response, line, total = scratch.sums_of_label, scratch.response, examples.line[i], 0.0
    sum_edges(kind, examples, i, psi, sums)
    for s in range(length):
        for t in range(kind.widths[i]):
            response[s, t] = product(examples, line, False, sums)
            total += response[s, t] * psi[s, t]
            line += 1
    forget_sums(kind, examples, i, psi, sums)
    return total, pairs


@block.squared_length.of(Edges)
@njit
def edge_length(kind, examples, model, i, length, delta, pairs, rows, scratch):
    for s in range(length):
        scratch.squares[s] = exact_dot(delta[s], delta[s])
    sum_edges(kind, examples, i, delta, scratch.sums_of_label)
    return forget_sums(kind, examples, i, delta, scratch.sums_of_label)


@block.add_to_weights.of(Edges)
@njit
def add_edges_to_weights(kind, examples, model, i, length, delta, pairs, rows, scratch, factor):
    sums, line = scratch.sums_of_label, examples.line[i]
    sum_edges(kind, examples, i, delta, sums)
    for f in range(examples.x.shape[1] if examples.dense else 0):
        model.emission[f, 0] += factor * sums[f]
    for s in range(0 if examples.dense else length):
        for t in range(kind.widths[i]):
            if delta[s, t] != 0.0:
                for p in range(examples.row[line], examples.row[line + 1]):
                    model.emission[examples.column[p], 0] += factor * sums[examples.column[p]]
                    sums[examples.column[p]] = 0.0
            line += 1
    if examples.dense:
        set_row(sums, None, None, 0.0)


class MatchingAdapter(VectorAdapter):
    """:class:`LinearEdges`: a label says whether an edge is in the matching; rows of labels and scores have T numbers.

    T is the largest number of right nodes in a batch so far.
    """

    emission = SINGLE
    ragged_labels, exact_labelings = True, True
    sizes = (1, 1)

    @property
    @override
    def num_states(self) -> int:
        return self.sizes[1]

    @override
    def inputs(self, x: Any) -> Any:
        return x if isinstance(x, Tensor) else x.features

    @override
    def read(self, x: Any, target: Tensor, potentials: Potentials) -> Reading:
        self.note(potentials, tuple(potentials.single.shape[1:]))
        real, delta = target >= 0, self.structure.loss_potentials(target)[0]
        sides = [real.any(axis).sum(1) for axis in (2, 1)]
        lengths, one = potentials.lengths, torch.ones_like(sides[0])
        return Reading(
            target[real],
            delta.abs()[real],  # type: ignore[union-attr]
            real.sum((1, 2)),
            self.inputs(x)[real],
            lengths=one * potentials.single.shape[1] if lengths is None else lengths,
            extra={"sides": (one, torch.stack(sides, 1))},
        )

    @override
    def complete(self, examples: Examples, extra: Extra) -> Examples:
        heights, widths = (side.contiguous().numpy() for side in extra["sides"][1].unbind(1))
        start = np.append(0, (heights * self.num_states).cumsum())
        y, cost = np.full(start[-1], -1), np.zeros(start[-1])
        spread(examples.line, widths, start, self.num_states, examples.y, examples.cost, y, cost)
        examples = examples._replace(y=y, cost=cost, added=cost.astype(examples.added.dtype), start=start)
        return examples._replace(kind=Edges(widths), length=heights)

    @override
    def room_of(self, examples: Examples) -> Callable[[], Any]:
        return partial(make_edge_room, int(examples.length.max()), self.num_states)

    @override
    def part_shapes(self, lengths: Tensor) -> Shapes:
        if self.ragged:
            return {self.emission: (lengths, (self.num_states,))}
        return {self.emission: (torch.ones_like(lengths), self.sizes)}

    @override
    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        return -1, torch.ones_like(lengths)

    @override
    def as_sequences(self, labelings: Tensor) -> Tensor:
        return fit(labelings, self.sizes, -1).flatten(2)

    @override
    def longest_labeling(self, longest: int) -> Tensor:
        return torch.ones(1, *self.sizes, dtype=torch.int64)
