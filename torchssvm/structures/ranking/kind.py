"""Rankings for the compiled loop: a row of features for each document.

The target's labels are -1: its parts are a mean of orders. Ties are broken as in the measures' oracles.
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
from torchssvm.compiler.vectors import sort_falling
from torchssvm.core.potentials import Potentials
from torchssvm.kinds import block
from torchssvm.kinds.adapter import Extra, Reading, Shapes, VectorAdapter
from torchssvm.kinds.block import Add, Score, amount
from torchssvm.kinds.examples import Examples
from torchssvm.structures.ranking.measure import ByPlace, PairSwaps

_ROUNDING = 1e-12


class Places(NamedTuple):
    """Lists whose measure adds up what documents gain at their places; a label is a place."""

    ideal: Any  # ``[documents]``, the target's weights of the scores
    gain: Any  # ``[documents]``, what a document gains, relative to the most that the list's documents can
    discount: Any  # ``[longest]``, what a document at each place counts


class Swaps(NamedTuple):
    """Lists whose measure counts swapped pairs; labels are a document's places as the better and as the worse one."""

    level: Any  # ``[documents]`` int64, grades, numbered from 0 within each list
    share: Any  # ``[n]``, what a swap counts
    room: Any  # int32, a part for each example, so that threads do not meet; zero before and after


# Room to decode one list: keys, float64, and integers
Room = namedtuple("Room", "keys order other")


def make_room(labels: int) -> Room:
    """Room for lists of so many labels."""
    return Room(np.zeros(labels), *(np.zeros(labels + 1, np.int64) for _ in range(2)))


@njit
def weight_of(kind, document, place):
    """The weight of a document's score at a place; of the target's, if the place is -1."""
    return kind.ideal[document] if place < 0 else kind.discount[place]


@block.list_parts.of(Places)
@njit
def list_places(kind, examples, i, labels, other, task):
    total, start = 0.0, examples.line[i]
    for d in range(examples.length[i]):
        weights = weight_of(kind, start + d, labels[d]), weight_of(kind, start + d, other[d])
        total += amount(task, task.rows, d, 0, *weights)
    return total


@block.loss_of.of(Places)
@njit
def loss_of_places(kind, examples, i, labels):
    gained, start = 0.0, examples.line[i]
    for d in range(examples.length[i]):
        gained += kind.gain[start + d] * kind.discount[labels[d]]
    return 1.0 - gained if 1.0 - gained >= _ROUNDING else 0.0


@block.decode.of(Places)
@njit
def decode_places(kind, examples, i, length, scratch, transition, labels):
    room, start = scratch.room, examples.line[i]
    for d in range(length):
        room.order[d], room.keys[d] = d, scratch.emission[d, 0]
    sort_falling(room.keys, room.order, length, room.other)
    for d in range(length):
        room.keys[d] -= kind.gain[start + d]
    sort_falling(room.keys, room.order, length, room.other)
    for p in range(length):
        labels[room.order[p]] = p
    return loss_of_places(kind, examples, i, labels)


@njit
def walk(kind, examples, i, labels, task):
    """Go through a list from the top down and list how many swaps move each document; ``task`` may be None.

    Returns:
        The sum over the parts, and the loss, both without the factor that all swaps of the list have.
    """
    start, size = examples.line[i], examples.length[i]
    places, begin = 2 * size, 4 * start + 2 * i
    end = begin + places + size + 1  # one level more than documents: a single one may be relevant
    at, lower, higher = kind.room[begin : begin + places], kind.room[begin + places : end], kind.room[end:]
    # lower[g] counts worse documents than level g that stand above; higher[g], better ones that stand below.
    levels = 0
    for d in range(size):
        level = kind.level[start + d]
        levels = max(levels, level + 1)
        if level:
            higher[level - 1] += 1
        for role in range(2):
            at[labels[2 * d + role]] = 2 * d + role + 1
    for g in range(levels - 2, -1, -1):
        higher[g] += higher[g + 1]
    score, loss = 0.0, 0.0
    for p in range(places):
        who = at[p] - 1
        at[p] = 0
        if who < 0:  # no labeling leaves a place free
            continue
        d = who // 2
        level, moved = kind.level[start + d], 0
        if who % 2 == 0:
            moved -= lower[level]
            if level:
                loss += np.float64(lower[level])
            for g in range(level):
                higher[g] -= 1
        else:
            moved += higher[level]
            for g in range(level + 1, levels):
                lower[g] += 1
        if task is not None:
            score += amount(task, task.rows, d, 0, moved, 0)
    for g in range(levels):
        lower[g] = higher[g] = 0
    return score, loss


@block.list_parts.of(Swaps)
@njit
def list_swaps(kind, examples, i, labels, other, task):
    return walk(kind, examples, i, labels, task)[0] if labels[0] >= 0 else 0.0


@block.score.of(Swaps)
@njit
def score_swaps(kind, examples, i, labels, length, emission, transition):
    return kind.share[i] * list_swaps(kind, examples, i, labels, labels, Score(emission, transition))


@block.add_labeling.of(Swaps)
@njit
def add_swaps(kind, examples, i, length, labels, mass, delta, pairs, counts):
    list_swaps(kind, examples, i, labels, labels, Add(delta, pairs, mass * kind.share[i]))


@block.loss_of.of(Swaps)
@njit
def loss_of_swaps(kind, examples, i, labels):
    return kind.share[i] * walk(kind, examples, i, labels, None)[1]


@block.decode.of(Swaps)
@njit
def decode_swaps(kind, examples, i, length, scratch, transition, labels):
    room = scratch.room
    for d in range(length):
        value = np.float64(scratch.emission[d, 0])
        room.keys[d], room.keys[length + d] = value - 0.5, value + 0.5
    for r in range(2 * length):
        room.order[r] = r
    sort_falling(room.keys, room.order, 2 * length, room.other)
    for p in range(2 * length):
        role = room.order[p] // length
        labels[2 * (room.order[p] - role * length) + role] = p
    return loss_of_swaps(kind, examples, i, labels)


class RankingAdapter(VectorAdapter):
    """:class:`LinearRanking` with one of the measures of this folder.

    A labeling is what the measure's oracle gives: a place for each document, or two.
    """

    emission = "scores"

    def __init__(self, head: Any) -> None:
        super().__init__(head)
        self.measure = head.structure.measure
        self.roles = 2 if isinstance(self.measure, PairSwaps) else 1

    @override
    def read(self, x: Any, target: Any, potentials: Potentials) -> Reading:
        self.note(potentials, (potentials.single.shape[1],))
        grades, measure = target.grades, self.measure
        real = grades >= 0
        documents = real.sum(1)
        if isinstance(measure, ByPlace):
            extra = {
                "ideal": (documents, measure.ideal(grades)[real]),
                "gain": (documents, measure.relative_gain(grades)[real]),
            }
        else:
            ranks = [row[inside].unique(return_inverse=True)[1] for row, inside in zip(grades, real, strict=True)]
            extra = {
                "level": (documents, torch.cat(ranks)),
                "share": (torch.ones_like(documents), measure.share(grades)),
            }
        sizes = self.roles * documents
        labels = torch.full((int(sizes.sum()),), -1)
        cost = torch.zeros(len(labels), dtype=torch.float64)
        return Reading(labels, cost, sizes, x[real], documents, documents, extra)

    @override
    def kind(self, examples: Examples, extra: Extra) -> Any:
        arrays: Any = [values.numpy() for _, values in extra.values()]
        if isinstance(self.measure, PairSwaps):
            room = np.zeros(4 * len(arrays[0]) + 2 * len(arrays[1]), np.int32)
            return Swaps(*arrays, room)  # type: ignore[call-arg]
        discount = self.measure.discount(torch.arange(int(np.diff(examples.line).max()))).numpy()
        return Places(*arrays, discount)  # type: ignore[call-arg]

    @override
    def room_of(self, examples: Examples) -> Callable[[], Any]:
        return partial(make_room, int(np.diff(examples.start).max()))

    @override
    def part_shapes(self, lengths: Tensor) -> Shapes:
        return {self.emission: (lengths, ()) if self.ragged else (torch.ones_like(lengths), self.sizes)}

    @override
    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        return 0, lengths * self.roles - 1

    @override
    def as_sequences(self, labelings: Tensor) -> Tensor:
        return labelings.flatten(2)

    @override
    def longest_labeling(self, longest: int) -> Tensor:
        most = max(longest, self.roles)
        return torch.full((1, most) if self.roles == 1 else (1, most // 2, 2), most - 1)
