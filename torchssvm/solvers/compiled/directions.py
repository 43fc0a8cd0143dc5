"""The directions of ``torchssvm.steps`` for one block, compiled by Numba: same choices, same formulas."""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit

FRANK_WOLFE, PAIRWISE, AWAY, HYBRID, CORRECTIVE = range(5)


@njit
def choose(rule, atoms, corner, mass, hinge, gram, steps, tolerance, change, work):
    """The change of the masses for a step of 1, written to ``change``.

    ``hinge`` is -inf where there is no atom; ``gram`` is the curvature times n, and is read by hybrid and corrective.
    """
    away, mean = -1, 0.0
    for c in range(atoms):
        if mass[c] > 0.0:
            mean += mass[c] * hinge[c]
            if away < 0 or hinge[c] < hinge[away]:
                away = c
    if rule == CORRECTIVE:
        _climb(atoms, mass, hinge, gram, steps, tolerance, change, work)
        return
    if rule == HYBRID:
        rule = _best(atoms, corner, away, mass, hinge, gram, change)
    elif rule == AWAY and (not _others(atoms, away, mass) or hinge[corner] - mean >= mean - hinge[away]):
        rule = FRANK_WOLFE
    _classical(rule, atoms, corner, away, mass, change)


@njit
def _others(atoms, away, mass):
    total = 0.0
    for c in range(atoms):
        if c != away:
            total += mass[c]
    return total > 0.0


@njit
def _classical(rule, atoms, corner, away, mass, change):
    if rule == PAIRWISE:
        for c in range(atoms):
            change[c] = 0.0
        change[corner] += mass[away]
        change[away] -= mass[away]
    elif rule == AWAY:
        others = 0.0
        for c in range(atoms):
            if c != away:
                others += mass[c]
        factor = mass[away] / others
        for c in range(atoms):
            change[c] = factor * mass[c]
        change[away] = -mass[away]
    else:
        for c in range(atoms):
            change[c] = -mass[c]
        change[corner] += 1.0


@njit
def _best(atoms, corner, away, mass, hinge, gram, change):
    best, largest = FRANK_WOLFE, -1.0
    for rule in (FRANK_WOLFE, PAIRWISE, AWAY):
        if rule == AWAY and not _others(atoms, away, mass):
            continue
        _classical(rule, atoms, corner, away, mass, change)
        slope, bend = 0.0, 0.0
        for c in range(atoms):
            if change[c] != 0.0:
                slope += change[c] * hinge[c]
                for e in range(atoms):
                    bend += change[c] * gram[c, e] * change[e]
        step = 1.0 if bend <= slope or bend <= 0.0 else max(slope / bend, 0.0)
        gain = step * (slope - step * bend / 2.0)
        if gain > largest:
            best, largest = rule, gain
    return best


@njit
def _climb(atoms, mass, hinge, gram, steps, tolerance, change, rates):
    for c in range(atoms):
        rates[c] = hinge[c]
        change[c] = mass[c]
    first = -1.0
    for _ in range(steps):
        best, worst = 0, -1
        for c in range(atoms):
            if rates[c] > rates[best]:
                best = c
            if change[c] > 0.0 and (worst < 0 or rates[c] < rates[worst]):
                worst = c
        slope = rates[best] - rates[worst]
        if first < 0.0:
            first = slope
        if slope <= tolerance * first:
            break
        bend = gram[best, best] + gram[worst, worst] - 2.0 * gram[best, worst]
        move = change[worst]
        if bend > 0.0 and slope < bend * move:
            move = slope / bend
            change[worst] -= move
        else:
            change[worst] = 0.0
        change[best] += move
        for c in range(atoms):
            if rates[c] > -np.inf:
                rates[c] += move * (gram[worst, c] - gram[best, c])
    for c in range(atoms):
        change[c] -= mass[c]
