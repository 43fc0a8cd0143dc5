"""The training set as arrays for kernels, and the arrays they work with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.hidden_fields import with_hidden
from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import exact_dot
from torchssvm.kinds.long import Long


@with_hidden("kind", "reach", "form")
class Examples(NamedTuple):
    """The training set: labels of all examples, one after another, and rows of features, which make the emissions.

    Attributes:
        dense: Whether features are in ``x``, or in ``value`` and ``column``.
        x: ``[rows, F]``, or empty.
        value: ``[nonzeros]`` nonzero features, or empty.
        column: ``[nonzeros]`` int32, the index of each feature in ``value``.
        row: ``[rows + 1]`` int64, where each row's features begin in ``value``.
        y: ``[labels]`` int64 targets.
        cost: ``[labels]`` float64, the cost of a wrong label, or a factor of it.
        added: ``cost`` in the dtype of the weights.
        weight: ``[n]`` float64, 0 or above, a factor of each example's loss and features, not yet applied.
        start: ``[n + 1]`` int64, where each example's labels begin.
        line: ``[n + 1]`` int64, where each example's rows of features begin.
        length: ``[n]`` int64, each example's rows of emissions: as many, unless an adapter's ``complete`` says more.
        pair_rows: ``[n]`` int64, each example's rows of pairs.
        distinct: ``[*]`` int32, the distinct features of each example, group by group, if ``column`` numbers groups
            of features within the example; else empty.
        distinct_start: ``[n + 1]`` int64, where each example's distinct features begin.
        group: ``[*]`` int32, where each group begins among the distinct features of its example, and the end.
        group_start: ``[n + 1]`` int64, where the entries of each example begin in ``group``.
        pair_scale: The largest sum of the absolute features of a row of pairs; 1 where pairs are weights.
        inner: ``[sum R (R + 1) / 2]`` inner products of each example's rows, with the bias as a feature: row t with
            rows 0 to t, for all t. Examples of more than ``stored`` rows have none, see :mod:`.long`.
        inner_start: ``[n]`` int64, where each example's inner products begin.
        stored: The most rows of an example whose inner products are kept.
        kind: A named tuple with further data of the kind. Its class selects the functions of :mod:`.block`.
        reach: None if no example has more than ``stored`` rows, so that kernels for long examples are not compiled.
        form: The form of the features: dense rows, or lists with values or of ones. Its class selects the kernels.
        calls: Addresses of the kind's kernels, see :mod:`torchssvm.compiler.by_address`.
    """

    dense: bool
    x: Any
    value: Any
    column: Any
    row: Any
    y: Any
    cost: Any
    added: Any
    weight: Any
    start: Any
    line: Any
    length: Any
    pair_rows: Any
    inner: Any
    inner_start: Any
    stored: int
    distinct: Any
    distinct_start: Any
    group: Any
    group_start: Any
    pair_scale: float = 1.0
    kind: Any = None
    reach: Any = None
    form: Any = None
    calls: Any = np.zeros(0, np.int64)


class Dense(NamedTuple):
    """Dense features, in ``Examples.x``."""

    features: int


class Listed(NamedTuple):
    """Features as lists."""

    values: Any  # ``Examples.value``, or None where all are 1


def with_types(examples: Examples) -> Examples:
    """Set ``reach`` and ``form``, whose types select the compiled code."""
    rows = int(np.diff(examples.line).max(initial=0))
    form = Dense(examples.x.shape[1]) if examples.dense else Listed(examples.value if len(examples.value) else None)
    return examples._replace(form=form, reach=Long(rows) if rows > examples.stored else None)


@with_hidden("room")
class Scratch(NamedTuple):
    """Scratch arrays for one block: potentials, Viterbi's transitions and maxima, responses, directions, the atoms.

    ``used`` and ``rows`` say which rows of ``delta_pairs`` may not be zero; the others are not read. ``step`` gets the
    sum of all steps, and the change of ``|w|^2``. ``sums_of_label``, zero before and after, has the weights of one
    label, for chains longer than ``STORED``; else it is empty. ``slack`` gets the difference between an approximate
    oracle's bound and the value of its labeling. ``room`` has further arrays of the kind.
    """

    emission: Any
    transition: Any
    into: Any
    prefixes: Any
    response: Any
    pairs: Any
    delta: Any
    delta_pairs: Any
    used: Any
    rows: Any
    squares: Any
    sums: Any
    corner: Any
    labels: Any
    slot: Any
    mass: Any
    hinge: Any
    score_loss: Any
    change: Any
    scores: Any
    gram: Any
    work: Any
    step: Any
    sums_of_label: Any
    slack: Any
    room: Any = None


def make_scratch(
    longest: int,
    states: int,
    width: int,
    pairs: int,
    pair_width: int,
    atoms: int,
    dtype: np.dtype,
    long_features: int,
    labels: int,
    make_room: Any = None,
) -> Scratch:
    """Scratch for blocks of up to ``longest`` rows, ``labels`` labels, ``pairs`` rows of pairs and ``atoms`` atoms.

    Rows have ``states`` and ``pair_width`` numbers.
    Rows that are combined with rows of the weights have the same ``width``. ``long_features`` is the size of
    ``sums_of_label``, see :func:`.long_features`. ``make_room`` makes ``room``, if any.
    """
    return Scratch(
        emission=np.zeros((longest, width), dtype),
        transition=np.zeros((pairs, pair_width), dtype),
        into=np.zeros((longest, states), dtype),
        prefixes=np.zeros((longest, states), dtype),
        response=np.zeros((longest, states)),
        pairs=np.zeros((pairs, pair_width)),
        delta=np.zeros((longest, width), dtype),
        delta_pairs=np.zeros((pairs, pair_width), dtype),
        used=np.zeros(pairs, np.bool_),
        rows=np.zeros(pairs, np.int64),
        squares=np.zeros(longest),
        sums=np.zeros((longest, 3)),
        corner=np.zeros(labels, np.int64),
        labels=np.zeros(labels, np.int64),
        slot=np.zeros(labels, np.int64),
        mass=np.zeros(atoms),
        hinge=np.zeros(atoms),
        score_loss=np.zeros(atoms),
        change=np.zeros(atoms),
        scores=np.zeros(atoms),
        gram=np.zeros((atoms, atoms)),
        work=np.zeros(atoms),
        step=np.zeros(2),
        sums_of_label=np.zeros(long_features),
        slack=np.zeros(1),
        room=None if make_room is None else make_room(),
    )


@njit
def fill_inner(examples, has_bias, room):
    """``x_t . x_u`` for u <= t, plus 1 where there is a bias; summed in float64. Long examples have none.

    Examples whose first product is not -1 have theirs, as ``|x_0|^2`` is not negative. ``room`` is float64 for every
    column of lists, zero before and after.
    """
    extra = 1.0 if has_bias else 0.0
    for i in range(len(examples.start) - 1):
        place = examples.inner_start[i]
        count = examples.line[i + 1] - examples.line[i]
        if count == 0 or count > examples.stored or examples.inner[place] != -1.0:
            continue
        for t in range(examples.line[i], examples.line[i + 1]):
            begin, end = (0, 0) if examples.dense else (examples.row[t], examples.row[t + 1])
            for p in range(begin, end):
                room[examples.column[p]] = examples.value[p] if len(examples.value) else 1.0
            for u in range(examples.line[i], t + 1):
                if examples.dense:
                    examples.inner[place] = exact_dot(examples.x[t], examples.x[u]) + extra
                else:
                    examples.inner[place] = _product(examples, u, room) + extra
                place += 1
            for p in range(begin, end):
                room[examples.column[p]] = 0.0


@njit
def _product(examples, t, row):
    """The product of the list of row t with a dense row."""
    total = 0.0
    for p in range(examples.row[t], examples.row[t + 1]):
        number = row[examples.column[p]]
        total += number * np.float64(examples.value[p]) if len(examples.value) else number
    return total


def squares_of_rows(examples: Examples, dtype: Any = None) -> np.ndarray:
    """The squared length of each row of features; ``dtype`` is that of the sums of dense ones."""
    if examples.dense:
        return np.einsum("tf,tf->t", examples.x, examples.x, dtype=dtype)
    if len(examples.distinct):
        squares = np.zeros(len(examples.row) - 1)
        lists = examples.line, examples.row, examples.column, examples.value
        _square_groups(*lists, examples.group, examples.group_start, squares)
        return squares
    if not len(examples.value):
        return np.diff(examples.row)
    return np.diff(np.append(0.0, np.square(examples.value, dtype=np.float64).cumsum())[examples.row])


@njit
def _square_groups(line, row, column, value, group, start, squares):
    """The squared lengths of rows that list groups of features."""
    for i in range(len(line) - 1):
        for t in range(line[i], line[i + 1]):
            for p in range(row[t], row[t + 1]):
                place, factor = start[i] + column[p], np.float64(value[p]) if len(value) else 1.0
                squares[t] += factor * factor * (group[place + 1] - group[place])
