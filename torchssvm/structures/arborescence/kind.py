"""Arborescences over lists of features for the compiled loop.

A token is labelled with its head. The features of an arc are columns in the numbering of its sentence, so the weights
that a sentence needs are gathered once, and sums over its columns take a small array.
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

from torchssvm.compiler.jit import njit, njit_fastmath
from torchssvm.compiler.vectors import dot, exact_dot
from torchssvm.core.potentials import Potentials
from torchssvm.core.sparse_features import Lists, SparseFeatures
from torchssvm.kinds import block
from torchssvm.kinds.adapter import Extra, Reading, VectorAdapter
from torchssvm.kinds.block import list_states, loss_of, uniform_mean_loss
from torchssvm.kinds.examples import Examples
from torchssvm.structures.arborescence.oracle import best_nonprojective, best_projective


class Arcs(NamedTuple):
    """The lists of ``Examples`` belong to arcs, by token, then by head; ``distinct`` are features of a sentence."""

    projective: bool  # whether arcs may not cross
    single_root: bool  # whether the root has one child


# Scratch arrays for one sentence: its weights, sums over its columns, and the room of the decoders
ArcScratch = namedtuple("ArcScratch", "weights sums charts memory places")


def make_arc_scratch(longest: int, columns: int, dtype: np.dtype) -> ArcScratch:
    """Scratch for sentences of up to ``longest`` tokens and ``columns`` different features."""
    size = longest + 1
    return ArcScratch(
        weights=np.zeros(columns, dtype),
        sums=np.zeros(columns, dtype),
        charts=np.zeros((6, size, size), dtype),
        memory=np.zeros(size * size),
        places=np.zeros(3 * size * size + 14 * size, np.int64),
    )


@block.list_parts.of(Arcs)
@njit
def list_arcs(arcs, examples, i, labels, other, task):
    return list_states(examples, i, labels, other, task)


block.mean_loss.of(Arcs)(uniform_mean_loss)


@njit
def number_columns(line_start, row, column, stamp, place, distinct, start):
    """Replace the columns by their numbers in the sentence, in order of occurrence.

    ``stamp`` ``[F]`` is -1, and ``place`` ``[F]`` scratch; ``distinct`` and ``start`` are filled, as in ``Examples``.
    If ``distinct`` is empty, only ``start`` is filled.
    """
    total = 0
    for i in range(len(line_start) - 1):
        start[i] = total
        for p in range(row[line_start[i]], row[line_start[i + 1]]):
            c = column[p]
            if stamp[c] != i:
                stamp[c] = i
                place[c] = total - start[i]
                if len(distinct):
                    distinct[total] = c
                total += 1
            if len(distinct):
                column[p] = place[c]
    start[len(line_start) - 1] = total


@block.potentials.of(Arcs)
@njit_fastmath
def arc_potentials(arcs, examples, model, i, scratch):
    room, emission = scratch.room, scratch.emission
    begin, end = examples.distinct_start[i], examples.distinct_start[i + 1]
    for u in range(end - begin):
        room.weights[u] = model.emission[examples.distinct[begin + u], 0]
    sum_lists(examples, i, examples.length[i], room.weights, emission)
    return False


@njit_fastmath
def list_product(examples, line, weights):
    """The sum of ``weights`` over the features of one arc."""
    total = weights.dtype.type(0)
    if len(examples.value):
        for p in range(examples.row[line], examples.row[line + 1]):
            total += examples.value[p] * weights[examples.column[p]]
    else:
        for p in range(examples.row[line], examples.row[line + 1]):
            total += weights[examples.column[p]]
    return total


@njit_fastmath
def sum_lists(examples, i, length, weights, scores):
    """``scores[t, h]``: the sum of ``weights`` over the features of each arc; zero beyond the last head."""
    line = examples.line[i]
    for t in range(length):
        row = scores[t]
        for h in range(length + 1):
            row[h] = list_product(examples, line, weights)
            line += 1
        row[length + 1 :] = 0.0


@njit
def add_list(examples, line, amount, sums):
    """``sums += amount x`` for the features of one arc."""
    for p in range(examples.row[line], examples.row[line + 1]):
        if len(examples.value):
            sums[examples.column[p]] += amount * examples.value[p]
        else:
            sums[examples.column[p]] += amount


@njit
def add_parts(examples, i, length, parts, sums):
    """``sums = x^T parts`` of sentence i."""
    sums[: examples.distinct_start[i + 1] - examples.distinct_start[i]] = 0.0
    line = examples.line[i]
    for t in range(length):
        row = parts[t]
        for h in range(length + 1):
            if row[h] != 0.0:
                add_list(examples, line, sums.dtype.type(row[h]), sums)
            line += 1


@block.decode.of(Arcs)
@njit
def arc_decode(arcs, examples, i, length, scratch, transition, labels):
    emission, scores, room = scratch.emission, scratch.prefixes, scratch.room
    start = examples.start[i]
    for t in range(length):
        target, cost, row = examples.y[start + t], examples.added[start + t], scores[t]
        for h in range(length + 1):
            row[h] = emission[t, h] + cost
        row[target] = emission[t, target]
    if arcs.projective:
        best_projective(scores, length, arcs.single_root, room.charts, room.places, labels)
    else:
        best_nonprojective(scores, length, arcs.single_root, room.memory, room.places, labels)
    return loss_of(arcs, examples, i, labels)


@block.respond.of(Arcs)
@njit
def arc_respond(arcs, examples, model, i, length, labels, scratch, slots, count, corner, is_new):
    response, room = scratch.response, scratch.room
    room.sums[: examples.distinct_start[i + 1] - examples.distinct_start[i]] = 0.0
    start, one = examples.start[i], room.sums.dtype.type(1)
    for t in range(length):
        new, old = labels[t], examples.y[start + t]
        if new != old:
            line = examples.line[i] + t * (length + 1)
            add_list(examples, line + new, one, room.sums)
            add_list(examples, line + old, -one, room.sums)
    for t in range(length):  # labelings share most arcs: each is summed once
        row = response[t]
        row[: length + 1] = np.inf
        line = examples.line[i] + t * (length + 1)
        for c in range(-2 if is_new else -1, count):
            h = slots[c, t] if c >= 0 else examples.y[start + t] if c == -1 else corner[t]
            if row[h] == np.inf:
                row[h] = list_product(examples, line + h, room.sums)
    return response, scratch.pairs


@block.respond_to_parts.of(Arcs)
@njit
def arc_respond_to_parts(arcs, examples, model, i, length, psi, pairs, rows, scratch, slots, count, corner, is_new):
    add_parts(examples, i, length, psi, scratch.room.sums)
    sum_lists(examples, i, length, scratch.room.sums, scratch.response)
    total = 0.0
    for t in range(length):
        total += exact_dot(psi[t], scratch.response[t])
    return total, pairs


@block.squared_length.of(Arcs)
@njit
def arc_length(arcs, examples, model, i, length, delta, pairs, rows, scratch):
    room = scratch.room
    for t in range(length):
        scratch.squares[t] = dot(delta[t], delta[t])
    add_parts(examples, i, length, delta, room.sums)
    total = 0.0
    for u in range(examples.distinct_start[i + 1] - examples.distinct_start[i]):
        total += np.float64(room.sums[u]) * np.float64(room.sums[u])
    return total


@block.add_to_weights.of(Arcs)
@njit
def add_arcs_to_weights(arcs, examples, model, i, length, delta, pairs, rows, scratch, factor):
    factor = delta.dtype.type(factor)
    begin, line = examples.distinct_start[i], examples.line[i]
    for t in range(length):
        row = delta[t]
        for h in range(length + 1):
            if row[h] != 0.0:
                share = factor * row[h]
                for p in range(examples.row[line], examples.row[line + 1]):
                    amount = share * examples.value[p] if len(examples.value) else share
                    model.emission[examples.distinct[begin + examples.column[p]], 0] += amount
            line += 1


class ArcsAdapter(VectorAdapter):
    """:class:`LinearArcs`: a token's label is its head, and its emissions are the scores of its arcs.

    K is the length of the longest sentence that :meth:`read` has seen, plus 1.
    """

    emission, ragged_labels, notes, longest = "arcs", True, True, 0

    def __init__(self, head: Any, projective: bool) -> None:
        super().__init__(head)
        self.projective = projective

    @property
    @override
    def num_states(self) -> int:
        return self.longest + 1

    @override
    def read(self, x: Any, target: Tensor, potentials: Potentials) -> Reading:
        columns, values = x if isinstance(x, SparseFeatures) else (x, None)
        inside = target >= 0
        sizes = inside.sum(1)
        self.longest = max(self.longest, int(sizes.max()))
        arcs = inside.unsqueeze(2) & torch.nn.functional.pad(inside, (1, 0), value=True).unsqueeze(1)
        columns = columns[arcs]
        real = columns >= 0
        dtype = self.head.weight.dtype
        real_values = torch.empty(0, dtype=dtype) if values is None else values[arcs][real].to(dtype)
        lists = Lists(real.sum(1), columns[real].to(torch.int32), real_values)
        cost = self.structure.costs(target)[inside]  # type: ignore[attr-defined]
        return Reading(target[inside], cost, sizes, lists, sizes * (sizes + 1))

    @override
    def complete(self, examples: Examples, extra: Extra) -> Examples:
        start, distinct = np.zeros(len(examples.line), np.int64), np.zeros(0, np.int32)
        for _ in range(2):  # first they are counted
            stamp, place = np.full(len(self.head.weight), -1, np.int32), np.empty(len(self.head.weight), np.int32)
            number_columns(examples.line, examples.row, examples.column, stamp, place, distinct, start)
            distinct = distinct if len(distinct) else np.empty(start[-1], np.int32)
        kind = Arcs(self.projective, self.structure.among.single_root)  # type: ignore[attr-defined]
        lengths = np.diff(examples.start)
        return examples._replace(kind=kind, length=lengths, distinct=distinct, distinct_start=start)

    @override
    def room_of(self, examples: Examples) -> Callable[[], Any]:
        columns = int(np.diff(examples.distinct_start).max())
        return partial(make_arc_scratch, self.longest, columns, examples.added.dtype)

    @override
    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        return 0, lengths
