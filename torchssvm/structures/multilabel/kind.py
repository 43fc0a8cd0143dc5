"""Sets of labels for the compiled loop: one row of emissions, and one of pairs."""

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
from torchssvm.core.potentials import Potentials
from torchssvm.kinds import block
from torchssvm.kinds.adapter import HeadAdapter, Reading, Shapes, rows_of_examples
from torchssvm.kinds.block import amount, loss_of, size_of
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.weights import HeadWeights
from torchssvm.structures.multilabel.message_passing import workspace
from torchssvm.structures.multilabel.oracle import by_first, decode_row, row_sums


class LabelSets(NamedTuple):
    """Limits of the decoder ``[2]``: rounds of messages, and pair updates of branch and bound; and the pairs.

    ``begin`` ``[K + 1]`` and ``other`` ``[P]`` are of :func:`torchssvm.structures.multilabel.oracle.by_first`.
    """

    limits: Any
    begin: Any
    other: Any


# Room to decode one example, float64: scores of labels and of pairs, sums of each label's pairs, messages
Room = namedtuple("Room", "unary weights positive negative memory")


def make_room(num_labels: int) -> Room:
    """Room for K labels."""
    one, square = np.zeros(num_labels), np.zeros((num_labels, num_labels))
    return Room(one, square, one.copy(), one.copy(), workspace(num_labels))


@block.list_parts.of(LabelSets)
@njit
def list_parts(kind, examples, i, labels, other, task):
    total = 0.0
    for j in range(size_of(examples, i)):
        if labels[j] or other[j]:
            total += amount(task, task.rows, 0, j, labels[j], other[j])
            if len(task.pairs):
                for p in range(kind.begin[j], kind.begin[j + 1]):
                    k = kind.other[p]
                    both, other_both = labels[j] * labels[k], other[j] * other[k]
                    if both or other_both:
                        total += amount(task, task.pairs, 0, p, both, other_both)
    return total


@block.mean_loss.of(LabelSets)
@njit
def mean_loss(kind, examples, i, t, psi, total, absolute):
    told, size, start = 0.0, 0.0, examples.start[i]
    for k in range(examples.start[i + 1] - start):
        term = examples.cost[start + k] * np.float64(psi[k])
        told += term if examples.y[start + k] else -term
        size += abs(term)
    return told, size


@block.decode.of(LabelSets)
@njit
def decode(kind, examples, i, length, scratch, transition, labels):
    start, room = examples.start[i], scratch.room
    size = examples.start[i + 1] - start
    for j in range(size):
        cost = examples.cost[start + j]
        room.unary[j] = scratch.emission[0, j] + (-cost if examples.y[start + j] else cost)
    if not len(transition):
        for j in range(size):
            labels[j] = room.unary[j] > 0.0
        return loss_of(kind, examples, i, labels)
    for j in range(size):
        for p in range(kind.begin[j], kind.begin[j + 1]):
            k = kind.other[p]
            room.weights[j, k] = room.weights[k, j] = transition[0, p]
    row_sums(room.weights, room.positive, room.negative)
    limits = kind.limits[0], kind.limits[1]
    value, bound = decode_row(room.unary, room.weights, room.positive, room.negative, *limits, room.memory, labels)
    if bound > value:
        true_value = 0.0
        for j in range(size):
            if examples.y[start + j]:
                true_value += room.unary[j]
                for k in range(j + 1, size):
                    true_value += room.weights[j, k] if examples.y[start + k] else 0.0
        if value < true_value:
            value = true_value
            for j in range(size):
                labels[j] = examples.y[start + j]
        scratch.slack[0] = max(bound - value, 0.0)
    return loss_of(kind, examples, i, labels)


class SingleLabels(NamedTuple):
    """Labels without pairs: the masses of labels do not depend on each other, and each has a best value."""

    num_labels: int


@block.solve_block.of(SingleLabels)
@njit
def solve_block(kind, examples, i, length, psi, curvature, scratch):
    scores, old, delta, new = scratch.emission[0], psi[0], scratch.delta[0], scratch.into[0]
    start, gap, value, square, loss_change = examples.start[i], 0.0, 0.0, 0.0, 0.0
    for k in range(kind.num_labels):
        target = examples.y[start + k]
        cost = -examples.cost[start + k] if target else examples.cost[start + k]
        gain, mass = scores[k] + cost, target - np.float64(old[k])
        gap += max(gain * (1.0 - mass), -gain * mass)
        best = mass + gain / curvature if curvature > 0.0 else np.inf if gain > 0.0 else -np.inf if gain < 0.0 else mass
        new[k] = target - min(max(best, 0.0), 1.0)
        change = old[k] - new[k]
        delta[k] = change
        value += change * gain
        loss_change += change * cost
        square += np.float64(change) * change
    scratch.squares[0] = square
    return gap, value, square, loss_change


@block.examine_block.of(SingleLabels)
@njit
def examine_block(kind, examples, i, length, psi, scratch):
    scores, start = scratch.emission[0], examples.start[i]
    hinge, inner, told, size, absolute = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(kind.num_labels):
        target, part = examples.y[start + k], np.float64(psi[0, k])
        cost = -examples.cost[start + k] if target else examples.cost[start + k]
        gain = scores[k] + cost
        hinge += max(-gain, 0.0) if target else max(gain, 0.0)
        inner += part * scores[k]
        told -= part * cost
        size += abs(part * cost)
        absolute += abs(part)
    scratch.squares[0] = absolute
    return hinge, inner, told, size, absolute


class LabelSetAdapter(HeadAdapter):
    """:class:`LinearMultilabel` and :class:`SparseLinearMultilabel`; limits of messages, and of branch and bound."""

    emission, ragged = "unary", False

    def __init__(self, head: Any, max_rounds: int, effort: int) -> None:
        super().__init__(head, HeadWeights(head, "unary", "pairwise"), (max_rounds, effort))
        self.pairs = None if head.pairwise is None else "pairwise"

    @override
    def read(self, x: Any, target: Tensor, potentials: Potentials) -> Reading:
        costs = self.structure.costs.cpu().expand(len(target), -1)  # type: ignore[attr-defined]
        sizes = torch.full((len(target),), self.num_states)
        return Reading(
            target.flatten(), costs.flatten(), sizes, rows_of_examples(self.weights, x), torch.ones_like(sizes)
        )

    @override
    def part_shapes(self, lengths: Tensor) -> Shapes:
        one = torch.ones_like(lengths)
        pairs = {} if self.pairs is None else {self.pairs: (one, (self.weights.pair_width,))}
        return {self.emission: (one, (self.num_states,)), **pairs}

    @override
    def kind(self, *_: Any) -> Any:
        return LabelSets(self.limits, *by_first(self.structure.listed_pairs(), self.num_states))  # type: ignore[attr-defined]

    @override
    def whole(self) -> HeadAdapter | None:
        return None if self.pairs is not None else SingleLabelsAdapter(self.head, *self.limits)

    @override
    def room_of(self, examples: Examples) -> Callable[[], Any]:
        return partial(make_room, self.num_states)

    @override
    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        return 0, torch.ones_like(lengths)


class SingleLabelsAdapter(LabelSetAdapter):
    """Sets of labels without pairs, whose blocks are solved whole."""

    @override
    def kind(self, *_: Any) -> Any:
        return SingleLabels(self.num_states)

    @override
    def room_of(self, examples: Examples) -> Any:
        return None
