"""What the compiled loop does with one example, whatever its kind, compiled by Numba.

A kind is the class of the named tuple ``examples.kind``, the first argument of every function that depends on it. It
must have :func:`list_parts` and :func:`decode`. It may have :func:`loss_of` and :func:`mean_loss`, whose versions here
are for labels that cost the same, and a faster version of any other function. The versions here are for rows of
features, which make the emissions, and for pairs whose scores are weights. Sums of products may be contracted and
reordered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import ByAddress, ByKind, njit, njit_fastmath
from torchssvm.compiler.vectors import (
    add_row,
    add_rows,
    add_to_rows,
    dot,
    exact_dot,
    exact_dots,
    quadratic,
    set_row,
)
from torchssvm.kinds.examples import Dense, Listed
from torchssvm.kinds.long import add_long_to_weights, long_square, respond_to_long_parts

Rows = np.ndarray
"""``[rows, K]`` in the dtype of the weights."""
Sums = np.ndarray
"""``[rows, K]`` float64."""
Labels = np.ndarray
"""``[*]`` int64."""
Marks = np.ndarray
"""``[*]`` bool."""


@njit
def size_of(examples, i):
    """The number of labels of example i."""
    return examples.start[i + 1] - examples.start[i]


@ByKind
def _score_features(form, examples, model, start, length, emission):
    """The emissions of ``length`` rows of features from ``start`` on."""


@_score_features.of(Dense)
@njit_fastmath
def _score_features_of_dense(form, examples, model, start, length, emission):
    if model.emission.shape[1] == 1:
        for t in range(length):
            emission[t, 0] = dot(examples.x[start + t], model.emission) + model.bias[0]
    else:
        for t in range(length):
            x = examples.x[start + t]
            set_row(emission[t], model.bias, None, None)
            add_rows(emission[t], model.emission, None, x, 0, len(x))


@_score_features.of(Listed)
@njit_fastmath
def _score_features_of_lists(form, examples, model, start, length, emission):
    for t in range(length):
        begin, end = examples.row[start + t], examples.row[start + t + 1]
        set_row(emission[t], model.bias, None, None)
        add_rows(emission[t], model.emission, examples.column, form.values, begin, end)


@njit_fastmath
def potentials_of_rows(examples, model, i, emission):
    """The emissions of example i."""
    start, length = examples.line[i], examples.length[i]
    _score_features(examples.form, examples, model, start, length, emission)
    if model.has_boundary:
        add_row(emission[0], model.first, None)
        add_row(emission[length - 1], model.last, None)


@njit
def triangle(t, u):
    """The position of the inner product of tokens t and u among those of an example."""
    return t * (t + 1) // 2 + u if t >= u else u * (u + 1) // 2 + t


@ByAddress
@njit_fastmath
def potentials(kind, examples, model, i: int, scratch) -> bool:
    """Write the emissions of example i to ``scratch.emission``.

    Returns whether the scores of its pairs are in ``scratch.transition``, else they are ``model.transition``.
    """
    potentials_of_rows(examples, model, i, scratch.emission)
    return False


@ByKind
@njit
def read_potentials(kind, examples, model, i, scratch, slots, count, some):
    """:func:`potentials`; where ``some``, only what the scores of the target and of ``slots[:count]`` read."""
    return potentials(kind, examples, model, i, scratch)


@ByKind
@njit
def other_potentials(kind, examples, model, i, scratch):
    """Write the emissions that :func:`read_potentials` left out."""


@njit
def read_slot(i, c, examples, blocks, labels):
    """The labeling of a slot as int64, like a corner, so that what takes either is compiled once."""
    for t in range(size_of(examples, i)):
        labels[t] = blocks.labelings[i, c, t]


class Score(NamedTuple):
    """A task of :func:`list_parts`: the score of a labeling."""

    rows: Any  # ``[rows, K]`` emissions
    pairs: Any  # ``[rows of pairs, K]`` scores


class Mark(NamedTuple):
    """A task of :func:`list_parts`: mark the rows of a labeling's pairs."""

    rows: Any  # ``[0]`` bool
    pairs: Any  # ``[rows of pairs]`` bool


class Add(NamedTuple):
    """A task of :func:`list_parts`: add ``mass (p(labels) - p(other))``."""

    rows: Any  # ``[rows, K]``
    pairs: Any  # ``[rows of pairs, K]``
    mass: float


@ByKind
def state(task, table, row, column, other_row, other_column):
    """Part of a labeling that is 1 at one place of ``table``, which is ``task.rows`` or ``task.pairs``.

    ``row`` and ``column`` are the place for the labeling, ``other_row`` and ``other_column`` for the other labeling.
    Returns what the part adds to the score.
    """


@ByKind
def amount(task, table, row, column, value, other):
    """Part of a labeling that is ``value`` at a place, and ``other`` for the other labeling; see :func:`state`."""


@state.of(Score)
@njit
def _score_state(task, table, row, column, other_row, other_column):
    return table[row, column]


@amount.of(Score)
@njit
def _score_amount(task, table, row, column, value, other):
    return value * table[row, column]


@state.of(Mark)
@njit
def _mark_state(task, table, row, column, other_row, other_column):
    if len(table):
        table[row] = True
    return 0.0


@amount.of(Mark)
@njit
def _mark_amount(task, table, row, column, value, other):
    if len(table):
        table[row] = True
    return 0.0


@state.of(Add)
@njit
def _add_state(task, table, row, column, other_row, other_column):
    if row != other_row or column != other_column:  # x + mass - mass rounds a small x
        table[row, column] += task.mass
        table[other_row, other_column] -= task.mass
    return 0.0


@amount.of(Add)
@njit
def _add_amount(task, table, row, column, value, other):
    if value != other:
        table[row, column] += task.mass * (value - other)
    return 0.0


@ByKind
def list_parts(kind, examples, i, labels, other, task):
    """Call :func:`state` or :func:`amount` for each part of ``labels``; returns the sum of what they return.

    ``other`` is another labeling of example i, or the same one. Parts that only ``other`` has are listed too.
    """


@njit
def list_states(examples, i, labels, other, task):
    """:func:`list_parts` of a row for each label."""
    total = 0.0
    for t in range(size_of(examples, i)):
        total += state(task, task.rows, t, labels[t], t, other[t])
    return total


@ByKind
@njit
def score(kind, examples, i, labels, length, emission, transition):
    """Score of one labeling of example i, float64.

    Args:
        kind, examples, i: The example.
        labels: ``[labels]`` integers.
        length: Rows of emissions.
        emission: ``[rows, K]`` numbers.
        transition: ``[rows of pairs, K]`` numbers.
    """
    return list_parts(kind, examples, i, labels, labels, Score(emission, transition))


@ByKind
def decode(kind, examples, i, length, scratch, transition, labels):
    """Write the best labeling, its loss added, into ``labels``; returns the loss, float64.

    ``scratch.emission`` and ``transition`` are the scores. ``scratch.prefixes``, ``into`` and ``room`` are free.
    An approximate oracle writes into ``scratch.slack[0]``, zero before, by how much its bound is above the value.
    """


@ByAddress
@njit
def loss_of(kind, examples, i: int, labels: Labels) -> float:
    """The loss of a labeling, float64: the costs of its wrong labels."""
    loss, start = 0.0, examples.start[i]
    for t in range(size_of(examples, i)):
        if labels[t] != examples.y[start + t]:
            loss += examples.cost[start + t]
    return loss


@ByAddress
@njit
def add_labeling(
    kind, examples, i: int, length: int, labels: Labels, mass: float, delta: Rows, pairs: Rows, counts: Sums
) -> None:
    """``mass (p(labels) - p(y))`` added to parts.

    ``counts``, shaped like ``pairs``, are zero before and after: room for a kind with another :func:`respond`. The
    version here has no such room, and passes ``pairs`` itself.
    """
    list_parts(kind, examples, i, labels, examples.y[examples.start[i] :], Add(delta, pairs, mass))


@ByKind
@njit
def mean_loss(kind, examples, i, t, psi, total, absolute):
    """``-<psi, delta>``, the mean loss of a row, and the sum of the absolute values of its terms; NaN if unknown.

    Args:
        kind, examples, i, t: Which row.
        psi: The row; ``total`` and ``absolute`` are the sums of its numbers and of their absolute values.
    """
    return np.nan, 0.0


@njit
def uniform_mean_loss(kind, examples, i, t, psi, total, absolute):
    """:func:`mean_loss` of a row for each label, whose wrong states all cost the same."""
    place = examples.start[i] + t
    at_target, cost = np.float64(psi[examples.y[place]]), examples.cost[place]
    return cost * (at_target - total), cost * (absolute - abs(at_target))


@njit
def mark_rows(kind, examples, i, labels, used):
    """Mark the rows of the pairs of a labeling in ``used``; a single row is marked without listing the parts."""
    if len(used) == 1:
        used[0] = True
    elif len(used):
        list_parts(kind, examples, i, labels, labels, Mark(used[:0], used))


@njit
def list_rows(used, rows):
    """Write the marked rows to ``rows``, and return their number."""
    count = 0
    for j in range(len(used)):
        rows[count] = j
        count += used[j]
    return count


@njit
def list_rows_of(kind, examples, i, labels, scratch):
    """Write the rows of the pairs of a labeling and of the target to ``scratch.rows``, and return their number."""
    used = scratch.used[: examples.pair_rows[i]]
    for row in range(len(used)):
        used[row] = False
    mark_rows(kind, examples, i, examples.y[examples.start[i] :], used)
    mark_rows(kind, examples, i, labels, used)
    return list_rows(used, scratch.rows)


@njit
def respond_marked(examples, model, i, length, psi, scratch):
    """:func:`respond_rows`; of an example without stored products, only where ``scratch.response`` is infinite."""
    start, inner, total = examples.line[i], examples.inner_start[i], 0.0
    response, sums = scratch.response, scratch.sums_of_label
    if length > examples.stored:
        respond_to_long_parts(examples.reach, examples, start, length, psi, model.has_bias, response, sums)
    for t in range(length):
        row = response[t]
        if length <= examples.stored:
            set_row(row, None, None, 0.0)
            for u in range(length):
                add_row(row, psi[u], np.float64(examples.inner[inner + triangle(t, u)]))
        if model.has_boundary:
            add_row(row, psi[t], np.float64((t == 0) + (t == length - 1)))
        total += exact_dot(row, psi[t])
    return total


@njit
def respond_rows(examples, model, i, length, psi, scratch):
    """Emissions of ``Phi Phi^T psi`` into ``scratch.response``; returns their product with psi."""
    for t in range(length if length > examples.stored else 0):
        set_row(scratch.response[t], None, None, np.inf)
    return respond_marked(examples, model, i, length, psi, scratch)


@ByKind
@njit
def respond_to_parts(kind, examples, model, i, length, psi, pairs, rows, scratch, slots, count, corner, is_new):
    """``Phi Phi^T psi``: emissions into ``scratch.response``, read as those of :func:`respond`.

    Returns its product with psi, and the pairs. ``rows`` are the rows of ``pairs`` that may not be zero.
    """
    return respond_rows(examples, model, i, length, psi, scratch) + exact_dots(pairs, pairs, rows, len(rows)), pairs


@ByKind
@njit
def respond(kind, examples, model, i, length, labels, scratch, slots, count, corner, is_new):
    """``Phi Phi^T (p(labels) - p(y))``: emissions, in ``scratch.response``, and pairs.

    What is read of it are the scores of the target, of ``slots[:count]`` and, if it ``is_new``, of ``corner``. In
    ``scratch.pairs``, which are zero before, the rows of the labels and of the target may be written.
    """
    delta, pairs = scratch.delta, scratch.pairs
    for t in range(length):
        set_row(delta[t], None, None, 0.0)
    add_labeling(kind, examples, i, length, labels, 1.0, delta, pairs, pairs)
    rows = scratch.rows[: list_rows_of(kind, examples, i, labels, scratch)]
    read = scratch, slots, count, corner, is_new
    _, moved = respond_to_parts(kind, examples, model, i, length, delta, pairs, rows, *read)
    return scratch.response, moved


@njit
def square_rows(examples, model, i, length, delta, scratch):
    """``|Phi_i^T delta|^2`` of the emissions; ``scratch.squares`` gets ``|delta_t|^2``."""
    squares, sums = scratch.squares, scratch.sums_of_label
    if length > examples.stored:
        total = long_square(examples.reach, examples, examples.line[i], length, delta, model.has_bias, squares, sums)
    else:
        total = quadratic(delta, length, examples.inner[examples.inner_start[i] :], squares)
    if model.has_boundary:
        total += squares[0] + squares[length - 1]
    return total


@ByAddress
@njit
def squared_length(
    kind, examples, model, i: int, length: int, delta: Rows, pairs: Rows, rows: Labels, scratch
) -> float:
    """``|Phi_i^T delta|^2``; ``scratch.squares`` gets ``|delta_t|^2``. ``rows`` are those of ``pairs`` that count."""
    return square_rows(examples, model, i, length, delta, scratch) + exact_dots(pairs, pairs, rows, len(rows))


@njit_fastmath
def add_rows_to_weights(examples, model, i, length, delta, scratch, factor):
    """``w += factor Phi_i^T delta`` of the emissions; ``scratch.squares`` is 0 for rows without a change."""
    start, squares, sums = examples.line[i], scratch.squares, scratch.sums_of_label
    if length > examples.stored:
        add_long_to_weights(examples.reach, examples, start, length, delta, model, squares, sums, factor)
    elif model.has_bias:
        for t in range(length):
            if squares[t] != 0.0:
                add_row(model.bias, delta[t], factor)
    if length <= examples.stored:
        _add_outer(examples.form, examples, start, length, delta, squares, model.emission, factor)
    if model.has_boundary:
        for t, weights in ((0, model.first), (length - 1, model.last)):
            if squares[t] > 0.0:
                add_row(weights, delta[t], factor)


@ByAddress
@njit_fastmath
def add_to_weights(
    kind, examples, model, i: int, length: int, delta: Rows, pairs: Rows, rows: Labels, scratch, factor: float
) -> None:
    """``w += factor Phi_i^T delta``; ``scratch.squares`` is 0 for rows without a change, ``pairs`` beyond ``rows``."""
    add_rows_to_weights(examples, model, i, length, delta, scratch, factor)
    for j in rows:
        add_row(model.transition[j], pairs[j], factor)


@ByKind
def _add_outer(form, examples, start, length, rows, squares, weights, factor):
    """``weights += factor sum_t x[t] rows[t]^T`` over the rows of features from ``start`` on with a change."""


@_add_outer.of(Listed)
@njit_fastmath
def _add_outer_of_lists(form, examples, start, length, rows, squares, weights, factor):
    for t in range(length):
        if squares[t] != 0.0:
            begin, end = examples.row[start + t], examples.row[start + t + 1]
            add_to_rows(weights, examples.column, form.values, begin, end, rows[t], factor)


@_add_outer.of(Dense)
@njit_fastmath
def _add_outer_of_dense(form, examples, start, length, rows, squares, weights, factor):
    # Four rows at a time.
    x, factor, states = examples.x[start : start + length], rows.dtype.type(factor), weights.shape[1]
    t = 0
    while t < length:
        count, a, b, c, d = 0, t, t, t, t
        while t < length and count < 4:
            if squares[t] > 0.0:
                if count == 0:
                    a = t
                elif count == 1:
                    b = t
                elif count == 2:
                    c = t
                else:
                    d = t
                count += 1
            t += 1
        ra, rb, rc, rd = rows[a], rows[b], rows[c], rows[d]
        if count == 4:
            for f in range(x.shape[1]):
                va, vb, vc, vd = factor * x[a, f], factor * x[b, f], factor * x[c, f], factor * x[d, f]
                row = weights[f]
                for k in range(states):
                    row[k] += (va * ra[k] + vb * rb[k]) + (vc * rc[k] + vd * rd[k])
        else:
            for place in range(count):
                change, token = (ra, a) if place == 0 else (rb, b) if place == 1 else (rc, c)
                for f in range(x.shape[1]):
                    value, row = factor * x[token, f], weights[f]
                    for k in range(states):
                        row[k] += value * change[k]


@ByAddress
def solve_block(
    kind, examples, i: int, length: int, psi: Rows, curvature: float, scratch
) -> tuple[float, float, float, float]:
    """The best psi of block i for its scores, for a kind that needs no labelings for it: optional.

    ``scratch.into`` gets the best psi, and ``scratch.delta`` the current psi less the best one, the step's direction.

    Args:
        kind, examples, i, length: The example, whose emissions are in ``scratch``.
        psi: ``[rows, K]``, its mean parts.
        curvature: Positive or zero: the block's problem is ``max_d <hinges, d> - curvature/2 |d|^2`` over the changes d
            that leave feasible masses.

    Returns:
        Largest hinge less the mean one, ``<hinges, d>``, ``|d|^2`` and the change of the mean loss.
    """
    raise NotImplementedError


@ByAddress
def examine_block(kind, examples, i: int, length: int, psi: Rows, scratch) -> tuple[float, float, float, float, float]:
    """The figures of an exact pass for a block that is solved whole, whose emissions are in ``scratch``.

    Returns:
        Hinge, ``<psi, scores>``, mean loss, and the sums of the absolute values of its terms and of psi.
    """
    raise NotImplementedError
