"""When an exact pass is worth its n oracle calls."""

from __future__ import annotations

import copy
import math
from typing import Protocol

from torchssvm.core.arguments import as_number, check_number, check_object
from torchssvm.solvers.certificate import Certificate


class Progress(Protocol):
    """How far a trainer is; a :class:`torchssvm.DualState` is one."""

    @property
    def num_examples(self) -> int:
        """N."""
        ...

    @property
    def passes(self) -> float:
        """Effective passes since the start."""
        ...

    @property
    def gap_estimate(self) -> float:
        """What the gap seems to be, without proof; infinite where nothing is known."""
        ...


class Schedule(Protocol):
    """Decides when an exact pass is worth its n oracle calls. Every run works on a copy of its own."""

    def due(self, progress: Progress, tolerance: float) -> bool:
        """Whether an exact pass should be made now; asked after every step, so it must be cheap.

        Args:
            progress: As the step left it: the dual, where the trainer has one; then ``oracle_calls`` can be read too.
            tolerance: The gap that the run is to reach.
        """
        ...

    def after(self, certificate: Certificate) -> None:
        """An exact pass was made."""
        ...


class EveryPasses:
    """An exact pass after every ``passes`` effective passes, 10 in [G16] section 3.

    Args:
        passes: Effective passes (n oracle calls each) between exact passes; positive.

    Raises:
        ValueError: ``passes`` is not positive.
    """

    def __init__(self, passes: float = 10.0) -> None:
        self.passes = check_number(passes, "passes", above=0.0, finite=False)
        self._last: float | None = None

    def due(self, progress: Progress, tolerance: float) -> bool:
        """Whether as many passes were made since the last exact pass, or since this was asked first."""
        if self._last is None or self._last > progress.passes:  # the latter after another dual
            self._last = progress.passes
        return progress.passes - self._last >= self.passes

    def after(self, certificate: Certificate) -> None:
        """Count from here."""
        self._last = certificate.passes


class WhenEstimated(EveryPasses):
    """An exact pass as soon as the stale gaps say that the run is over, and at the latest after ``passes`` passes.

    Args:
        passes: As in :class:`EveryPasses`.
        at_least: Effective passes after an exact pass before estimates are trusted again.
    """

    def __init__(self, passes: float = 10.0, at_least: float = 1.0) -> None:
        super().__init__(passes)
        self.at_least = self._wait = as_number(at_least, "at_least")
        if not 0.0 < at_least <= passes:
            raise ValueError(f"at_least={at_least} must be positive and at most passes={passes}")

    def due(self, progress: Progress, tolerance: float) -> bool:
        """Whether the sum of the gaps as last seen is within the tolerance, or it is time."""
        if super().due(progress, tolerance):
            return True
        assert self._last is not None
        return progress.passes - self._last >= self._wait and progress.gap_estimate <= tolerance

    def after(self, certificate: Certificate) -> None:
        """Count from here; longer each time where an approximate oracle leaves a gap that no step can close."""
        super().after(certificate)
        self._wait = self.at_least if certificate.exact else min(2 * self._wait, self.passes)


def counting_from(progress: Progress, schedule: Schedule) -> Schedule:
    """A copy of the schedule that counts passes from here, where it would begin after the first step.

    Raises:
        TypeError: ``schedule`` is no such object.
    """
    check_object(schedule, "schedule", "due", "EveryPasses()")
    schedule = copy.deepcopy(schedule)
    schedule.due(progress, -math.inf)
    return schedule
