"""How a block of GDMM moves: the augmented Lagrangian's minimum over the active set of one factor or variable.

A block is a distribution over configurations. Times n, the augmented Lagrangian is ``<g, d> + 1/2 d^T H d`` in the
change d of a block. ``FullyCorrective`` and ``BlockGreedy`` project on the simplex ([Y16] eq. 25), and ``AwayStep``
takes a step along one direction ([Y16] Algorithm 2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit

PROJECT, AWAY = 0, 1
_NOTHING = 1e-15  # mass below this is rounding: moving it would be an empty step


class Options(NamedTuple):
    """The parameters of a pass."""

    scale: float  # lam n
    rho: float  # penalty of the augmented Lagrangian, times n
    rule: int  # PROJECT or AWAY
    greedy: bool  # whether a visit moves the steepest block, once for each block, instead of each block once


class Block(NamedTuple):
    """The active set of the block that moves, with room for [A] configurations."""

    mass: Any  # [A]
    gradient: Any  # [A], g
    point: Any  # [A]
    new: Any  # [A], the mass after the move
    order: Any  # [A] int64


def make_block(size: int) -> Block:
    """Room for ``size`` configurations."""
    mass, gradient, point, new = np.zeros((4, size))
    return Block(mass, gradient, point, new, np.zeros(size, np.int64))


@njit
def minimise_model(block, size, curvature):
    """Write the minimum of ``<g, d> + 1/2 curvature |d|^2`` to ``block.new`` ([Y16] eq. 25); returns the decrease."""
    for c in range(size):
        block.point[c] = block.mass[c] - block.gradient[c] / curvature
    project(block.point, size, block.order, block.new)
    gain = 0.0
    for c in range(size):
        change = block.new[c] - block.mass[c]
        gain -= change * (block.gradient[c] + 0.5 * curvature * change)
    return gain


@njit
def minimise_along(block, size, slope, curvature, largest, is_whole):
    """Search exactly along ``block.point``; writes ``block.new`` and returns the decrease.

    Where the masses ``is_whole`` of all configurations are kept, renormalises: away steps would drift from sum 1.
    """
    step = exact_step(slope, curvature, largest)
    least, total = 1e-16 if is_whole else 0.0, 0.0
    for c in range(size):
        moved = block.mass[c] + step * block.point[c]
        block.new[c] = moved if moved > least else 0.0
        total += block.new[c]
    for c in range(size if is_whole and step > 0.0 else 0):
        block.new[c] /= total
    return step * (slope - 0.5 * step * curvature)


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
    """Away-step Frank-Wolfe ([Y16] Algorithm 2) in a block, whose active set has ``mass`` and ``gradient``, ``[size]``.

    ``out`` gets the direction ``v - pi``, or ``pi - v'`` for the corner v' that should lose mass. Returns ``-<gradient,
    out>`` and the largest step that stays in the simplex.
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
