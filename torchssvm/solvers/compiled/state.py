"""The arrays of a compiled loop beside those of :mod:`torchssvm.kinds.examples`, shared with the dual."""

from __future__ import annotations

from typing import Any, NamedTuple


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
