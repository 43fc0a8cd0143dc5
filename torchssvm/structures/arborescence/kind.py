"""Arborescences over lists of features for the compiled loop.

A token is labelled with its head, or with its head and the label of its arc. The features of an arc are groups of
columns in the numbering of its sentence, so the weights that a sentence needs are gathered once, and sums over its
groups take a small array. Where the cache may serve, only the arcs of the labelings that it keeps are scored.
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

from torchssvm.compiler.jit import ByKind, njit
from torchssvm.compiler.vectors import add_rows, exact_dot, prefetch, set_row
from torchssvm.core.arguments import naming
from torchssvm.core.batch import Batch
from torchssvm.core.potentials import Potentials
from torchssvm.core.sparse_features import Lists, SparseFeatures
from torchssvm.kinds import block
from torchssvm.kinds.adapter import Extra, Reading, Shapes, VectorAdapter
from torchssvm.kinds.block import list_states, size_of
from torchssvm.kinds.examples import Examples
from torchssvm.structures.arborescence.groups import group_features
from torchssvm.structures.arborescence.labels import (
    Bare,
    Labels,
    add_costs,
    count_of,
    first_label,
    list_labels,
    share_of,
)
from torchssvm.structures.arborescence.oracle import best_nonprojective, best_projective

_AHEAD = 24  # features whose weights are asked for before they are added


class Arcs(NamedTuple):
    """The lists of ``Examples`` belong to arcs, by token, then by head; they have groups of a sentence's features.

    A token's label is ``head * L + label`` of its arc, which is also its place in the token's row of scores.
    """

    projective: bool  # whether arcs may not cross
    single_root: bool  # whether the root has one child
    labels: Any  # its class selects the kernels


# Scratch arrays for one sentence: for each label, weights of its groups and sums, which are zero between calls; a list
# of places in the weights; which labels occur; and the room of the decoders
ArcScratch = namedtuple("ArcScratch", "weights sums groups labels occurs charts memory places")


def make_arc_scratch(longest: int, groups: int, labels: int, dtype: np.dtype) -> ArcScratch:
    """Scratch for sentences of up to ``longest`` tokens and ``groups`` groups of features, and so many labels."""
    size = longest + 1
    return ArcScratch(
        weights=np.zeros(labels * groups, dtype),
        sums=np.zeros(labels * groups, dtype),
        groups=np.zeros(labels * groups, np.int64),
        labels=np.zeros(labels, np.int64),
        occurs=np.zeros(labels, np.bool_),
        charts=np.zeros((6, size, size), dtype),
        memory=np.zeros(size * size),
        places=np.zeros(max(3 * size * size + 14 * size, size * size * labels), np.int64),
    )


@block.list_parts.of(Arcs)
@njit
def list_arcs(arcs, examples, i, labels, other, task):
    return list_states(examples, i, labels, other, task)


@block.loss_of.of(Arcs)
@njit
def arc_loss(arcs, examples, i, labels):
    loss, start = 0.0, examples.start[i]
    for t in range(size_of(examples, i)):
        loss += share_of(arcs.labels, labels[t], examples.y[start + t]) * examples.cost[start + t]
    return loss


@block.mean_loss.of(Arcs)
@njit
def mean_arc_loss(arcs, examples, i, t, psi, total, absolute):
    place, labels, at_head, size_at_head = examples.start[i] + t, count_of(arcs.labels), 0.0, 0.0
    target, cost, share = examples.y[place], examples.cost[place], arcs.labels.cost
    for k in range(target // labels * labels, (target // labels + 1) * labels):
        at_head += np.float64(psi[k])
        size_at_head += abs(np.float64(psi[k]))
    at_target = np.float64(psi[target])
    told = (at_head - total) + share * (at_target - at_head)
    return cost * told, cost * ((absolute - size_at_head) + share * (size_at_head - abs(at_target)))


@block.potentials.of(Arcs)
@njit
def arc_potentials(arcs, examples, model, i, scratch):
    room, emission, length = scratch.room, scratch.emission, examples.length[i]
    weights = model.emission.reshape(model.emission.size)
    for g in range(num_groups(examples, i)):
        sum_features(arcs.labels, examples, weights, i, g, room.weights)
    line = examples.line[i]
    for t in range(length):
        row = emission[t]
        for h in range(length + 1):
            sum_groups(arcs.labels, examples, line, room.weights, row, h)
            line += 1
        row[(length + 1) * count_of(arcs.labels) :] = 0.0
    return False


@block.read_potentials.of(Arcs)
@njit
def read_arc_potentials(arcs, examples, model, i, scratch, slots, count, some):
    if not some:
        return arc_potentials(arcs, examples, model, i, scratch)
    room, emission, length = scratch.room, scratch.emission, examples.length[i]
    weights, parts, parts_read, groups_read = model.emission.reshape(model.emission.size), room.places, 0, 0
    labels, groups = count_of(arcs.labels), num_groups(examples, i)
    room.weights[: groups * labels] = np.inf  # not yet summed
    # Arcs, then their groups, then the weights: in a loop of its own, each waits for memory less.
    width = (length + 1) * labels
    for t in range(length):
        row = emission[t]
        row[:width] = np.inf
        for c in range(-1, count):
            k = np.int64(slots[c, t]) if c >= 0 else examples.y[examples.start[i] + t]
            if row[k] == np.inf:  # labelings share most arcs
                row[k] = 0.0
                parts[parts_read] = t * width + k
                parts_read += 1
    for a in range(parts_read):
        line, first = examples.line[i] + parts[a] // labels, parts[a] % labels * groups
        for p in range(examples.row[line], examples.row[line + 1]):
            place = first + examples.column[p]
            if room.weights[place] == np.inf:
                room.weights[place] = 0.0
                room.groups[groups_read] = place
                groups_read += 1
    for k in range(groups_read):
        place = room.groups[k]
        g, label = (place, 0) if labels == 1 else (place % groups, place // groups)
        room.weights[place] = weight_of(examples, weights, i, g, labels, label)
    for a in range(parts_read):
        line, label = examples.line[i] + parts[a] // labels, parts[a] % labels
        its = room.weights[label * groups : (label + 1) * groups]
        emission[parts[a] // width, parts[a] % width] = list_product(examples, line, its)
    return False


@block.other_potentials.of(Arcs)
@njit
def other_arc_potentials(arcs, examples, model, i, scratch):
    _others(arcs.labels, arcs, examples, model, i, scratch)


@ByKind
def _others(labels, arcs, examples, model, i, scratch):
    """As :func:`block.other_potentials`."""


@_others.of(Bare)
@njit
def _other_bare_arcs(labels, arcs, examples, model, i, scratch):
    room, emission, length = scratch.room, scratch.emission, examples.length[i]
    weights = model.emission.reshape(model.emission.size)
    for g in range(num_groups(examples, i)):
        if room.weights[g] == np.inf:
            sum_features(labels, examples, weights, i, g, room.weights)
    line = examples.line[i]
    for t in range(length):
        row = emission[t]
        for h in range(length + 1):
            if row[h] == np.inf:
                sum_groups(labels, examples, line, room.weights, row, h)
            line += 1
        row[length + 1 :] = 0.0


@_others.of(Labels)
@njit
def _other_labels(labels, arcs, examples, model, i, scratch):
    arc_potentials(arcs, examples, model, i, scratch)  # few are known


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
def weight_of(examples, weights, i, g, labels, label):
    """The sum of a label's weights of a group; all weights are ``[F L]``."""
    begin, end = features_of(examples, i, g)
    total = weights.dtype.type(0)
    for p in range(begin, end):
        total += weights[examples.distinct[p] * labels + label]
    return total


@ByKind
def sum_features(labels, examples, weights, i, g, sums):
    """:func:`weight_of` for all labels, into ``sums[g L]`` and the places behind it."""


@sum_features.of(Bare)
@njit
def _sum_features_of_bare(labels, examples, weights, i, g, sums):
    sums[g] = weight_of(examples, weights, i, g, 1, 0)


@sum_features.of(Labels)
@njit
def _sum_features_of_labels(labels, examples, weights, i, g, sums):
    begin, end = features_of(examples, i, g)
    row, rows = (
        sums[g * labels.number : (g + 1) * labels.number],
        weights.reshape(weights.size // labels.number, labels.number),
    )
    for p in range(begin + _AHEAD, min(end + _AHEAD, examples.distinct_start[i + 1])):
        prefetch(rows[examples.distinct[p]])
    set_row(row, None, None, 0.0)
    add_rows(row, rows, examples.distinct, None, begin, end)


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


@ByKind
def sum_groups(labels, examples, line, weights, row, h):
    """The sums of ``weights``, as :func:`sum_features` makes them, over the groups of an arc from head h."""


@sum_groups.of(Bare)
@njit
def _sum_groups_of_bare(labels, examples, line, weights, row, h):
    row[h] = list_product(examples, line, weights)


@sum_groups.of(Labels)
@njit
def _sum_groups_of_labels(labels, examples, line, weights, row, h):
    begin, end, count = examples.row[line], examples.row[line + 1], labels.number
    scores = row[h * count : (h + 1) * count]
    set_row(scores, None, None, 0.0)
    rows = weights.reshape(weights.size // count, count)
    add_rows(scores, rows, examples.column, examples.form.values, begin, end)


@njit
def add_list(examples, line, amount, sums):
    """``sums += amount x`` for the groups of one arc."""
    for p in range(examples.row[line], examples.row[line + 1]):
        if len(examples.value):
            sums[examples.column[p]] += amount * examples.value[p]
        else:
            sums[examples.column[p]] += amount


@njit
def add_parts(examples, i, length, parts, labels, label, sums):
    """``sums = x^T parts`` of a label of sentence i: of a group, the number that each of its features gets."""
    sums[:] = 0.0
    line = examples.line[i]
    for t in range(length):
        row = parts[t]
        for h in range(length + 1):
            part = row[h * labels + label]
            if part != 0.0:
                add_list(examples, line, sums.dtype.type(part), sums)
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
    room, (longest, _) = scratch.room, scratch.prefixes.shape
    scores = scratch.prefixes.reshape(scratch.prefixes.size)[: longest * (longest + 1)].reshape(longest, longest + 1)
    zeros, start = room.sums[: count_of(arcs.labels)], examples.start[i]
    add_costs(arcs.labels, examples, start, length, scratch.emission, zeros, scores)
    if arcs.projective:
        best_projective(scores, length, arcs.single_root, room.charts, room.places, labels)
    else:
        best_nonprojective(scores, length, arcs.single_root, room.memory, room.places, labels)
    for t in range(length):
        labels[t] = first_label(arcs.labels, examples, start + t, labels[t], scratch.emission[t])
    return arc_loss(arcs, examples, i, labels)


@block.respond.of(Arcs)
@njit
def arc_respond(arcs, examples, model, i, length, labels, scratch, slots, count, corner, is_new):
    several = count_of(arcs.labels)
    for sign in (1, 0):  # the sums of few arcs, which are zero again
        for t in range(length):
            new, old = labels[t], examples.y[examples.start[i] + t]
            if new != old:
                add_counts(examples, i, t, new, several, sign, scratch.room.sums)
                add_counts(examples, i, t, old, several, -sign, scratch.room.sums)
        if sign:
            for t in range(length):
                scratch.response[t, : (length + 1) * several] = 0.0
            read_response(examples, i, length, several, scratch, slots, count, corner, is_new)
    return scratch.response, scratch.pairs


@njit
def read_response(examples, i, length, several, scratch, slots, count, corner, is_new):
    """Products with the sums where the scores of the target, of slots and of the corner are read."""
    for t in range(length):
        for c in range(-2 if is_new else -1, count):
            k = slots[c, t] if c >= 0 else examples.y[examples.start[i] + t] if c == -1 else corner[t]
            fill_response(examples, i, length, t, k, several, scratch)


@njit
def fill_response(examples, i, length, t, k, several, scratch):
    """The product with the sums at place k of a token's row, where that is zero: labelings share most arcs."""
    if scratch.response[t, k] == 0.0:
        line, groups = examples.line[i] + t * (length + 1) + k // several, num_groups(examples, i)
        scratch.response[t, k] = list_product(examples, line, scratch.room.sums[k % several * groups :])


@njit
def add_counts(examples, i, t, k, several, sign, sums):
    """``sums += sign x x^T`` at the groups of a token's part k, once for each of their features; sign 0 zeroes them."""
    first, line = k % several * num_groups(examples, i), examples.line[i] + t * (examples.length[i] + 1) + k // several
    for p in range(examples.row[line], examples.row[line + 1]):
        begin, end = features_of(examples, i, examples.column[p])
        number, place = sums.dtype.type(sign * (end - begin)), first + examples.column[p]
        if sign == 0:
            sums[place] = number
        elif len(examples.value):
            sums[place] += number * examples.value[p]
        else:
            sums[place] += number


@block.respond_to_parts.of(Arcs)
@njit
def arc_respond_to_parts(arcs, examples, model, i, length, psi, pairs, rows, scratch, slots, count, corner, is_new):
    response, room, several, groups = scratch.response, scratch.room, count_of(arcs.labels), num_groups(examples, i)
    known, total = list_labels(arcs.labels, length, psi, room), 0.0
    for k in range(known):
        sums = room.sums[room.labels[k] * groups : (room.labels[k] + 1) * groups]
        add_parts(examples, i, length, psi, several, room.labels[k], sums)
        count_features(examples, i, sums)
    for t in range(length):
        response[t] = 0.0
        for k in range((length + 1) * several):
            if psi[t, k] != 0.0:
                fill_response(examples, i, length, t, k, several, scratch)
        total += exact_dot(psi[t], response[t])
    read_response(examples, i, length, several, scratch, slots, count, corner, is_new)
    room.sums[: groups * several] = 0.0
    return total, pairs


@block.squared_length.of(Arcs)
@njit
def arc_length(arcs, examples, model, i, length, delta, pairs, rows, scratch):
    room, labels = scratch.room, count_of(arcs.labels)
    sums, total = room.sums[: num_groups(examples, i)], 0.0
    for k in range(list_labels(arcs.labels, length, delta, room)):
        add_parts(examples, i, length, delta, labels, room.labels[k], sums)
        for g in range(len(sums)):
            begin, end = features_of(examples, i, g)
            total += np.float64(sums[g]) * np.float64(sums[g]) * np.float64(end - begin)
    sums[:] = 0.0
    return total


@block.add_to_weights.of(Arcs)
@njit
def add_arcs_to_weights(arcs, examples, model, i, length, delta, pairs, rows, scratch, factor):
    room, labels, weights = scratch.room, count_of(arcs.labels), model.emission.reshape(model.emission.size)
    sums, factor = room.sums[: num_groups(examples, i)], delta.dtype.type(factor)
    for k in range(list_labels(arcs.labels, length, delta, room)):
        label = room.labels[k]
        add_parts(examples, i, length, delta, labels, label, sums)
        for g in range(len(sums)):
            if sums[g] != 0.0:
                amount = factor * sums[g]
                begin, end = features_of(examples, i, g)
                for p in range(begin, end):
                    weights[examples.distinct[p] * labels + label] += amount
    sums[:] = 0.0


class ArcsAdapter(VectorAdapter):
    """:class:`LinearArcs`: a token's label is its head, or ``head * L + label``; its emissions are scores of its arcs.

    K is the length of the longest sentence that :meth:`read` has seen, plus 1, times the number of labels of an arc.
    """

    emission, ragged_labels, notes, longest = "arcs", True, True, 0

    def __init__(self, head: Any, projective: bool) -> None:
        super().__init__(head)
        self.projective, self.labels = projective, self.weights.num_states

    @property
    @override
    def num_states(self) -> int:
        return (self.longest + 1) * self.labels

    @override
    def apply(self, batch: Batch) -> Potentials:
        """Scores of zero: packing needs their shape, and the checks of features."""
        with naming(batch.index):
            _, _, outside = self.head.check_arcs(batch.x, batch.lengths)
        scores = self.head.weight.detach().new_zeros(()).expand(*outside.shape, *self.head.weight.shape[1:])
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
        structure: Any = self.structure
        labels = Bare() if structure.num_labels is None else Labels(self.labels, structure.label_cost)
        kind = Arcs(self.projective, structure.among.single_root, labels)
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
        groups = max(int(np.diff(examples.group_start).max()) - 1, 1)
        return partial(make_arc_scratch, self.longest, groups, self.labels, examples.added.dtype)

    @override
    def part_shapes(self, lengths: Tensor) -> Shapes:
        return {self.emission: (lengths, (self.longest + 1, *self.head.weight.shape[1:]))}

    @override
    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        return 0, (lengths + 1) * self.labels - 1
