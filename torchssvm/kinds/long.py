"""Inner products of a long chain by way of the weights, compiled by Numba; see :mod:`.block`, which calls this.

Those of all pairs of tokens would take memory and time with the square of the length. Here the weights of one label at
a time, ``sum_t v_t x_t``, are summed in float64 over the tokens where something changes, and multiplied with the tokens
whose products are read. The last entry of these sums is that of the bias.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import ByKind, njit
from torchssvm.compiler.vectors import add_row, exact_dot, set_row


class Long(NamedTuple):
    """``Examples.reach`` where an example has more than ``Examples.stored`` rows; else it is None."""

    rows: int  # of the longest example


@njit
def _nothing(reach, *arguments):
    return 0.0


def where_long(kernel: Any) -> Any:
    """A kernel that is not compiled for a training set without long examples, which never call it."""
    made = ByKind(_nothing)
    functools.update_wrapper(made, kernel, updated=())  # Numba tells functions by their names
    made.of(Long)(kernel)
    return made


@njit
def add_token(examples, token, amount, has_bias, sums):
    """``sums += amount x_t``."""
    if examples.dense:
        add_row(sums, examples.x[token], amount)
    for p in range(examples.row[token], 0 if examples.dense else examples.row[token + 1]):
        sums[examples.column[p]] += amount * examples.value[p] if len(examples.value) else amount
    if has_bias:
        sums[len(sums) - 1] += amount


@njit
def product(examples, token, has_bias, sums):
    """``<x_t, sums>``."""
    total = sums[len(sums) - 1] if has_bias else 0.0
    if examples.dense:
        return total + exact_dot(examples.x[token], sums)
    for p in range(examples.row[token], examples.row[token + 1]):
        value = sums[examples.column[p]]
        total += value * examples.value[p] if len(examples.value) else value
    return total


@njit
def take_square(examples, token, sums):
    """The sum of squares over the features of a token, which are zero afterwards; over all of them if dense."""
    if examples.dense:
        total = exact_dot(sums, sums)
        set_row(sums, None, None, 0.0)
        return total
    total = sums[len(sums) - 1] ** 2
    sums[len(sums) - 1] = 0.0
    for p in range(examples.row[token], examples.row[token + 1]):
        total += sums[examples.column[p]] ** 2
        sums[examples.column[p]] = 0.0
    return total


@where_long
@njit
def mark(reach, examples, start, length, slots, count, corner, is_new, response):
    """Write infinity where labelings that differ at a token are scored, and 0 elsewhere."""
    for t in range(length):
        row, target, differs = response[t], examples.y[start + t], is_new and corner[t] != examples.y[start + t]
        set_row(row, None, None, 0.0)
        if differs:
            row[corner[t]] = np.inf
        for c in range(count):
            if slots[c, t] != target:
                row[slots[c, t]] = np.inf
                differs = True
        if differs:
            row[target] = np.inf


@where_long
@njit
def respond_long(reach, examples, start, length, labels, has_bias, response, sums):
    """``Phi Phi^T (p(labels) - p(y))`` at the emissions that are marked."""
    for k in range(response.shape[1]):
        for t in range(length):
            new, old = labels[t], examples.y[start + t]
            if new != old and (new == k or old == k):
                add_token(examples, start + t, 1.0 if new == k else -1.0, has_bias, sums)
        for t in range(length):
            if response[t, k] == np.inf:
                response[t, k] = product(examples, start + t, has_bias, sums)
        for t in range(length):
            new, old = labels[t], examples.y[start + t]
            if new != old and (new == k or old == k):
                take_square(examples, start + t, sums)
                if examples.dense:
                    break


@where_long
@njit
def respond_to_long_parts(reach, examples, start, length, psi, has_bias, response, sums):
    """Emissions of ``Phi Phi^T psi`` at those that are marked and where psi is not 0."""
    for k in range(response.shape[1]):
        for t in range(length):
            if psi[t, k] != 0.0:
                response[t, k] = np.inf
                add_token(examples, start + t, np.float64(psi[t, k]), has_bias, sums)
        for t in range(length):
            if response[t, k] == np.inf:
                response[t, k] = product(examples, start + t, has_bias, sums)
        for t in range(length):
            if psi[t, k] != 0.0:
                take_square(examples, start + t, sums)
                if examples.dense:
                    break


@where_long
@njit
def long_square(reach, examples, start, length, delta, has_bias, squares, sums):
    """``|sum_t delta_t x_t^T|^2``; ``squares`` gets ``|delta_t|^2``."""
    total = 0.0
    for t in range(length):
        squares[t] = exact_dot(delta[t], delta[t])
    for k in range(delta.shape[1]):
        for t in range(length):
            if squares[t] != 0.0 and delta[t, k] != 0.0:
                add_token(examples, start + t, np.float64(delta[t, k]), has_bias, sums)
        for t in range(length):
            if squares[t] != 0.0 and delta[t, k] != 0.0:
                total += take_square(examples, start + t, sums)
                if examples.dense:
                    break
    return total


@where_long
@njit
def add_long_to_weights(reach, examples, start, length, delta, model, squares, sums, factor):
    """``w += factor sum_t delta_t x_t^T`` and the bias; float32 would round the sum at every token."""
    for k in range(model.emission.shape[1]):
        for t in range(length):
            if squares[t] != 0.0 and delta[t, k] != 0.0:
                add_token(examples, start + t, np.float64(delta[t, k]), model.has_bias, sums)
        for f in range(examples.x.shape[1] if examples.dense else 0):
            model.emission[f, k] += factor * sums[f]
        if model.has_bias:
            model.bias[k] += factor * sums[len(sums) - 1]
        for t in range(length):
            if squares[t] != 0.0 and delta[t, k] != 0.0:
                for p in range(examples.row[start + t], 0 if examples.dense else examples.row[start + t + 1]):
                    model.emission[examples.column[p], k] += factor * sums[examples.column[p]]
                    sums[examples.column[p]] = 0.0
                sums[len(sums) - 1] = 0.0
        if examples.dense:
            set_row(sums, None, None, 0.0)


@where_long
@njit
def add_net_pairs(reach, examples, start, length, labels, mass, pairs, counts):
    """``mass`` times the pairs of a labeling without those of the target; ``counts`` are zero before and after.

    Pairs that both have are left out: ``x + mass - mass`` rounds a small x.
    """
    for t in range(1, length):
        if labels[t - 1] != examples.y[start + t - 1] or labels[t] != examples.y[start + t]:
            counts[labels[t - 1], labels[t]] += 1.0
            counts[examples.y[start + t - 1], examples.y[start + t]] -= 1.0
    for t in range(1, length):
        if labels[t - 1] == examples.y[start + t - 1] and labels[t] == examples.y[start + t]:
            continue
        for side in range(2):
            j = labels[t - 1] if side == 0 else examples.y[start + t - 1]
            k = labels[t] if side == 0 else examples.y[start + t]
            if counts[j, k] != 0.0:
                pairs[j, k] += mass * counts[j, k]
                counts[j, k] = 0.0
