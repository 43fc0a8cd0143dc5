"""Whether to call the max oracle or to reuse a cached labeling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from torchssvm.core.arguments import check_number

if TYPE_CHECKING:
    from torchssvm.dual.state import DualState


class OracleRule(Protocol):
    """Decides for which blocks of a batch the max oracle is called."""

    needs_labelings: bool
    """Whether the rule reads cached labelings; it then needs ``storage=Labelings()``."""

    def misses(self, gaps: Tensor, index: Tensor, dual: DualState) -> Tensor:
        """Blocks for which the oracle is called, ``[B]`` bool.

        Args:
            gaps: ``[B]`` float64, block gaps towards the best cached labeling; -inf if none is cached.
            index: ``[B]`` int64, the examples.
            dual: The dual state.
        """
        ...


class MaxOracle:
    """Always decode.

    Example:
        >>> certificate = solve(LinearMulticlass(4, 3), data, lam=0.1, solver=Solver(oracle=MaxOracle()))
        >>> certificate.relative_gap <= 0.01
        True
    """

    needs_labelings = False

    def misses(self, gaps: Tensor, index: Tensor, dual: DualState) -> Tensor:
        """Everywhere."""
        return torch.ones_like(index, dtype=torch.bool)

    def __repr__(self) -> str:
        return "MaxOracle()"


class CacheOracle:
    """Decode only if the block gap of the best cached labeling is small ([G16] section 3.3, Algorithm 5).

    With g_i the block's gap at its last oracle call, and g the last exact gap, the cached labeling is used if its own
    block gap is at least ``max(factor g_i, floor g / n)``. Exact passes refresh g_i and g, and fill the cache.

    Args:
        factor: F, the local criterion.
        floor: nu, the global criterion; convergence needs it positive ([G16] Theorem 3).

    Raises:
        ValueError: An argument is negative or not finite.
        TypeError: An argument is not a number.

    Example:
        >>> solver = Solver(oracle=CacheOracle(factor=0.5), storage=Labelings())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    needs_labelings = True

    def __init__(self, factor: float = 0.25, floor: float = 0.01) -> None:
        self.factor = check_number(factor, "factor", 0.0)
        self.floor = check_number(floor, "floor", 0.0)

    def misses(self, gaps: Tensor, index: Tensor, dual: DualState) -> Tensor:
        """Where the best cached labeling's gap is below the threshold, or not positive."""
        # 0 * inf would be nan where g_i is unknown.
        threshold = self.factor * dual.oracle_gaps[index] if self.factor > 0.0 else torch.zeros_like(gaps)
        return (gaps < threshold.clamp(min=self.least(dual))) | (gaps <= 0.0)

    def least(self, dual: DualState) -> float:
        """``floor g / n``; 0 before the first exact pass."""
        known = math.isfinite(dual.certified_gap)
        return self.floor * dual.certified_gap / dual.num_examples if known else 0.0

    def __repr__(self) -> str:
        return f"CacheOracle(factor={self.factor:g}, floor={self.floor:g})"
