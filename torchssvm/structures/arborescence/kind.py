"""Arborescences over lists of features for the compiled loop.

A token is labelled with its head. The features of an arc are groups of columns in the numbering of its sentence, so the
weights that a sentence needs are gathered once, and sums over its groups take a small array. Where the cache may serve,
only the arcs of the labelings that it keeps are scored.
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
from torchssvm.compiler.vectors import dot, exact_dot
from torchssvm.core.arguments import naming
from torchssvm.core.batch import Batch
from torchssvm.core.potentials import Potentials
from torchssvm.core.sparse_features import Lists, SparseFeatures
from torchssvm.kinds import block
from torchssvm.kinds.adapter import Extra, Reading, VectorAdapter
from torchssvm.kinds.block import list_states, loss_of, uniform_mean_loss
from torchssvm.kinds.examples import Examples
from torchssvm.structures.arborescence.groups import group_features
from torchssvm.structures.arborescence.oracle import best_nonprojective, best_projective


class Arcs(NamedTuple):
    """The lists of ``Examples`` belong to arcs, by token, then by head; they have groups of a sentence's features."""

    projective: bool  # whether arcs may not cross
    single_root: bool  # whether the root has one child


# Scratch arrays for one sentence: weights and sums of its groups, a list of them, and the room of the decoders
ArcScratch = namedtuple("ArcScratch", "weights sums groups charts memory places")


def make_arc_scratch(longest: int, groups: int, dtype: np.dtype) -> ArcScratch:
    """Scratch for sentences of up to ``longest`` tokens and ``groups`` groups of features."""
    size = longest + 1
    return ArcScratch(
        weights=np.zeros(groups, dtype),
        sums=np.zeros(groups, dtype),
        groups=np.zeros(groups, np.int64),
        charts=np.zeros((6, size, size), dtype),
        memory=np.zeros(size * size),
        places=np.zeros(3 * size * size + 14 * size, np.int64),
    )


@block.list_parts.of(Arcs)
@njit
def list_arcs(arcs, examples, i, labels, other, task):
    return list_states(examples, i, labels, other, task)


block.mean_loss.of(Arcs)(uniform_mean_loss)


@block.potentials.of(Arcs)
@njit
def arc_potentials(arcs, examples, model, i, scratch):
    room, emission, length = scratch.room, scratch.emission, examples.length[i]
    weights = model.emission.reshape(model.emission.size)
    for g in range(num_groups(examples, i)):
        room.weights[g] = weight_of(examples, weights, i, g)
    sum_lists(examples, i, length, room.weights, emission)
    return False


@block.read_potentials.of(Arcs)
@njit
def read_arc_potentials(arcs, examples, model, i, scratch, slots, count, some):
    if not some:
        return arc_potentials(arcs, examples, model, i, scratch)
    room, emission, length = scratch.room, scratch.emission, examples.length[i]
    weights, lines, arcs_read, groups_read = model.emission.reshape(model.emission.size), room.places, 0, 0
    room.weights[: num_groups(examples, i)] = np.inf  # not yet summed
    # Arcs, then their groups, then the weights: in a loop of its own, each waits for memory less.
    for t in range(length):
        row, line = emission[t], examples.line[i] + t * (length + 1)
        row[: length + 1] = np.inf
        for c in range(-1, count):
            h = np.int64(slots[c, t]) if c >= 0 else examples.y[examples.start[i] + t]
            if row[h] == np.inf:  # labelings share most arcs
                row[h] = 0.0
                lines[arcs_read] = line + h
                arcs_read += 1
    for a in range(arcs_read):
        for p in range(examples.row[lines[a]], examples.row[lines[a] + 1]):
            g = examples.column[p]
            if room.weights[g] == np.inf:
                room.weights[g] = 0.0
                room.groups[groups_read] = g
                groups_read += 1
    for k in range(groups_read):
        room.weights[room.groups[k]] = weight_of(examples, weights, i, room.groups[k])
    for a in range(arcs_read):
        place = lines[a] - examples.line[i]
        emission[place // (length + 1), place % (length + 1)] = list_product(examples, lines[a], room.weights)
    return False


@block.other_potentials.of(Arcs)
@njit
def other_arc_potentials(arcs, examples, model, i, scratch):
    room, emission, length = scratch.room, scratch.emission, examples.length[i]
    weights = model.emission.reshape(model.emission.size)
    for g in range(num_groups(examples, i)):
        if room.weights[g] == np.inf:
            room.weights[g] = weight_of(examples, weights, i, g)
    line = examples.line[i]
    for t in range(length):
        row = emission[t]
        for h in range(length + 1):
            if row[h] == np.inf:
                row[h] = list_product(examples, line, room.weights)
            line += 1
        row[length + 1 :] = 0.0


@njit
def num_groups(examples, i):
    """How many groups the features of a sentence have."""
    return examples.group_start[i + 1] - examples.group_start[i] - 1


@njit
def features_of(examples, i, g):
    """Where the features of a group begin and end in ``examples.distinct``."""
    start, place = examples.distinct_start[i], examples.group_start[i] + g
    return start + examples.group[place], start + examples.group[place + 1]


@njit
def weight_of(examples, weights, i, g):
    """The sum of the weights of a group; all weights are ``[F]``."""
    begin, end = features_of(examples, i, g)
    total = weights.dtype.type(0)
    for p in range(begin, end):
        total += weights[examples.distinct[p]]
    return total


@njit
def list_product(examples, line, weights):
    """The sum of ``weights`` over the groups of one arc, always in the same order."""
    total = weights.dtype.type(0)
    if len(examples.value):
        for p in range(examples.row[line], examples.row[line + 1]):
            total += examples.value[p] * weights[examples.column[p]]
    else:
        for p in range(examples.row[line], examples.row[line + 1]):
            total += weights[examples.column[p]]
    return total


@njit
def sum_lists(examples, i, length, weights, scores):
    """``scores[t, h]``: the sum of ``weights`` over the groups of each arc; zero beyond the last head."""
    line = examples.line[i]
    for t in range(length):
        row = scores[t]
        for h in range(length + 1):
            row[h] = list_product(examples, line, weights)
            line += 1
        row[length + 1 :] = 0.0


@njit
def add_list(examples, line, amount, sums):
    """``sums += amount x`` for the groups of one arc."""
    for p in range(examples.row[line], examples.row[line + 1]):
        if len(examples.value):
            sums[examples.column[p]] += amount * examples.value[p]
        else:
            sums[examples.column[p]] += amount


@njit
def add_parts(examples, i, length, parts, sums):
    """``sums = x^T parts`` of sentence i: of a group, the number that each of its features gets."""
    sums[: num_groups(examples, i)] = 0.0
    line = examples.line[i]
    for t in range(length):
        row = parts[t]
        for h in range(length + 1):
            if row[h] != 0.0:
                add_list(examples, line, sums.dtype.type(row[h]), sums)
            line += 1


@njit
def count_features(examples, i, sums):
    """Multiply the numbers of groups by their numbers of features, as for a product with ``x``."""
    for g in range(num_groups(examples, i)):
        begin, end = features_of(examples, i, g)
        sums[g] *= sums.dtype.type(end - begin)


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
    room.sums[: num_groups(examples, i)] = 0.0
    start, one = examples.start[i], room.sums.dtype.type(1)
    for t in range(length):
        new, old = labels[t], examples.y[start + t]
        if new != old:
            line = examples.line[i] + t * (length + 1)
            add_list(examples, line + new, one, room.sums)
            add_list(examples, line + old, -one, room.sums)
    count_features(examples, i, room.sums)
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
    count_features(examples, i, scratch.room.sums)
    sum_lists(examples, i, length, scratch.room.sums, scratch.response)
    total = 0.0
    for t in range(length):
        total += exact_dot(psi[t], scratch.response[t])
    return total, pairs


@block.squared_length.of(Arcs)
@njit
def arc_length(arcs, examples, model, i, length, delta, pairs, rows, scratch):
    sums = scratch.room.sums
    for t in range(length):
        scratch.squares[t] = dot(delta[t], delta[t])
    add_parts(examples, i, length, delta, sums)
    total = 0.0
    for g in range(num_groups(examples, i)):
        begin, end = features_of(examples, i, g)
        total += np.float64(sums[g]) * np.float64(sums[g]) * np.float64(end - begin)
    return total


@block.add_to_weights.of(Arcs)
@njit
def add_arcs_to_weights(arcs, examples, model, i, length, delta, pairs, rows, scratch, factor):
    sums, factor, weights = scratch.room.sums, delta.dtype.type(factor), model.emission.reshape(model.emission.size)
    add_parts(examples, i, length, delta, sums)
    for g in range(num_groups(examples, i)):
        if sums[g] != 0.0:
            amount = factor * sums[g]
            begin, end = features_of(examples, i, g)
            for p in range(begin, end):
                weights[examples.distinct[p]] += amount


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
    def apply(self, batch: Batch) -> Potentials:
        """Scores of zero: packing needs their shape, and the checks of features."""
        with naming(batch.index):
            _, _, outside = self.head.check_arcs(batch.x, batch.lengths)
        scores = self.head.weight.detach().new_zeros(()).expand(outside.shape)
        ragged = {} if batch.lengths is None else {self.emission: 0}
        made = Potentials({self.emission: scores}, batch.lengths, ragged=ragged)
        made.index = batch.index
        return made

    @override
    def read(self, x: Any, target: Tensor, potentials: Potentials) -> Reading:
        columns, values = x if isinstance(x, SparseFeatures) else (x, None)
        inside = target >= 0
        sizes = inside.sum(1)
        self.longest = max(self.longest, int(sizes.max()))
        dtype = self.head.weight.dtype
        values = torch.empty(0, 0, 0, 0, dtype=dtype) if values is None else values.to(dtype).contiguous()
        made = group_features(columns.to(torch.int32).contiguous().numpy(), values.numpy(), sizes.numpy())
        counts, column, value, each, distinct, group = map(torch.from_numpy, made)
        cost = self.structure.costs(target)[inside]  # type: ignore[attr-defined]
        extra = {"distinct": (each[:, 0], distinct), "group": (each[:, 1], group)}
        lists = Lists(counts, column, value)
        return Reading(target[inside], cost, sizes, lists, sizes * (sizes + 1), extra=extra)

    @override
    def complete(self, examples: Examples, extra: Extra) -> Examples:
        kind = Arcs(self.projective, self.structure.among.single_root)  # type: ignore[attr-defined]
        (distinct_start, distinct), (group_start, group) = (map(Tensor.numpy, extra[name]) for name in extra)
        return examples._replace(
            kind=kind,
            length=np.diff(examples.start),
            distinct=distinct,
            distinct_start=distinct_start,
            group=group,
            group_start=group_start,
        )

    @override
    def room_of(self, examples: Examples) -> Callable[[], Any]:
        groups = int(np.diff(examples.group_start).max()) - 1
        return partial(make_arc_scratch, self.longest, groups, examples.added.dtype)

    @override
    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        return 0, lengths
