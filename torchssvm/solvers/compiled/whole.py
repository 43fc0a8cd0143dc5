"""Steps that solve a whole block, and exact passes over such blocks, compiled by Numba.

These are kernels of their own, which know neither labelings nor products of them, so that they compile in a few
seconds. Blocks are mean parts, and the kind has ``solve_block``.
"""

from __future__ import annotations

from torchssvm.core.jit import njit
from torchssvm.core.vectors import set_row
from torchssvm.kinds.block import add_to_weights, examine_block, potentials, solve_block
from torchssvm.solvers.compiled.exact import flush


@njit
def solve_blocks(order, points, tree, examples, model, blocks, scalars, options, scratch, counters):
    """Solve blocks one after another; those whose last gap is at most ``options.threshold`` are left out.

    Arguments are those of ``loop.visit_blocks``, without ``points``. Steps are ``options.relaxation`` times as
    long, as far as masses allow.
    """
    kind, rate = examples.kind, 1.0 / (options.lam * options.num_examples)
    delta, pairs, rows = scratch.delta, scratch.delta_pairs, scratch.rows
    for i in order:
        counters[3] += 1
        if scalars.gaps[i] <= options.threshold:
            continue
        length = potentials(kind, examples, model, i, scratch)
        start = blocks.rest_emission_start[i]
        psi = blocks.rest_emission[start : start + length]
        curvature = rate * examples.inner[examples.inner_start[i]]
        gap, value, square, loss = solve_block(kind, examples, i, length, psi, curvature / options.relaxation, scratch)
        counters[0] += 1
        scalars.gaps[i] = max(gap, 0.0) / options.num_examples
        scalars.oracle_gaps[i] = scalars.gaps[i]
        if value - 0.5 * curvature * square > 0.0:  # else rounding would lower the dual
            set_row(psi, scratch.into, None, None)
            scratch.step[0] += options.relaxation
            scratch.step[1] += rate * (curvature * square - 2.0 * (value - loss))
            scalars.loss[i] += loss / options.num_examples
            add_to_weights(kind, examples, model, i, length, delta, pairs, rows, scratch, -rate)


@njit
def exact_ranges(
    begin, end, ranges, examples, model, blocks, scalars, scratch, part, totals, every, hinges, losses, corners
):
    """One exact pass over some ranges; see ``exact.exact_ranges``."""
    kind, n = examples.kind, len(scalars.gaps)
    for place in range(begin, end):
        waiting = 0
        for i in range(ranges[place], ranges[place + 1]):
            length = potentials(kind, examples, model, i, scratch)
            start = blocks.rest_emission_start[i]
            psi = blocks.rest_emission[start : start + length]
            hinge, inner, told, size, absolute = examine_block(kind, examples, i, length, psi, scratch)
            hinges[0, i], losses[0, i], losses[1, i] = hinge, told, size
            scalars.gaps[i] = (hinge + inner) / n - scalars.loss[i]
            if absolute > 0.0:
                rows = scratch.rows
                add_to_weights(kind, examples, part, i, length, psi, scratch.delta_pairs, rows, scratch, 1.0)
                waiting += 1
            if waiting == every or i + 1 == ranges[place + 1]:
                flush(part, totals, place)
                waiting = 0
