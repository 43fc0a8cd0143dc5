"""What the labels of arcs change in the compiled loop: costs, decoding, and which labels occur.

A token's label is ``head * L + label``, and just the head where arcs have no labels.
"""

from __future__ import annotations

from typing import NamedTuple

from torchssvm.compiler.jit import ByKind, njit
from torchssvm.compiler.vectors import largest_sum


class Bare(NamedTuple):
    """Arcs without labels: L is 1, and nothing is read."""

    number: int = 1
    cost: float = 0.0


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


@njit
def share_of(labels, label, target):
    """What a token's label costs, as a share of the cost of a wrong head."""
    if label == target:
        return 0.0
    return labels.cost if label // count_of(labels) == target // count_of(labels) else 1.0


@njit
def cost_of(labels, examples, place, label):
    """The cost of a token's label, in the dtype of the weights."""
    return examples.added.dtype.type(share_of(labels, label, examples.y[place]) * examples.cost[place])


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
def best_of(labels, row, h, zeros):
    """The best score of an arc from head h; ``zeros`` are L."""


@best_of.of(Bare)
@njit
def _best_of_bare(labels, row, h, zeros):
    return row[h]


@best_of.of(Labels)
@njit
def _best_of_labels(labels, row, h, zeros):
    return largest_sum(row[h * labels.number : (h + 1) * labels.number], zeros)


@njit
def add_costs(labels, examples, start, length, emission, zeros, scores):
    """``scores[t, h]``: the score of an arc and its best label, with the costs of both."""
    for t in range(length):
        cost, row, true = examples.added[start + t], emission[t], examples.y[start + t] // count_of(labels)
        for h in range(length + 1):
            scores[t, h] = best_of(labels, row, h, zeros) + cost
        label = first_label(labels, examples, start + t, true, row)
        scores[t, true] = row[label] + cost_of(labels, examples, start + t, label)


@njit
def first_label(labels, examples, place, h, row):
    """The token's label for head h with the first best score, its cost added."""
    best = first = h * count_of(labels)
    most = row[first] + cost_of(labels, examples, place, first)
    for label in range(first + 1, first + count_of(labels)):
        value = row[label] + cost_of(labels, examples, place, label)
        if value > most:
            best, most = label, value
    return best
