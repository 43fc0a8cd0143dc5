"""The arrays of a training set, of a head's weights, and for work on one example."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.kinds.long import Long


class Examples(NamedTuple):
    """The training set: labels of all examples, one after another, and rows of features, which make the emissions.

    Attributes:
        dense: Whether features are in ``x``, or in ``value`` and ``column``.
        x: ``[rows, F]``, or empty.
        value: ``[nonzeros]`` nonzero features, or empty. Listed, as a search for them would dominate the cost of a
            visit.
        column: ``[nonzeros]`` int32, the index of each feature in ``value``.
        row: ``[rows + 1]`` int64, where each row's features begin in ``value``.
        y: ``[labels]`` int64 targets.
        cost: ``[labels]`` float64, the cost of a wrong label, or a factor of it.
        added: ``cost`` in the dtype of the weights.
        start: ``[n + 1]`` int64, where each example's labels begin.
        line: ``[n + 1]`` int64, where each example's rows begin.
        inner: ``[sum R (R + 1) / 2]`` inner products of each example's rows, with the bias as a feature: row t with
            rows 0 to t, for all t. Examples of more than ``stored`` rows have none, see :mod:`.long`.
        inner_start: ``[n]`` int64, where each example's inner products begin.
        stored: The most rows of an example whose inner products are kept.
        pair_rows: The number of rows of pairs of an example, where all have as many.
        kind: A named tuple: what else an example is. Its class says which functions of :mod:`.block` are called.
        reach: None where no example has more than ``stored`` rows, so that kernels for these are not compiled.
        form: What the features are: a row of numbers, or lists with values or of ones. Its class says which kernels are
            compiled.
    """

    dense: bool
    x: Any
    value: Any
    column: Any
    row: Any
    y: Any
    cost: Any
    added: Any
    start: Any
    line: Any
    inner: Any
    inner_start: Any
    stored: int
    pair_rows: int
    kind: Any = None
    reach: Any = None
    form: Any = None


class Dense(NamedTuple):
    """That features are in ``Examples.x``."""

    features: int


class Listed(NamedTuple):
    """That features are lists."""

    values: Any  # ``Examples.value``, or None where all are 1


def with_types(examples: Examples) -> Examples:
    """With ``reach`` and ``form``, whose types say which code is compiled."""
    rows = int(np.diff(examples.line).max(initial=0))
    form = Dense(examples.x.shape[1]) if examples.dense else Listed(examples.value if len(examples.value) else None)
    return examples._replace(form=form, reach=Long(rows) if rows > examples.stored else None)


class Model(NamedTuple):
    """Weights: emissions ``[F, W]``, pairs ``[K, K]`` or ``[0, K]`` where there are none, and three biases ``[W]``.

    W is at least K; rows are padded with zeros, see :mod:`.adapter`.

    ``has_bias`` and ``has_boundary`` say which of the three biases are used.
    """

    emission: Any
    transition: Any
    bias: Any
    first: Any
    last: Any
    has_bias: bool
    has_boundary: bool


class Scratch(NamedTuple):
    """Scratch arrays for one block: potentials, Viterbi's transitions and maxima, responses, directions, the atoms.

    ``used`` and ``rows`` say which rows of ``delta_pairs`` may not be zero; the others are not read.
    ``step`` gets the sum of all steps, and the change of ``|w|^2``. ``sums_of_label``, zero before and after, has the
    weights of one label, for chains that are longer than ``STORED``; it is empty where there are none. ``slack`` gets
    by how much an approximate oracle's bound is above its labeling. ``room`` is the kind's own.
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
    mass: Any
    hinge: Any
    score_loss: Any
    change: Any
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
        mass=np.zeros(atoms),
        hinge=np.zeros(atoms),
        score_loss=np.zeros(atoms),
        change=np.zeros(atoms),
        gram=np.zeros((atoms, atoms)),
        work=np.zeros(atoms),
        step=np.zeros(2),
        sums_of_label=np.zeros(long_features),
        slack=np.zeros(1),
        room=None if make_room is None else make_room(),
    )
