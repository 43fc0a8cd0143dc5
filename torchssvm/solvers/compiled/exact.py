"""One exact pass over ranges of examples, compiled by Numba."""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.core.vectors import add_row, exact_dots, exact_sums, set_row
from torchssvm.kinds.block import (
    add_to_weights,
    decode,
    length_of,
    list_rows,
    loss_of,
    mean_loss,
    pairs_of,
    potentials,
    score,
    size_of,
)
from torchssvm.solvers.compiled.atoms import fill_direction, find_slot, insert, rest_views


@njit
def exact_ranges(
    begin, end, ranges, examples, model, blocks, scalars, scratch, part, totals, every, hinges, losses, corners
):
    """Decode the examples of ranges ``begin`` to ``end - 1`` at the weights of ``model``; no block is touched.

    Args:
        ranges: Where each range of examples begins, and the end of the last one.
        examples, model, blocks, scalars, scratch: See :mod:`.state`; ``scalars.gaps`` gets the gaps.
        part: Scratch for the weights of a few examples, zero before and after; in the dtype of the weights.
        totals: A first axis of ranges; gets the weights of each added, in float64, without the factor 1/(lam n).
        every: Number of examples after which ``part`` is added to ``totals``.
        hinges: ``[2, n]`` float64, gets upper bounds of H_i, and how far they are above the labelings found.
        losses: ``[2, n]`` float64, gets the blocks' losses; see ``certificate.ExactPass``.
        corners: ``[tokens]``, gets the outputs; may be empty.
    """
    for place in range(begin, end):
        waiting = 0
        for i in range(ranges[place], ranges[place + 1]):
            waiting += examine(i, examples, model, blocks, scalars, scratch, part, hinges, losses, corners)
            if waiting == every or i + 1 == ranges[place + 1]:
                flush(part, totals, place)
                waiting = 0


@njit
def examine(i, examples, model, blocks, scalars, scratch, part, hinges, losses, corners):
    """Decode one example and add its weights to ``part``; returns whether it has any."""
    n, squares, sums = len(blocks.count), scratch.squares, scratch.sums
    kind, start, found = examples.kind, examples.start[i], scratch.corner
    length = potentials(kind, examples, model, i, scratch)
    emission, transition = scratch.emission, pairs_of(kind, model.transition, scratch.transition)
    scratch.slack[0] = 0.0
    loss = decode(kind, examples, i, length, scratch, transition, found)
    base = score(kind, examples, i, examples.y[start : start + size_of(examples, i)], length, emission, transition)
    hinge = score(kind, examples, i, found, length, emission, transition) - base + loss
    hinge = 0.0 if hinge < 0.0 else hinge  # the target's is 0; NaN stays
    hinges[0, i], hinges[1, i] = hinge + scratch.slack[0], scratch.slack[0]
    for t in range(size_of(examples, i) if len(corners) else 0):
        corners[start + t] = found[t]
    inner = 0.0
    some, slots = masses_of(i, blocks)
    if some or slots:
        if slots:
            rows = scratch.rows[: psi_of(i, length, examples, blocks, some, scratch)]
            psi, psi_pairs = scratch.delta, scratch.delta_pairs
        else:
            psi, psi_pairs, used = rest_views(examples, blocks, i, length)
            rows = scratch.rows[: list_rows(used, scratch.rows)]
        told, size = 0.0, 0.0
        exact_sums(psi, emission, length, sums)
        for t in range(length):
            squares[t] = sums[t, 2]
            mean, terms = mean_loss(kind, examples, i, t, psi[t], sums[t, 1], sums[t, 2])
            inner, told, size = inner + sums[t, 0], told + mean, size + terms
        losses[0, i], losses[1, i] = told, size
        inner += exact_dots(psi_pairs, transition, rows, len(rows))
        add_to_weights(kind, examples, part, i, length, psi, psi_pairs, rows, scratch, 1.0)
    scalars.gaps[i] = (hinge + inner) / n - scalars.loss[i]  # of the labeling: a step cannot close what a bound leaves
    return some or slots


@njit
def remember_range(begin, end, examples, blocks, options, scratch, counters, corners):
    """Keep the outputs ``corners`` of examples ``begin`` to ``end - 1``, in free slots and in slots without mass.

    ``options`` are those of a Frank-Wolfe step, so that inner products are left to the visits; every example sees the
    initial clock of ``counters``, ``[3]`` int64. Returns how many labelings were kept.
    """
    clock, kept = counters[2], 0
    for i in range(begin, end):
        start, size = examples.start[i], size_of(examples, i)
        length = length_of(examples.kind, examples, i)
        found = scratch.corner
        for t in range(size):
            found[t] = corners[start + t]
        if find_slot(i, blocks.count[i], size, blocks.labelings, found) < 0:
            counters[2] = clock
            loss = loss_of(examples.kind, examples, i, found)
            insert(i, 0.0, loss, np.int64(0), length, examples, blocks, options, scratch, counters)
            kept += counters[2] > clock
    counters[2] = clock
    return kept


@njit
def masses_of(i, blocks):
    """Whether the rest of block i has mass, and whether a slot has."""
    slots = False
    for c in range(blocks.count[i]):
        slots |= blocks.mass[i, c] > 0.0
    return blocks.mixed[i] and blocks.rest_mass[i] > 0.0, slots


@njit
def psi_of(i, length, examples, blocks, rest, scratch):
    """Write ``p(y_i) - mu_i`` of block i, with its ``rest`` or without, as a direction; see ``fill_direction``."""
    count, change = blocks.count[i], scratch.change
    scratch.mass[0], change[0] = 1.0, -1.0 if rest else 0.0
    for c in range(count):
        change[c + 1] = -blocks.mass[i, c]
    return fill_direction(i, count, length, np.bool_(False), examples, blocks, scratch)


@njit
def flush(part, totals, place):
    """Move ``part`` to the range ``place`` of ``totals``."""
    for rows, sums in ((part.emission, totals.emission), (part.transition, totals.transition)):
        add_row(sums[place], rows, None)
        set_row(rows, None, None, 0.0)
    for row, held in ((part.bias, totals.bias), (part.first, totals.first), (part.last, totals.last)):
        add_row(held[place], row, None)
        set_row(row, None, None, 0.0)
