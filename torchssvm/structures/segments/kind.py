"""Segments for the compiled loop: a row of emissions for each frame, and a table of neighbours and durations."""

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
from torchssvm.compiler.vectors import set_row
from torchssvm.kinds import block
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.kinds.block import amount, size_of
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.weights import HeadWeights
from torchssvm.structures.segments.oracle import best_segments


class Segmentations(NamedTuple):
    """The structure's settings: ``least`` ``[K]`` int64 are the smallest durations, and ``labels`` is K."""

    least: Any
    labels: int
    boundary: bool
    spans: bool


# Room of the decoder: see :func:`.oracle.best_segments`; ``none`` is no target
Room = namedtuple("Room", "memory back none")


def make_room(longest: int, rows: int, labels: int) -> Room:
    """Room for up to ``longest`` frames and a table of this many rows."""
    memory = np.zeros((2 * (rows - labels) + 2) * labels)
    return Room(memory, np.zeros((2, longest, labels), np.int32), np.zeros(0, np.int64))


@njit
def end_of(kind, codes, begin, length):
    """The frame after the last of the segment that begins at ``begin``."""
    end = begin + 1
    while end < length and codes[end] < kind.labels:
        end += 1
    return end


@njit
def list_one_side(kind, codes, other, length, task, is_other):
    """The parts of ``codes``; of the other labeling, only those that ``other`` lacks at the same frames."""
    total, count, begin, before, value = 0.0, kind.labels, 0, -1, 0.0 if is_other else 1.0
    while begin < length:
        end, label = end_of(kind, codes, begin, length), codes[begin] - count
        for t in range(begin, end):
            shared = other[t] % count == label
            if not (is_other and shared):
                total += amount(task, task.rows, t, label, value, 1.0 if is_other or shared else 0.0)
        alike = other[begin] == codes[begin]
        if kind.boundary and not (is_other and alike):
            total += amount(task, task.rows, begin, count + label, value, 1.0 if is_other or alike else 0.0)
        if before >= 0:
            shared = alike and other[begin - 1] % count == before
            if not (is_other and shared):
                total += amount(task, task.pairs, before, label, value, 1.0 if is_other or shared else 0.0)
        shared = alike and end_of(kind, other, begin, length) == end
        if not (is_other and shared):
            place = count + end - begin - 1
            total += amount(task, task.pairs, place, label, value, 1.0 if is_other or shared else 0.0)
        begin, before = end, label
    return total


@block.list_parts.of(Segmentations)
@njit
def list_parts(kind, examples, i, labels, other, task):
    total = 0.0
    for side in range(2):  # one call, which is compiled once
        codes, others = (labels, other) if side == 0 else (other, labels)
        total += list_one_side(kind, codes, others, size_of(examples, i), task, side == 1)
    return total


@block.loss_of.of(Segmentations)
@njit
def loss_of(kind, examples, i, labels):
    loss, count, length = 0.0, kind.labels, size_of(examples, i)
    target = examples.y[examples.start[i] :]
    for t in range(length):
        if not kind.spans:
            loss += examples.cost[examples.start[i] + t] * (labels[t] % count != target[t] % count)
            continue
        begins, true = labels[t] >= count, target[t] >= count
        loss += begins + true
        if begins and labels[t] == target[t] and end_of(kind, labels, t, length) == end_of(kind, target, t, length):
            loss -= 2.0
    return loss


@block.mean_loss.of(Segmentations)
@njit
def mean_loss(kind, examples, i, t, psi, total, absolute):
    if kind.spans:
        return np.nan, 0.0
    place, told, size = examples.start[i] + t, 0.0, 0.0
    target, cost = examples.y[place] % kind.labels, examples.cost[place]
    for k in range(kind.labels):
        if k != target:
            told -= cost * np.float64(psi[k])
            size += cost * abs(np.float64(psi[k]))
    return told, size


@block.decode.of(Segmentations)
@njit
def decode(kind, examples, i, length, scratch, transition, labels):
    start, room, scores = examples.start[i], scratch.room, scratch.prefixes
    target = examples.y[start : start + length]
    for t in range(length):
        set_row(scores[t], scratch.emission[t], None, None)
        for k in range(0 if kind.spans else kind.labels):
            if k != target[t] % kind.labels:
                scores[t, k] += examples.added[start + t]
    known = target if kind.spans else room.none
    best_segments(scores, transition, kind.least, known, length, room.memory, room.back, labels)
    return loss_of(kind, examples, i, labels)


class SegmentsAdapter(HeadAdapter):
    """:class:`LinearSegments`."""

    emission, pairs = "emission", "segment"

    def __init__(self, head: Any) -> None:
        super().__init__(head, HeadWeights(head, "emission", "segment"))

    @override
    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        return 0, torch.full_like(lengths, 2 * self.weights.pair_width - 1)

    @override
    def kind(self, *_: Any) -> Segmentations:
        structure: Any = self.structure
        least = torch.tensor(structure.min_duration).numpy()
        return Segmentations(least, structure.num_labels, structure.boundary, structure.span_loss)

    @override
    def room_of(self, examples: Examples) -> Callable[[], Any]:
        longest = max((examples.start[1:] - examples.start[:-1]).tolist(), default=0)
        return partial(make_room, longest, int(examples.pair_rows[0]), self.weights.pair_width)
