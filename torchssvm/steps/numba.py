"""The rules of a step for one block, compiled by Numba; the torch loop and the compiled loop share them.

A block is a distribution over atoms (see ``torchssvm.steps.directions.Atoms``): ``mass``, ``hinge`` (-inf where there
is no atom) and ``gram``, its curvature; both may be multiplied by n. Only the last function, on a batch, is called from
Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.compiler.jit import njit

FRANK_WOLFE, PAIRWISE, AWAY, HYBRID, CORRECTIVE = range(5)
"""The directions of this package, by the attribute ``rule`` of each."""


@njit
def exact_step(slope, curvature):
    """The step in [0, 1] that maximises ``slope gamma - curvature gamma^2 / 2`` ([B13] section 4)."""
    if slope <= 0.0:
        return 0.0
    return 1.0 if slope >= curvature else slope / curvature


@njit
def relaxed_step(step, relaxation, atoms, mass, change):
    """``relaxation`` times an exact step, or as far as the masses allow, but not less than the exact step.

    The dual along the direction is a parabola, so it does not fall for a relaxation between 0 and 2.
    """
    longest = relaxation * step
    for c in range(atoms):
        if change[c] < 0.0 and longest * -change[c] > mass[c]:
            longest = mass[c] / -change[c]
    return max(step, longest)


LEAST_MASS = 1e-36
"""Mean parts of less mass would stay at the smallest float32 while the mass shrinks, and their ratio would explode."""


@njit
def left_of(mass, change):
    """The mass after a change; exactly 0 where only rounding is left."""
    left = mass + change
    return left if left > max(1e-14 * mass, LEAST_MASS) else 0.0


@njit
def cache_serves(gap, oracle_gap, factor, floor):
    """Whether a cached corner with this block gap is used ([G16] Algorithm 5); see ``CacheOracle``."""
    return gap > 0.0 and gap >= factor * oracle_gap and gap >= floor


@njit
def choose(rule, atoms, corner, mass, hinge, gram, scale, steps, tolerance, change, work):
    """The change of the masses for a step of 1, written to ``change``.

    Args:
        rule: ``FRANK_WOLFE`` to ``CORRECTIVE``, the attribute of the direction.
        atoms: M.
        corner: The corner's atom.
        mass, hinge, gram: The block; ``gram`` is read by hybrid and corrective.
        scale: The factor by which ``gram`` is larger than the curvature of ``hinge``.
        steps, tolerance: Of the corrective direction.
        change, work: ``[M]``; the second is room for rates.
    """
    away: Any = np.int64(-1)  # Numba would compile callees again for a literal -1
    mean = 0.0
    for c in range(atoms):
        if mass[c] > 0.0:
            mean += mass[c] * hinge[c]
            if away < 0 or hinge[c] < hinge[away]:
                away = c
    if rule == CORRECTIVE:
        climb(atoms, mass, hinge, gram, scale, steps, tolerance, change, work)
        return
    if rule == HYBRID:
        rule = best_of_three(atoms, corner, away, mass, hinge, gram, scale, change)
    elif rule == AWAY and (others(atoms, away, mass) <= 0.0 or hinge[corner] - mean >= mean - hinge[away]):
        rule = FRANK_WOLFE
    classical(rule, atoms, corner, away, mass, change)


@njit
def others(atoms, away, mass):
    """The mass of all atoms but ``away``; more accurate than 1 - mass[away] where little is left."""
    total = 0.0
    for c in range(atoms):
        if c != away:
            total += mass[c]
    return total


@njit
def classical(rule, atoms, corner, away, mass, change):
    """Pairwise ([G16] Algorithm 3), away (Algorithm 4) or Frank-Wolfe ([B13] Algorithm 4)."""
    if rule == PAIRWISE:
        for c in range(atoms):
            change[c] = 0.0
        change[corner] += mass[away]
        change[away] -= mass[away]
    elif rule == AWAY:
        factor = mass[away] / others(atoms, away, mass)
        for c in range(atoms):
            change[c] = factor * mass[c]
        change[away] = -mass[away]
    else:
        for c in range(atoms):
            change[c] = -mass[c]
        change[corner] += 1.0


@njit
def best_of_three(atoms, corner, away, mass, hinge, gram, scale, change):
    """The classical direction whose exact step raises the dual most."""
    best, largest = FRANK_WOLFE, -1.0
    for rule in (FRANK_WOLFE, PAIRWISE, AWAY):
        if rule == AWAY and others(atoms, away, mass) <= 0.0:
            continue
        classical(rule, atoms, corner, away, mass, change)
        slope, curvature = 0.0, 0.0
        for c in range(atoms):
            if change[c] != 0.0:
                slope += scale * change[c] * hinge[c]
                for e in range(atoms):
                    curvature += change[c] * gram[c, e] * change[e]
        step = exact_step(slope, curvature)
        gain = step * (slope - step * curvature / 2.0)
        if gain > largest:
            best, largest = rule, gain
    return best


@njit
def climb(atoms, mass, hinge, gram, scale, steps, tolerance, change, rates):
    """Exact pairwise steps between the atoms; ``rates`` stay the derivatives of the dual, times ``scale``."""
    for c in range(atoms):
        rates[c] = scale * hinge[c]
        change[c] = mass[c]
    first = -1.0
    for _ in range(steps):
        best, worst, high, low = 0, 0, rates[0], np.inf
        for c in range(atoms):
            rate = rates[c]
            active = rate if change[c] > 0.0 else np.inf
            best, high = (c, rate) if rate > high else (best, high)
            worst, low = (c, active) if active < low else (worst, low)
        slope = high - low
        if first < 0.0:
            first = slope
        if slope <= tolerance * first:
            break
        curvature = gram[best, best] + gram[worst, worst] - 2.0 * gram[best, worst]
        move = change[worst]
        if curvature > 0.0 and slope < curvature * move:
            move = slope / curvature
            change[worst] -= move
        else:
            change[worst] = 0.0
        change[best] += move
        to, of = gram[best], gram[worst]
        for c in range(atoms):
            rates[c] += move * (of[c] - to[c])
    for c in range(atoms):
        change[c] -= mass[c]


@njit
def choose_each(rule, corner, mass, hinge, gram, steps, tolerance, change, work):
    """:func:`choose` for every block of a batch, ``[B, M]``."""
    for b in range(len(corner)):
        atoms = mass.shape[1]
        choose(rule, atoms, corner[b], mass[b], hinge[b], gram[b], 1.0, steps, tolerance, change[b], work)
