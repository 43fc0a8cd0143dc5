"""The NumPy arrays that the compiled passes over chains read and write."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.kinds.examples import Examples
from torchssvm.solvers.gdmm.problem import squares_of
from torchssvm.solvers.gdmm.ragged import Ragged, empty_ragged, make_ragged, repacked


class Tokens(NamedTuple):
    """The training set, token after token; biases are features that are always 1.

    Attributes:
        column: ``[M]`` int32.
        value: ``[M]`` of the weights' dtype.
        row: ``[tokens + 1]`` int64, where each token's features begin.
        y: ``[tokens]`` int64.
        cost: ``[tokens]`` float64, the cost of a wrong label.
        start: ``[n + 1]`` int64, where each chain begins.
        square: ``[tokens]`` float64, |x_t|^2.
    """

    column: Any
    value: Any
    row: Any
    y: Any
    cost: Any
    start: Any
    square: Any


class Duals(NamedTuple):
    """Distributions of all factors on their active sets, with excesses and multipliers.

    Attributes:
        variables: A list for each token: labels and their mass.
        factors: A list for each token that has a next one in its chain: ``a K + b`` and their mass.
        sides: Two lists for each token t, for the labels of t and of t + 1 in factor t: labels with the excess
            ``M pi_f - pi_j`` and the multiplier.
    """

    variables: Ragged
    factors: Ragged
    sides: Ragged


class Options(NamedTuple):
    """The parameters of a pass.

    Attributes:
        scale: lam n.
        rho: Penalty of the augmented Lagrangian, times n.
        rule: How blocks move, see ``blocks``.
        greedy: Whether a visit moves the chain's steepest block, as often as there are blocks, instead of each once.
    """

    scale: float
    rho: float
    rule: int
    greedy: bool


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
    row = np.zeros(tokens + 1, np.int64)
    np.cumsum(np.bincount(token, minlength=tokens), out=row[1:])
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
    count = len(tokens.y)
    variables = make_ragged(tokens.y, np.ones(count))
    following = np.append(tokens.y[1:], 0)
    factors = make_ragged(tokens.y * num_states + following, np.ones(count))
    factors.size[tokens.start[1:] - 1] = 0
    return Duals(variables, factors, empty_ragged(2 * count))


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
