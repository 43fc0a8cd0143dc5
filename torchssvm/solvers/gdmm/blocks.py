"""One block minimised over its active set, compiled by Numba.

A block is a distribution over configurations. The augmented Lagrangian is the quadratic ``<g, d> + 1/2 d^T H d`` in the
block's change d; the rules differ in how they minimise it.
"""

from __future__ import annotations

from torchssvm.core.jit import njit

PROJECT, AWAY = 0, 1
_NOTHING = 1e-15  # mass below this is rounding: moving it would be an empty step


@njit
def project(point, size, order, out):
    """Project ``point[:size]`` on the simplex, into ``out``; O(size^2), as few configurations are active."""
    for i in range(size):
        p = i
        while p > 0 and point[order[p - 1]] < point[i]:
            order[p] = order[p - 1]
            p -= 1
        order[p] = i
    highest = point[order[0]]  # differences to the highest are exact, however large it is
    total, shift = 0.0, 0.0
    for i in range(size):
        rest = point[order[i]] - highest
        total += rest
        trial = (total - 1.0) / (i + 1)
        if rest - trial > 0.0:
            shift = trial
    for i in range(size):
        rest = point[i] - highest - shift
        out[i] = rest if rest > 0.0 else 0.0


@njit
def away_direction(mass, gradient, size, out):
    """Away-step Frank-Wolfe ([Y16] Algorithm 2) in one block, whose active set has ``mass`` and ``gradient``,
    ``[size]``.

    ``out`` gets the direction ``v - pi``, or ``pi - v'`` for the corner v' that should lose mass.

    Returns:
        ``-<gradient, out>`` and the largest step that stays in the simplex.
    """
    towards, away, mean = -1, -1, 0.0
    for i in range(size):
        mean += mass[i] * gradient[i]
        if towards < 0 or gradient[i] < gradient[towards]:
            towards = i
        if mass[i] > _NOTHING and (away < 0 or gradient[i] > gradient[away]):
            away = i
    forward, backward = mean - gradient[towards], gradient[away] - mean
    if forward >= backward or mass[away] >= 1.0:
        for i in range(size):
            out[i] = -mass[i]
        out[towards] += 1.0
        return forward, 1.0
    for i in range(size):
        out[i] = mass[i]
    out[away] -= 1.0
    return backward, mass[away] / (1.0 - mass[away])


@njit
def exact_step(slope, curvature, largest):
    """The minimum of ``-slope step + 1/2 curvature step^2`` on ``[0, largest]``; a slope below zero is rounding."""
    if slope <= 0.0:
        return 0.0
    return largest if curvature * largest <= slope else slope / curvature
