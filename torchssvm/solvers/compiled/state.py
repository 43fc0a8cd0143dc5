"""The arrays of a compiled loop; they share their memory with the tensors of the head and of the dual."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Examples(NamedTuple):
    """The training set, token after token; an example without a sequence is one token.

    Attributes:
        dense: Whether features are in ``x``, or in ``value`` and ``column``.
        x: ``[tokens, F]``, or empty.
        value: ``[nonzeros]`` nonzero features, or empty. Listed, as a search for them would dominate the cost of a
            visit.
        column: ``[nonzeros]`` int32, the index of each feature in ``value``.
        row: ``[tokens + 1]`` int64, where each token's features begin in ``value``.
        y: ``[tokens]`` int64 targets.
        cost: ``[tokens]`` float64, the cost of a wrong label, or a factor of ``cost_matrix``.
        added: ``cost`` in the dtype of the weights.
        cost_matrix: ``[K, K]`` by target and label, or ``[0, 0]`` where all wrong labels cost the same.
        allowed: ``[K + 2, K]`` bool: whether a state may follow another, be the first, and be the last; or ``[0, K]``
            where all may.
        start: ``[n + 1]`` int64, where each example's tokens begin.
        inner: ``[sum T (T + 1) / 2]`` inner products of each example's tokens, with the bias as a feature: token t with
            tokens 0 to t, for all t. Examples longer than ``STORED`` have none, see :mod:`.long`.
        inner_start: ``[n]`` int64, where each example's inner products begin.
        pair_rows: The number of rows of pairs of an example, where all have as many.
        kind: What an example is, beside its rows of features; None is a chain. See :mod:`.block`.
    """

    dense: bool
    x: Any
    value: Any
    column: Any
    row: Any
    y: Any
    cost: Any
    added: Any
    cost_matrix: Any
    allowed: Any
    start: Any
    inner: Any
    inner_start: Any
    pair_rows: int
    kind: Any = None


class Arcs(NamedTuple):
    """What arborescences have beside ``Examples``, where ``row`` has a list for each arc and ``inner`` is empty.

    ``column`` is then a feature's number within its sentence, and ``value`` may be empty: all features are 1.

    Attributes:
        start: ``[n + 1]`` int64, where each sentence's arcs begin in ``row``: token after token, and head after head.
        known: ``[*]`` int32, the columns of the features of each sentence.
        known_start: ``[n + 1]`` int64, where each sentence's columns begin.
        projective: Whether arcs may not cross.
        single_root: Whether the root has one child.
    """

    start: Any
    known: Any
    known_start: Any
    projective: bool
    single_root: bool


class Model(NamedTuple):
    """Weights: emissions ``[F, W]``, pairs ``[K, K]`` or ``[0, K]`` where there are none, and three biases ``[W]``.

    W is at least K; rows are padded with zeros, see ``torchssvm.solvers.compiled.head_adapter``.

    ``has_bias`` and ``has_boundary`` say which of the three biases are used.
    """

    emission: Any
    transition: Any
    bias: Any
    first: Any
    last: Any
    has_bias: bool
    has_boundary: bool


class BlockArrays(NamedTuple):
    """The active sets and the rest, as in ``Labelings``; ``MeanParts`` are a rest without slots.

    ``rest_emission`` and ``rest_transition`` are rows, ``[*, K]``, of which each block has its own, one after another.
    ``rest_used`` ``[*]`` says which rows of ``rest_transition`` may not be zero: of 26 states some 10 have a pair.
    """

    count: Any
    mass: Any
    loss: Any
    used: Any
    labelings: Any
    gram: Any
    known: Any
    rest_mass: Any
    rest_loss: Any
    mixed: Any
    rest_emission: Any
    rest_emission_start: Any
    rest_transition: Any
    rest_transition_start: Any
    rest_used: Any


class Scalars(NamedTuple):
    """Numbers of each example: l_i, the last gap, and the gap at the last oracle call."""

    loss: Any
    gaps: Any
    oracle_gaps: Any


class Options(NamedTuple):
    """The parameters of the direction and of the oracle rule.

    Attributes:
        direction: The ``rule`` of the direction.
        steps: Steps of the corrective direction.
        tolerance: Tolerance of the corrective direction.
        cache: Whether the cache may answer.
        factor: F of the cache rule.
        threshold: nu g / n of the cache rule.
        lam: Regularisation.
        num_examples: n.
        by_gap: Whether blocks are drawn by their gaps, else in the given order.
        power: Blocks are drawn in proportion to this power of the gap.
        relaxation: How many times an exact step is taken; 1 is the exact step, 2 would leave the dual as it is.
    """

    direction: int
    steps: int
    tolerance: float
    cache: bool
    factor: float
    threshold: float
    lam: float
    num_examples: int
    by_gap: bool
    power: float = 1.0
    relaxation: float = 1.0


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


class ArcScratch(NamedTuple):
    """Scratch arrays for one sentence: its weights, sums over its columns, and the room of the decoders."""

    held: Any
    sums: Any
    charts: Any
    memory: Any
    places: Any


def make_arc_scratch(longest: int, columns: int, dtype: np.dtype) -> ArcScratch:
    """Scratch for sentences of up to ``longest`` tokens and ``columns`` different features."""
    size = longest + 1
    return ArcScratch(
        held=np.zeros(columns, dtype),
        sums=np.zeros(columns, dtype),
        charts=np.zeros((6, size, size), dtype),
        memory=np.zeros(size * size),
        places=np.zeros(3 * size * size + 14 * size, np.int64),
    )


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
