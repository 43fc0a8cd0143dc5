"""The arrays of a compiled loop beside those of :mod:`torchssvm.kinds.examples`, shared with the dual."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


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


def without_slots(n: int, longest: int, dtype: Any) -> dict[str, Any]:
    """All arrays of mean parts but those of their rest: n blocks, of ``longest`` labels at most."""
    return {
        "count": np.zeros(n, np.int64),
        "mass": np.zeros((n, 0)),
        "loss": np.zeros((n, 0)),
        "used": np.zeros((n, 0), np.int64),
        "labelings": np.zeros((n, 0, longest), np.int8),
        "gram": np.zeros((1, 1, 1), dtype),
        "known": np.zeros((n, 0), np.bool_),
        "rest_mass": np.ones(n),
        "rest_loss": np.zeros(n),
        "mixed": np.ones(n, np.bool_),
    }


class Scalars(NamedTuple):
    """Numbers of each example: l_i, the last gap, and the gap at the last oracle call."""

    loss: Any
    gaps: Any
    oracle_gaps: Any


class Options(NamedTuple):
    """The parameters of the direction and of the oracle rule."""

    direction: int  # the ``rule`` of the direction
    steps: int  # steps of the corrective direction
    tolerance: float  # tolerance of the corrective direction
    cache: bool  # whether the cache may answer
    factor: float  # F of the cache rule
    threshold: float  # nu g / n of the cache rule
    lam: float  # regularisation
    num_examples: int  # n
    by_gap: bool  # whether blocks are drawn by their gaps, else in the given order
    power: float = 1.0  # blocks are drawn in proportion to this power of the gap
    gap: float = np.inf  # where whole blocks are solved, that after the last round of all; infinite in such a round
    most: float = np.inf  # where whole blocks are solved, a sweep ends after the round with this oracle call
    relaxation: float = 1.0  # how many times an exact step is taken; 2 would leave the dual as it is
