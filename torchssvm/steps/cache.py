"""Whether to ask the max oracle, or to go to a labeling that it returned before."""

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
    """Whether it looks at cached labelings: the dual must then be stored as ``Labelings()``."""

    def misses(self, gaps: Tensor, index: Tensor, dual: DualState) -> Tensor:
        """Where the cache is not good enough, ``[B]`` bool.

        Args:
            gaps: ``[B]`` float64, block gaps towards the best cached labeling; -inf where nothing is cached.
            index: ``[B]`` int64, the examples.
            dual: The dual state.
        """
        ...


class MaxOracle:
    """Always decode."""

    needs_labelings = False

    def misses(self, gaps: Tensor, index: Tensor, dual: DualState) -> Tensor:
        """Everywhere."""
        return torch.ones_like(index, dtype=torch.bool)

    def __repr__(self) -> str:
        return "MaxOracle()"


class CacheOracle:
    """Decode only where the cache promises too little ([G16] section 3.3, Algorithm 5).

    With g_i the block's gap when the max oracle last saw it, and g the last exact gap, the cached corner serves if its
    own block gap is at least ``max(factor g_i, floor g / n)``. Exact passes refresh both and fill the cache.

    Args:
        factor: F, the local part.
        floor: nu, the global part; what convergence is proved with ([G16] Theorem 3).

    Raises:
        ValueError: One of them is negative or not finite.
        TypeError: One of them is no number.
    """

    needs_labelings = True

    def __init__(self, factor: float = 0.25, floor: float = 0.01) -> None:
        self.factor = check_number(factor, "factor", 0.0)
        self.floor = check_number(floor, "floor", 0.0)

    def misses(self, gaps: Tensor, index: Tensor, dual: DualState) -> Tensor:
        """Where the best cached labeling's gap is below the threshold, or not positive."""
        # No local part is zero even where the last gap is not known: 0 * inf would be nan.
        threshold = self.factor * dual.oracle_gaps[index] if self.factor > 0.0 else torch.zeros_like(gaps)
        return (gaps < threshold.clamp(min=self.least(dual))) | (gaps <= 0.0)

    def least(self, dual: DualState) -> float:
        """``floor g / n``, or 0 where no exact pass has told g yet."""
        known = math.isfinite(dual.certified_gap)
        return self.floor * dual.certified_gap / dual.num_examples if known else 0.0

    def __repr__(self) -> str:
        return f"CacheOracle(factor={self.factor:g}, floor={self.floor:g})"
