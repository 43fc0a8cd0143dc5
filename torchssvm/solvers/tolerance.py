"""The gap at which a run ends: absolute, or relative to the primal."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

from torchssvm.core.arguments import as_number, check_number
from torchssvm.solvers.certificate import Certificate


@dataclass(frozen=True)
class Relative:
    """A gap of at most ``share`` of the primal: the objective is then proved to be that close to its optimum.

    Args:
        share: Between 0 and 1, both excluded; 0.01 is one per cent.

    Raises:
        ValueError: ``share`` is out of range.
        TypeError: ``share`` is not a number.

    Example:
        >>> solve(LinearMulticlass(4, 3), data, lam=0.01, tolerance=Relative(0.1)).relative_gap <= 0.1
        True
    """

    share: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", as_number(self.share, "share"))  # a NumPy number cannot be saved safely
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"share={self.share} must lie between 0 and 1, both excluded; 0.01 is one per cent")

    def __format__(self, spec: str) -> str:
        return f"{100 * self.share:g} % of the primal"


Tolerance = float | Relative
"""The largest gap: a number, or a share of the primal."""


def largest_gap(tolerance: Tolerance, primal: float) -> float:
    """The largest gap that a tolerance allows at this primal."""
    return tolerance.share * primal if isinstance(tolerance, Relative) else tolerance


def is_within(gap: float, tolerance: Tolerance, primal: float) -> bool:
    """Whether a gap is within the tolerance, at this primal."""
    return gap <= largest_gap(tolerance, primal)


def percent(share: float) -> str:
    """A share to two digits, and 100 % as such."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def times(tolerance: Tolerance, factor: float) -> Tolerance:
    """A tolerance that allows ``factor`` times the gap; ``factor`` is at most 1."""
    return Relative(factor * tolerance.share) if isinstance(tolerance, Relative) else factor * tolerance


def expected(tolerance: Tolerance, last: Certificate | None) -> float:
    """The gap at which an exact pass is worth while.

    A share is taken of the dual, as the primal of the next pass will be lower than the last one: 0 before the first.
    """
    if not isinstance(tolerance, Relative):
        return tolerance
    return 0.0 if last is None else max(tolerance.share * last.dual, 0.0)


def check_tolerance(tolerance: Any, name: str = "tolerance", *, above: float = -math.inf) -> Tolerance:
    """``tolerance``, if it is a number of at least 0 or a :class:`Relative`.

    Args:
        tolerance: The argument.
        name: Its name in error messages.
        above: An exclusive lower bound of numbers.

    Raises:
        ValueError: It is out of range or not finite.
        TypeError: It is neither.
    """
    if isinstance(tolerance, Relative):
        return tolerance
    if isinstance(tolerance, bool) or not isinstance(tolerance, numbers.Real):
        raise TypeError(
            f"{name}={tolerance!r} must be a number, not a {type(tolerance).__name__}; Relative(0.01) is one per cent "
            "of the primal"
        )
    if above > -math.inf:
        return check_number(tolerance, name, above=above)
    return check_number(tolerance, name, 0.0)
