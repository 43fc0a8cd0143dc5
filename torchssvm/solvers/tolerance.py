"""The gap at which a run ends: absolute, or relative to the primal."""

from __future__ import annotations

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
        if not 0.0 < as_number(self.share, "share") < 1.0:
            raise ValueError(f"share={self.share} must lie between 0 and 1, both excluded; 0.01 is one per cent")

    def __format__(self, spec: str) -> str:
        return f"{100 * self.share:g} % of the primal"


Tolerance = float | Relative
"""The largest gap: a number, or a share of the primal."""


def is_within(gap: float, tolerance: Tolerance, primal: float) -> bool:
    """Whether a gap is within the tolerance, at this primal."""
    return gap <= (tolerance.share * primal if isinstance(tolerance, Relative) else tolerance)


def expected(tolerance: Tolerance, last: Certificate | None) -> float:
    """The gap at which an exact pass is worth while.

    A share is taken of the dual, as the primal of the next pass will be lower than the last one: 0 before the first.
    """
    if not isinstance(tolerance, Relative):
        return tolerance
    return 0.0 if last is None else max(tolerance.share * last.dual, 0.0)


def check_tolerance(tolerance: Any) -> Tolerance:
    """``tolerance``, if it is a number of at least 0 or a :class:`Relative`.

    Raises:
        ValueError: It is negative or not finite.
        TypeError: It is neither.
    """
    return tolerance if isinstance(tolerance, Relative) else check_number(tolerance, "tolerance", 0.0)
