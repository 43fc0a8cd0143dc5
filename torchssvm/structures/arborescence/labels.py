"""What the labels of arcs change in the compiled loop: costs, decoding, and which labels occur.

The class of the first argument, ``Bare`` or ``Labels``, selects the kernels. A token's label is ``head * L + label``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchssvm.compiler.jit import ByKind, njit
from torchssvm.compiler.vectors import largest_sum
from torchssvm.kinds.block import uniform_mean_loss


class Bare(NamedTuple):
    """Arcs without labels."""

    number: int


class Labels(NamedTuple):
    """Arcs with labels."""

    number: int  # L
    cost: float  # of a wrong label on a right arc, where a wrong arc costs 1


@ByKind
def count_of(labels):
    """L, a constant where arcs have no labels, so that nothing is multiplied or divided by it."""


@count_of.of(Bare)
@njit
def _count_of_bare(labels):
    return 1


@count_of.of(Labels)
@njit
def _count_of_labels(labels):
    return labels.number


@ByKind
def share_of(labels, label, target):
    """What a token's label costs, as a share of the cost of a wrong head."""


@share_of.of(Bare)
@njit
def _share_of_bare(labels, label, target):
    return 0.0 if label == target else 1.0


@share_of.of(Labels)
@njit
def _share_of_label(labels, label, target):
    if label == target:
        return 0.0
    return labels.cost if label // labels.number == target // labels.number else 1.0


@ByKind
def mean_label_loss(labels, examples, i, t, psi, total, absolute):
    """As :func:`block.mean_loss`."""


mean_label_loss.of(Bare)(uniform_mean_loss)


@mean_label_loss.of(Labels)
@njit
def _mean_loss_of_labels(labels, examples, i, t, psi, total, absolute):
    place, at_head, size_at_head = examples.start[i] + t, 0.0, 0.0
    target, cost = examples.y[place], examples.cost[place]
    first = target // labels.number * labels.number
    for k in range(first, first + labels.number):
        at_head += np.float64(psi[k])
        size_at_head += abs(np.float64(psi[k]))
    at_target = np.float64(psi[target])
    told = (at_head - total) + labels.cost * (at_target - at_head)
    return cost * told, cost * ((absolute - size_at_head) + labels.cost * (size_at_head - abs(at_target)))


@ByKind
def list_labels(labels, length, parts, room):
    """Write the labels that parts have to ``room.labels``, and return their number."""


@list_labels.of(Bare)
@njit
def _list_no_labels(labels, length, parts, room):
    return 1  # 0 is the only one


@list_labels.of(Labels)
@njit
def _list_labels(labels, length, parts, room):
    room.occurs[:] = False
    for t in range(length):
        row, place = parts[t], 0
        for _ in range(length + 1):
            for label in range(labels.number):
                room.occurs[label] |= row[place] != 0.0
                place += 1
    known = 0
    for label in range(labels.number):
        room.labels[known] = label
        known += room.occurs[label]
    return known


@ByKind
def add_costs(labels, examples, i, length, scratch, scores):
    """``scores[t, h]``: the score of an arc and its best label, with the costs of both."""


@add_costs.of(Bare)
@njit
def _add_costs_of_bare(labels, examples, i, length, scratch, scores):
    emission, start = scratch.emission, examples.start[i]
    for t in range(length):
        target, cost, row = examples.y[start + t], examples.added[start + t], scores[t]
        for h in range(length + 1):
            row[h] = emission[t, h] + cost
        row[target] = emission[t, target]


@add_costs.of(Labels)
@njit
def _add_costs_of_labels(labels, examples, i, length, scratch, scores):
    emission, start, count = scratch.emission, examples.start[i], labels.number
    zeros = scratch.room.sums[:count]
    for t in range(length):
        cost, row, true = examples.added[start + t], emission[t], examples.y[start + t] // count
        for h in range(length + 1):
            scores[t, h] = largest_sum(row[h * count : (h + 1) * count], zeros) + cost
        label = first_label(labels, examples, i, t, true, row)
        scores[t, true] = row[label] + cost_of(labels, examples, i, t, label)


@njit
def cost_of(labels, examples, i, t, label):
    """The cost of a token's label, in the dtype of the weights."""
    place = examples.start[i] + t
    return examples.added.dtype.type(share_of(labels, label, examples.y[place]) * examples.cost[place])


@njit
def first_label(labels, examples, i, t, h, row):
    """The token's label for head h with the first best score, its cost added."""
    best, first = h * labels.number, h * labels.number
    most = row[first] + cost_of(labels, examples, i, t, first)
    for label in range(first + 1, first + labels.number):
        value = row[label] + cost_of(labels, examples, i, t, label)
        if value > most:
            best, most = label, value
    return best


@ByKind
def add_labels(labels, examples, i, length, emission, heads):
    """Make the heads that were decoded the labels of tokens."""


@add_labels.of(Bare)
@njit
def _add_no_labels(labels, examples, i, length, emission, heads):
    pass


@add_labels.of(Labels)
@njit
def _add_best_labels(labels, examples, i, length, emission, heads):
    for t in range(length):
        heads[t] = first_label(labels, examples, i, t, heads[t], emission[t])
