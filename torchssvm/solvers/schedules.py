"""When an exact pass is worth its n oracle calls, and the gap at which a run ends."""

from __future__ import annotations

import copy
import math
import numbers
from dataclasses import dataclass
from typing import Any, Protocol

from torchssvm.core.arguments import as_number, check_number, check_object
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
    """``tolerance``, if it is a finite number of at least 0, or ``above`` a bound, or a :class:`Relative`;
    else an error.
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


class Progress(Protocol):
    """The progress of a trainer; :class:`torchssvm.DualState` implements it."""

    @property
    def num_examples(self) -> int:
        """n, the size of the training set."""

    @property
    def passes(self) -> float:
        """Effective passes since the start."""

    @property
    def gap_estimate(self) -> float:
        """An unproved estimate of the gap; infinite where nothing is known."""


class Schedule(Protocol):
    """Decides when an exact pass is worth its n oracle calls. Every run uses its own copy."""

    def due(self, progress: Progress, tolerance: float) -> bool:
        """Whether an exact pass should be made now; asked after every step, so it must be cheap.

        Args:
            progress: The state after the step: the dual, where the trainer has one, with its ``oracle_calls``.
            tolerance: The gap that the run should reach.
        """

    def after(self, certificate: Certificate) -> None:
        """Called after every exact pass."""


class EveryPasses:
    """An exact pass after every ``passes`` effective passes, 10 in [G16] section 3.

    Args:
        passes: Effective passes (n oracle calls each) between exact passes; positive.

    Raises:
        ValueError: ``passes`` is not positive.

    Example:
        >>> solver = Solver(schedule=EveryPasses(5))
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    def __init__(self, passes: float = 10.0) -> None:
        self.passes = check_number(passes, "passes", above=0.0, finite=False)
        self._last: float | None = None

    def due(self, progress: Progress, tolerance: float) -> bool:
        """Whether ``passes`` passes were made since the last exact pass, or since the first call."""
        if self._last is None or self._last > progress.passes:  # the count is larger if it is that of another dual
            self._last = progress.passes
        return progress.passes - self._last >= self.passes

    def after(self, certificate: Certificate) -> None:
        """Count from this pass."""
        self._last = certificate.passes


class WhenEstimated(EveryPasses):
    """An exact pass as soon as the stale gaps are within the tolerance, and at the latest after ``passes`` passes.

    Args:
        passes: As in :class:`EveryPasses`.
        at_least: Effective passes after an exact pass before estimates are trusted again.

    Example:
        >>> solver = Solver(schedule=WhenEstimated(passes=20))
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    def __init__(self, passes: float = 10.0, at_least: float = 1.0) -> None:
        super().__init__(passes)
        self.at_least = self._wait = as_number(at_least, "at_least")
        if not 0.0 < at_least <= passes:
            raise ValueError(f"at_least={at_least} must be positive and at most passes={passes}")

    def due(self, progress: Progress, tolerance: float) -> bool:
        """Whether the sum of the stale gaps is within the tolerance, or ``passes`` passes were made."""
        if super().due(progress, tolerance):
            return True
        assert self._last is not None
        return progress.passes - self._last >= self._wait and progress.gap_estimate <= tolerance

    def after(self, certificate: Certificate) -> None:
        """Count from this pass; wait longer each time where an approximate oracle leaves a gap that no step closes."""
        super().after(certificate)
        self._wait = self.at_least if certificate.exact else min(2 * self._wait, self.passes)


def counting_from(progress: Progress, schedule: Schedule) -> Schedule:
    """A copy of the schedule that counts passes from now on, not from the first step on; TypeError for
    another object.
    """
    check_object(schedule, "schedule", "due", "EveryPasses()")
    schedule = copy.deepcopy(schedule)
    schedule.due(progress, -math.inf)
    return schedule
