"""What a checkpoint says of GDMM itself, the duals apart."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.schema import require

NUMBERS: dict[str, type] = {
    "rho": float,
    "sweeps": int,
    "oracle_calls": int,
    "violation": float,
    "worst_violation": float,
    "best_dual": float,
    "best_relaxed_dual": float,
}
"""Attributes of :class:`torchssvm.GDMM` that are saved as they are."""


class Loaded(NamedTuple):
    """What :func:`read_state` found: :data:`NUMBERS`, the visits of a pass under way, and the order of the next.

    ``features`` is the digest of the features that the duals were trained on.
    """

    numbers: dict[str, Any]
    features: int
    visits: np.ndarray
    visited: Tensor
    generator: torch.Generator


def read_state(own: Any, lam: float, num_examples: int) -> Loaded:
    """Check a state; changes nothing.

    Args:
        own: The part of the checkpoint that is GDMM's.
        lam: Of the GDMM that is to go on, like the next.
        num_examples: n.

    Raises:
        ValueError: It is of another problem, or damaged.
    """
    numbers = {name: require(own, name, kind, "gdmm") for name, kind in NUMBERS.items()}
    for name, number in numbers.items():
        if not (math.isfinite(number) and number >= 0) or (name == "rho" and number == 0.0):
            raise ValueError(f"the checkpoint is damaged: gdmm[{name!r}] is {number}, which it cannot be")
    features = require(own, "features", int, "gdmm")
    for name, value in (("lam", lam), ("num_examples", num_examples)):
        if require(own, name, type(value), "gdmm") != value:
            raise ValueError(f"the checkpoint is of {name}={own[name]}, and this GDMM of {value}")
    visits, visited, generator = (require(own, name, Tensor, "gdmm") for name in ("visits", "visited", "generator"))
    if visits.shape != (3,) or visits.dtype != torch.float64 or not bool((visits >= 0.0).all()):
        raise ValueError("the checkpoint is damaged: gdmm['visits'] should hold 3 numbers")
    if visited.shape != (num_examples,) or visited.dtype != torch.bool:
        raise ValueError(f"the checkpoint is damaged: gdmm['visited'] should be bool [{num_examples}]")
    order = torch.Generator()
    try:
        order.set_state(generator)
        if generator.ndim != 1:
            raise TypeError("it has more than one axis")
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"the checkpoint is damaged: gdmm['generator'] is no random state ({error})") from error
    return Loaded(numbers, features, visits.numpy().copy(), visited.clone(), order)
