"""Distributions of neighbouring labels that agree with those of single labels.

On a chain, pair distributions with common marginals are the marginals of a distribution over labelings, so the result
is a feasible dual point of the structural SVM.
"""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.solvers.gdmm.chain_state import Duals
from torchssvm.solvers.gdmm.ragged import Ragged, offsets


def round_chains(duals: Duals, num_states: int) -> Ragged:
    """Pairs with their mass for every factor; marginals are those of ``duals.variables``.

    Rows and columns with too much mass are scaled down, and the missing mass is added as a product (Altschuler, Weed,
    Rigollet 2017, Algorithm 2). This moves at most twice the total variation between the marginals.
    """
    variables, factors, _ = duals
    room = np.where(factors.size > 0, factors.size + variables.size * np.append(variables.size[1:], 0), 0)
    start = offsets(room)
    total, widest = int(start[-1]), int(variables.size.max())
    rounded = Ragged(start, np.zeros(len(room), np.int64), np.zeros(total, np.int64), np.zeros(total), np.zeros(0))
    _round(variables, factors, num_states, np.zeros((2, widest)), np.zeros((2, widest)), rounded)
    return rounded


@njit
def _round(variables, factors, states, sums, scale, rounded):
    for t in range(len(factors.size)):
        if factors.size[t] == 0:
            continue
        begin, size = rounded.start[t], 0
        for p in range(factors.start[t], factors.start[t] + factors.size[t]):
            key = factors.key[p]
            if _place(variables, t, key // states) >= 0 and _place(variables, t + 1, key % states) >= 0:
                rounded.key[begin + size], rounded.x[begin + size] = key, factors.x[p]
                size += 1
        for s in range(2):
            _sum_side(variables, t + s, s, states, rounded, begin, size, sums[s])
            for c in range(variables.size[t + s]):
                own, wanted = sums[s, c], variables.x[variables.start[t + s] + c]
                scale[s, c] = wanted / own if own > wanted else 1.0
            for p in range(begin, begin + size):
                label = rounded.key[p] // states if s == 0 else rounded.key[p] % states
                rounded.x[p] *= scale[s, _place(variables, t + s, label)]
        missing = 0.0
        for s in range(2):
            _sum_side(variables, t + s, s, states, rounded, begin, size, sums[s])
            for c in range(variables.size[t + s]):
                short = variables.x[variables.start[t + s] + c] - sums[s, c]
                sums[s, c] = short if short > 0.0 else 0.0
                if s == 1:
                    missing += sums[s, c]
        if missing > 0.0:
            for c in range(variables.size[t]):
                for d in range(variables.size[t + 1]):
                    mass = sums[0, c] * sums[1, d] / missing
                    if mass > 0.0:
                        key = variables.key[variables.start[t] + c] * states
                        rounded.key[begin + size] = key + variables.key[variables.start[t + 1] + d]
                        rounded.x[begin + size] = mass
                        size += 1
        rounded.size[t] = size


@njit
def _place(lists, i, key):
    """The column of the key in list ``i``; -1 if it has none."""
    for c in range(lists.size[i]):
        if lists.key[lists.start[i] + c] == key:
            return c
    return -1


@njit
def _sum_side(variables, t, s, states, rounded, begin, size, sums):
    """Mass of the pairs by the label of one side."""
    sums[: variables.size[t]] = 0.0
    for p in range(begin, begin + size):
        label = rounded.key[p] // states if s == 0 else rounded.key[p] % states
        sums[_place(variables, t, label)] += rounded.x[p]
