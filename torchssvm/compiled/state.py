"""What a compiled loop works on: arrays that share their memory with the tensors of the head and of the dual."""

from __future__ import annotations

from typing import Any, NamedTuple


class Examples(NamedTuple):
    """The training set, token after token.

    Attributes:
        value: ``[nonzeros]`` features that are not zero; looking for them again in every visit would cost more than
            all the rest of it.
        column: ``[nonzeros]`` int32, which feature each is.
        row: ``[tokens + 1]`` int64, where each token's begin.
        y: ``[tokens]`` int64 targets.
        cost: ``[tokens]`` float64, what a wrong label costs.
        added: The same in the dtype of the weights.
        start: ``[n + 1]`` int64, where each example's tokens begin.
        inner: ``[sum T^2]`` float64, inner products of each example's tokens, the bias among their features.
        inner_start: ``[n]`` int64, where each example's begin.
    """

    value: Any
    column: Any
    row: Any
    y: Any
    cost: Any
    added: Any
    start: Any
    inner: Any
    inner_start: Any


class Model(NamedTuple):
    """The weights of a linear chain; ``has_bias`` and ``has_boundary`` say which of the last three count."""

    emission: Any
    transition: Any
    bias: Any
    first: Any
    last: Any
    has_bias: bool
    has_boundary: bool


class Blocks(NamedTuple):
    """The active sets and the rest, as ``Labelings`` keeps them."""

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


class Scalars(NamedTuple):
    """One number for each example: l_i, the last gap, the gap at the last oracle call."""

    loss: Any
    gaps: Any
    oracle_gaps: Any


class Options(NamedTuple):
    """What the direction and the oracle rule say.

    Attributes:
        direction: 0 Frank-Wolfe, 1 pairwise, 2 away, 3 hybrid, 4 corrective.
        steps: Of the corrective direction.
        tolerance: Of the corrective direction.
        cache: Whether the cache may answer.
        factor: F of the cache rule.
        threshold: nu g / n of the cache rule.
        lam: Regularisation.
        by_gap: Whether blocks are drawn by their gaps, else in the given order.
    """

    direction: int
    steps: int
    tolerance: float
    cache: bool
    factor: float
    threshold: float
    lam: float
    by_gap: bool


class Scratch(NamedTuple):
    """Room for one block: potentials, one row of weights, prefixes of Viterbi, responses, directions, and the atoms."""

    emission: Any
    row: Any
    prefixes: Any
    response: Any
    pairs: Any
    delta: Any
    delta_pairs: Any
    corner: Any
    mass: Any
    hinge: Any
    score_loss: Any
    change: Any
    gram: Any
    work: Any
