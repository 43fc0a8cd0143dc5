"""Steps that solve a whole block, and exact passes over such blocks, compiled by Numba.

These kernels know neither labelings nor their products, so they compile in a few seconds. Blocks are mean parts, and
the kind has ``solve_block``.
"""

from __future__ import annotations

import numpy as np

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import add_row, set_row
from torchssvm.kinds.block import add_to_weights, examine_block, potentials, solve_block

SHARE = 0.03
"""Rounds of some blocks leave out those whose gaps are below this share of the mean gap after the last round of all."""

FALL = 0.3
"""All blocks are visited again when the gap has fallen to this share of the gap after the last round of all."""


@njit
def solve_blocks(order, points, tree, examples, model, blocks, scalars, options, scratch, counters):
    """Solve blocks one after another, in a round of all or of some of them; returns the next ``options.gap``.

    Arguments are as for ``loop.visit_blocks``, but each of the ``points`` shuffles ``order`` for another round, of
    some blocks, unless the gap has fallen far enough, or ``options.most`` oracle calls are made. In such rounds steps
    are ``options.relaxation`` times as long, as far as masses allow.
    """
    kind, rate, gap = examples.kind, 1.0 / (options.lam * options.num_examples), options.gap
    delta, pairs, rows = scratch.delta, scratch.delta_pairs, scratch.rows
    for turn in range(len(points) + 1):
        if turn:
            shuffle(order, points[turn - 1])
        least, relaxation = -np.inf, 1.0
        if gap < np.inf:
            least, relaxation = SHARE * gap / len(scalars.gaps), options.relaxation
        counters[3] += len(order)
        for i in order:
            if scalars.gaps[i] <= least:
                continue
            length = examples.length[i]
            potentials(kind, examples, model, i, scratch)
            start = blocks.rest_emission_start[i]
            psi = blocks.rest_emission[start : start + length]
            weight = examples.weight[i]  # hinges and losses are multiplied by it, and the curvature by its square
            curvature = rate * weight * examples.inner[examples.inner_start[i]]
            slope, value, square, loss = solve_block(kind, examples, i, length, psi, curvature / relaxation, scratch)
            counters[0] += 1
            scalars.gaps[i] = weight * max(slope, 0.0) / options.num_examples
            scalars.oracle_gaps[i] = scalars.gaps[i]
            if value - 0.5 * curvature * square > 0.0:  # else rounding would lower the dual
                set_row(psi, scratch.into, None, None)
                scratch.step[0] += relaxation
                scratch.step[1] += rate * weight * (curvature * square - 2.0 * (value - loss))
                scalars.loss[i] += weight * loss / options.num_examples
                add_to_weights(kind, examples, model, i, length, delta, pairs, rows, scratch, -rate * weight)
        total = scalars.gaps.sum()
        gap = max(gap, total) if gap < np.inf else total
        if total <= FALL * gap:
            return np.inf
        if counters[0] >= options.most:
            break
    return gap


@njit
def shuffle(order, point):
    """Put the examples in random order, by a random point in [0, 1): xorshift of Marsaglia (2003)."""
    state = np.uint64(point * 2.0**53) * np.uint64(2) + np.uint64(1)
    for k in range(len(order) - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        other = np.int64(((state >> np.uint64(32)) * np.uint64(k + 1)) >> np.uint64(32))
        order[k], order[other] = order[other], order[k]


@njit
def exact_ranges(
    begin, end, ranges, examples, model, blocks, scalars, scratch, part, totals, every, hinges, losses, corners
):
    """One exact pass over some ranges; see ``exact_pass.exact_ranges``."""
    kind, n = examples.kind, len(scalars.gaps)
    for place in range(begin, end):
        waiting = 0
        for i in range(ranges[place], ranges[place + 1]):
            length = examples.length[i]
            potentials(kind, examples, model, i, scratch)
            start = blocks.rest_emission_start[i]
            psi = blocks.rest_emission[start : start + length]
            hinge, inner, told, size, absolute = examine_block(kind, examples, i, length, psi, scratch)
            weight = examples.weight[i]
            hinges[0, i], losses[0, i], losses[1, i] = weight * hinge, weight * told, weight * size
            scalars.gaps[i] = weight * (hinge + inner) / n - scalars.loss[i]
            if absolute > 0.0:
                rows = scratch.rows
                add_to_weights(kind, examples, part, i, length, psi, scratch.delta_pairs, rows, scratch, weight)
                waiting += 1
            if waiting == every or i + 1 == ranges[place + 1]:
                flush(part, totals, place)
                waiting = 0


@njit
def flush(part, totals, place):
    """Move ``part`` to the range ``place`` of ``totals``."""
    for rows, sums in ((part.emission, totals.emission), (part.transition, totals.transition)):
        add_row(sums[place], rows, None)
        set_row(rows, None, None, 0.0)
    for row, row_sums in ((part.bias, totals.bias), (part.first, totals.first), (part.last, totals.last)):
        add_row(row_sums[place], row, None)
        set_row(row, None, None, 0.0)
