"""The NumPy arrays that the compiled passes over chains read and write."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.kinds.examples import Examples
from torchssvm.solvers.gdmm.problem import squares_of
from torchssvm.solvers.gdmm.ragged import Ragged, empty, offsets, repacked, single


class Tokens(NamedTuple):
    """The training set, token after token; biases are features that are always 1."""

    column: Any  # [M] int32
    value: Any  # [M] of the weights' dtype
    row: Any  # [tokens + 1] int64, where each token's features begin
    y: Any  # [tokens] int64
    cost: Any  # [tokens] float64, the cost of a wrong label
    start: Any  # [n + 1] int64, where each chain begins
    square: Any  # [tokens] float64, |x_t|^2


class Duals(NamedTuple):
    """Distributions of all factors on their active sets, with excesses and multipliers."""

    variables: Ragged  # a list for each token: labels and their mass
    factors: Ragged  # a list for each token with a next one in its chain: ``a K + b`` and their mass
    sides: Ragged  # two for each token t, of the labels of t and t + 1 in factor t: M pi_f - pi_j and multiplier


class Options(NamedTuple):
    """The parameters of a pass."""

    scale: float  # lam n
    rho: float  # penalty of the augmented Lagrangian, times n
    rule: int  # how blocks move, see ``blocks``
    greedy: bool  # whether a visit moves the steepest block, as often as there are blocks, instead of each once


class Scratch(NamedTuple):
    """Scratch arrays for one block."""

    scores: Any  # [K]
    tables: Any  # [2, K]
    mass: Any  # [A], of the block's active set
    gradient: Any  # [A]
    point: Any  # [A]
    order: Any  # [A] int64
    new: Any  # [A]
    marked_left: Any  # [K] int64
    marked_right: Any  # [K] int64
    labels: Any  # [2, S] int64, of both sides
    forces: Any  # [2, S]
    totals: Any  # [3]: squared moves of variables for each of their factors, entries the oracle looked at, its calls
    stamp: Any  # [1] int64


def make_tokens(examples: Examples, num_features: int, has_bias: bool, has_boundary: bool) -> Tokens:
    """Lists of features with the biases among them: ``num_features`` for all, the next two for both ends of a chain."""
    tokens = len(examples.y)
    if examples.dense:
        rows, columns = np.nonzero(examples.x)
        counts = np.bincount(rows, minlength=tokens)
        values = examples.x[rows, columns]
    else:
        counts, columns, values = np.diff(examples.row), examples.column, examples.value
        values = values if len(values) else np.ones(len(columns), values.dtype)
    pieces = [(np.repeat(np.arange(tokens), counts), columns, values)]
    if has_bias:
        pieces.append((np.arange(tokens), np.full(tokens, num_features), np.ones(tokens, values.dtype)))
    if has_boundary:
        ones = np.ones(len(examples.start) - 1, values.dtype)
        pieces.append((examples.start[:-1], np.full(len(ones), num_features + 1), ones))
        pieces.append((examples.start[1:] - 1, np.full(len(ones), num_features + 2), ones))
    token, column, value = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    order = np.argsort(token, kind="stable")
    row = offsets(np.bincount(token, minlength=tokens))
    square = np.bincount(token, weights=squares_of(value), minlength=tokens)
    return Tokens(
        column[order].astype(np.int32),
        np.ascontiguousarray(value[order]),
        row,
        examples.y,
        examples.cost,
        examples.start,
        square,
    )


def make_duals(tokens: Tokens, num_states: int) -> Duals:
    """All mass on the targets."""
    factors = single(tokens.y * num_states + np.append(tokens.y[1:], 0))
    factors.size[tokens.start[1:] - 1] = 0
    return Duals(single(tokens.y), factors, empty(2 * len(tokens.y)))


def with_room(duals: Duals, *, visits: int) -> Duals:
    """The same duals, with room for what ``visits`` visits of every block can add."""
    variables, factors, sides = duals
    labels = variables.size + visits
    pairs = factors.size + visits
    around = np.empty(len(sides.size), np.int64)
    around[0::2] = labels + pairs  # labels of the token and of the pairs
    around[1::2] = np.append(labels[1:], 0) + pairs
    return Duals(repacked(variables, visits), repacked(factors, visits), repacked(sides, around))


def make_scratch(duals: Duals, num_states: int) -> Scratch:
    """Scratch arrays for the largest block."""
    active = int(max(np.diff(duals.variables.start).max(), np.diff(duals.factors.start).max(), 1))
    around = int(max(np.diff(duals.sides.start).max(), 1))
    return Scratch(
        scores=np.zeros(num_states),
        tables=np.zeros((2, num_states)),
        mass=np.zeros(active),
        gradient=np.zeros(active),
        point=np.zeros(active),
        order=np.zeros(active, np.int64),
        new=np.zeros(active),
        marked_left=np.zeros(num_states, np.int64),
        marked_right=np.zeros(num_states, np.int64),
        labels=np.zeros((2, around), np.int64),
        forces=np.zeros((2, around)),
        totals=np.zeros(3),
        stamp=np.zeros(1, np.int64),
    )
