"""One exact pass over a range of examples, compiled by Numba."""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.core.vectors import add_row, exact_dot, exact_sums, set_row
from torchssvm.solvers.compiled.atoms import find_slot, insert, rest_views
from torchssvm.solvers.compiled.block import (
    add_labeling,
    add_to_weights,
    decode,
    loss_of,
    potentials,
    score,
)


@njit
def exact_range(begin, end, examples, model, blocks, scalars, scratch, part, total, every, hinges, losses, corners):
    """Decode examples ``begin`` to ``end - 1`` at the weights of ``model``; no block is touched.

    Args:
        begin, end: Which examples.
        examples, model, blocks, scalars, scratch: See :mod:`.state`; ``scalars.gaps`` gets the gaps.
        part: Scratch for the weights of a few examples, zero before and after; in the dtype of the weights.
        total: Gets the weights of the range added, in float64, without the factor 1/(lam n).
        every: Number of examples after which ``part`` is added to ``total``.
        hinges: ``[n]`` float64, gets H_i.
        losses: ``[2, n]`` float64, gets the blocks' losses; see ``certificate.ExactPass``.
        corners: ``[tokens]``, gets the outputs; may be empty.
    """
    n = len(blocks.count)
    delta, pairs, squares = scratch.delta, scratch.delta_pairs, scratch.squares
    waiting = 0
    for i in range(begin, end):
        length = potentials(examples, examples.arcs, model, i, scratch.emission, scratch.arcs)
        emission, transition = scratch.emission, model.transition
        start = examples.start[i]
        found = scratch.corner
        loss = decode(examples, examples.arcs, i, length, scratch, transition, found)
        base = score(examples.y[start : start + length], length, emission, transition)
        hinges[i] = score(found, length, emission, transition) - base + loss
        inner = 0.0
        some, slots = masses_of(i, blocks)
        if some or slots:
            if slots:
                psi_of(i, length, examples, blocks, some, delta, pairs)
                psi, psi_pairs = delta, pairs
            else:
                psi, psi_pairs = rest_views(blocks, i, length)
            told, size = 0.0, 0.0
            for t in range(length):
                along, sum_of_row, squares[t] = exact_sums(psi[t], emission[t])
                mean, terms = mean_loss(examples, start + t, psi[t], sum_of_row, squares[t])
                inner, told, size = inner + along, told + mean, size + terms
            losses[0, i], losses[1, i] = told, size
            inner += exact_dot(psi_pairs, transition)
            add_to_weights(examples, examples.arcs, part, i, length, psi, psi_pairs, squares, 1.0)
            waiting += 1
        scalars.gaps[i] = (hinges[i] + inner) / n - scalars.loss[i]
        if waiting == every or i + 1 == end:
            flush(part, total)
            waiting = 0
        if len(corners):
            for t in range(length):
                corners[start + t] = found[t]


@njit
def remember_range(begin, end, examples, blocks, options, scratch, counters, corners):
    """Keep the outputs found for examples ``begin`` to ``end - 1``, in free slots and in slots without mass.

    Args:
        begin, end: Which examples.
        examples, blocks, scratch: See ``torchssvm.solvers.compiled.state``.
        options: Options of a Frank-Wolfe step, so that inner products are left to the visits.
        counters: ``[3]`` int64; the last one is the clock, whose initial value every example sees.
        corners: ``[tokens]``, the outputs.

    Returns:
        How many labelings were kept.
    """
    clock, kept = counters[2], 0
    for i in range(begin, end):
        start = examples.start[i]
        length = examples.start[i + 1] - start
        found = scratch.corner
        for t in range(length):
            found[t] = corners[start + t]
        if find_slot(i, blocks.count[i], length, blocks.labelings, found) < 0:
            counters[2] = clock
            loss = loss_of(examples, start, length, found)
            insert(i, 0.0, loss, 0, length, examples, blocks, options, scratch, counters)
            kept += counters[2] > clock
    counters[2] = clock
    return kept


@njit
def mean_loss(examples, token, psi, total, absolute):
    """``-<psi, delta>``, the mean loss of a token, and the sum of the absolute values of its terms.

    Args:
        examples, token: Which token.
        psi: Its row; ``total`` and ``absolute`` are the sums of its numbers and of their absolute values.
    """
    target, cost = examples.y[token], examples.cost[token]
    if not len(examples.cost_matrix):
        own = np.float64(psi[target])
        return cost * (own - total), cost * (absolute - abs(own))
    told, size = 0.0, 0.0
    for k in range(examples.cost_matrix.shape[1]):
        term = cost * examples.cost_matrix[target, k] * np.float64(psi[k])
        told -= term
        size += abs(term)
    return told, size


@njit
def masses_of(i, blocks):
    """Whether the rest of block i has mass, and whether a slot has."""
    slots = False
    for c in range(blocks.count[i]):
        slots |= blocks.mass[i, c] > 0.0
    return blocks.mixed[i] and blocks.rest_mass[i] > 0.0, slots


@njit
def psi_of(i, length, examples, blocks, rest, delta, pairs):
    """Write ``p(y_i) - mu_i`` of block i, with its ``rest`` or without."""
    if rest:
        psi, psi_pairs = rest_views(blocks, i, length)
        for t in range(length):
            set_row(delta[t], psi[t], None, None)
        set_row(pairs, psi_pairs, None, None)
    else:
        set_row(delta[:length], None, None, 0.0)
        set_row(pairs, None, None, 0.0)
    for c in range(blocks.count[i]):
        if blocks.mass[i, c] > 0.0:
            add_labeling(examples, i, length, blocks.labelings[i, c], -blocks.mass[i, c], delta, pairs)


@njit
def flush(part, total):
    """Move ``part`` to ``total``."""
    for rows, sums in ((part.emission, total.emission), (part.transition, total.transition)):
        add_row(sums, rows, None)
        set_row(rows, None, None, 0.0)
    for row, held in ((part.bias, total.bias), (part.first, total.first), (part.last, total.last)):
        add_row(held, row, None)
        set_row(row, None, None, 0.0)
