"""One block of a linear chain, compiled by Numba: potentials, decoding, scores, inner products, the step.

Import it only where Numba is installed. No fast-math: results are those of the written order of operations.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def potentials(examples, model, i, emission):
    """Emissions of example i; returns its length."""
    start, length = examples.start[i], examples.start[i + 1] - examples.start[i]
    states = model.emission.shape[1]
    for t in range(length):
        row = emission[t]
        for k in range(states):
            row[k] = model.bias[k]
        for p in range(examples.row[start + t], examples.row[start + t + 1]):
            value, weights = examples.value[p], model.emission[examples.column[p]]
            for k in range(states):
                row[k] += value * weights[k]
    for k in range(states):
        emission[0, k] += model.first[k]
        emission[length - 1, k] += model.last[k]
    return length


@njit(cache=True, nogil=True)
def score(labels, length, emission, transition):
    """Score of one labeling."""
    total = np.float64(emission[0, labels[0]])
    for t in range(1, length):
        total += emission[t, labels[t]] + transition[labels[t - 1], labels[t]]
    return total


@njit(cache=True, nogil=True)
def decode(examples, i, length, emission, transition, prefixes, labels):
    """Loss-augmented Viterbi, with the ties of ``torchssvm.oracles.viterbi``; returns the loss."""
    start, states = examples.start[i], transition.shape[0]
    for t in range(length):
        row, cost, target = prefixes[t], examples.added[start + t], examples.y[start + t]
        if t == 0:
            for k in range(states):
                row[k] = 0.0
        else:
            before = prefixes[t - 1]
            for k in range(states):
                row[k] = before[0] + transition[0, k]
            for j in range(1, states):
                base, pairs = before[j], transition[j]
                for k in range(states):
                    value = base + pairs[k]
                    row[k] = value if value > row[k] else row[k]
        right = row[target] + emission[t, target]
        for k in range(states):
            row[k] += emission[t, k] + cost
        row[target] = right
    best = 0
    for k in range(1, states):
        if prefixes[length - 1, k] > prefixes[length - 1, best]:
            best = k
    labels[length - 1] = best
    for t in range(length - 1, 0, -1):
        before = 0
        highest = prefixes[t - 1, 0] + transition[0, best]
        for j in range(1, states):
            value = prefixes[t - 1, j] + transition[j, best]
            if value > highest:
                highest = value
                before = j
        best = before
        labels[t - 1] = best
    loss = 0.0
    for t in range(length):
        if labels[t] != examples.y[start + t]:
            loss += examples.cost[start + t]
    return loss


@njit(cache=True, nogil=True)
def respond(examples, model, i, length, labels, response, pairs):
    """``Phi Phi^T (p(labels) - p(y))``: emissions into ``response``, pairs added to ``pairs`` (zero before)."""
    start, inner, states = examples.start[i], examples.inner_start[i], model.transition.shape[0]
    for t in range(length):
        for k in range(states):
            response[t, k] = 0.0
    for u in range(length):
        new, old = labels[u], examples.y[start + u]
        if new != old:
            for t in range(length):
                value = examples.inner[inner + t * length + u]
                response[t, new] += value
                response[t, old] -= value
        if u > 0:
            pairs[labels[u - 1], new] += 1.0
            pairs[examples.y[start + u - 1], old] -= 1.0
    if model.has_boundary:
        for t in (0, length - 1):
            response[t, labels[t]] += 1.0
            response[t, examples.y[start + t]] -= 1.0


@njit(cache=True, nogil=True)
def forget_pairs(examples, i, length, labels, pairs):
    """Set the pairs that ``respond`` wrote back to zero."""
    start = examples.start[i]
    for u in range(1, length):
        pairs[labels[u - 1], labels[u]] = 0.0
        pairs[examples.y[start + u - 1], examples.y[start + u]] = 0.0


@njit(cache=True, nogil=True)
def add_labeling(examples, i, length, labels, mass, delta, pairs):
    """``mass (p(labels) - p(y))`` added to parts."""
    start = examples.start[i]
    for t in range(length):
        delta[t, labels[t]] += mass
        delta[t, examples.y[start + t]] -= mass
        if t > 0:
            pairs[labels[t - 1], labels[t]] += mass
            pairs[examples.y[start + t - 1], examples.y[start + t]] -= mass


@njit(cache=True, nogil=True)
def squared_length(examples, model, i, length, delta, pairs):
    """``|Phi_i^T delta|^2``."""
    inner, states = examples.inner_start[i], model.transition.shape[0]
    total = 0.0
    for t in range(length):
        for u in range(t + 1):
            weight = examples.inner[inner + t * length + u]
            if weight != 0.0:
                product = 0.0
                for k in range(states):
                    product += delta[t, k] * delta[u, k]
                total += weight * product * (1.0 if t == u else 2.0)
    for j in range(states):
        for k in range(states):
            total += pairs[j, k] * pairs[j, k]
    if model.has_boundary:
        for k in range(states):
            total += delta[0, k] * delta[0, k] + delta[length - 1, k] * delta[length - 1, k]
    return total


@njit(cache=True, nogil=True)
def move_weights(examples, model, i, length, delta, pairs, rate, row):
    """``w -= rate Phi_i^T delta``; ``row`` is room for one token's change, in the dtype of the weights."""
    start = examples.start[i]
    states = model.emission.shape[1]
    for t in range(length):
        moved = False
        for k in range(states):
            row[k] = rate * delta[t, k]
            moved |= delta[t, k] != 0.0
        if not moved:
            continue
        for p in range(examples.row[start + t], examples.row[start + t + 1]):
            value, weights = examples.value[p], model.emission[examples.column[p]]
            for k in range(states):
                weights[k] -= value * row[k]
        if model.has_bias:
            for k in range(states):
                model.bias[k] -= row[k]
    for j in range(states):
        for k in range(states):
            model.transition[j, k] -= rate * pairs[j, k]
    if model.has_boundary:
        for k in range(states):
            model.first[k] -= rate * delta[0, k]
            model.last[k] -= rate * delta[length - 1, k]
