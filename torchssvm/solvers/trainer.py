"""The methods that all trainers share, and the loop that runs them to a certified gap."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from torchssvm.core.arguments import check_number, check_object
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.progress_line import ProgressLine, shown
from torchssvm.solvers.solver import (
    Progress,
    Relative,
    Schedule,
    Tolerance,
    WhenEstimated,
    check_tolerance,
    expected,
    is_within,
    visited,
)

IDLE_EPOCHS = 100
"""An exact pass is due after this many epochs of visits without an oracle call, where a trainer says nothing else."""

HALF_DRIFT = 5.0
"""Epochs of visits after an exact pass in which half of what the estimate will be off has come; measured."""

LEAST_DRIFT, MOST_DRIFT = -0.75, 3.0
"""The gap is taken for a quarter of its estimate at least, and for four times at most."""

PACED = ("asked", "asked_hits", "cache_hits", "visits", "drift")
"""The entries of a :class:`Pacing`'s state."""

Proof = TypeVar("Proof", bound=Certificate)


@runtime_checkable
class Trainer(Protocol):
    """Trains a head on a training set: ``step``, ``certify``, ``solve`` and a state.

    :class:`torchssvm.CompiledBCFW`, :class:`torchssvm.TorchLoop`, :class:`torchssvm.GDMM` and
    :class:`torchssvm.solvers.kernel.KernelSSVM` are trainers; :func:`torchssvm.solve` chooses one and runs it.

    :class:`torchssvm.BCFW` is an optimizer of the user's loop: it sees gradients but no examples, so it shares only
    ``step``, ``state_dict`` and ``load_state_dict`` with trainers. As a trainer it is :class:`torchssvm.TorchLoop`.

    Example:
        >>> trainer = make_trainer(LinearMulticlass(4, 3), data, lam=0.1)
        >>> isinstance(trainer, Trainer)
        True
        >>> trainer.solve(tolerance=Relative(0.05)).relative_gap <= 0.05
        True
        >>> trainer.solve(tolerance=Relative(0.01)).relative_gap <= 0.01  # goes on
        True
    """

    def step(self) -> Any:
        """Take one step; the result describes it."""

    def certify(self) -> Certificate:
        """The certificate of the weights that the head holds; the weights move at most by their drift from the dual."""

    def solve(
        self,
        tolerance: Tolerance,
        *,
        max_passes: float = math.inf,
        on_check: Callable[[Any], None] | None = None,
        progress: bool = True,
    ) -> Certificate:
        """Take steps until a certificate's gap is at most ``tolerance``, from the trainer's current state.

        Args:
            tolerance: The gap to reach: a number of at least 0, or ``Relative(0.01)``, a share of the primal.
            max_passes: Stop at this many effective passes, those before this call included.
            on_check: Called with every certificate.
            progress: Whether one line on stderr shows gap, dual, passes and seconds; it changes no bit of the run.

        Returns:
            The last certificate, of the weights as they are.

        Raises:
            ValueError: An argument is out of range.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything but the training set that later steps depend on, in tensors, numbers and strings."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue bit for bit from a state; if the state does not fit, nothing changes."""


class Pacing:
    """Says when a run makes its exact passes, and what the gap is between them; every run has another.

    The sum of the last known gaps drifts away from the gap: a gap is known before the step on its block, or from the
    cache alone, and other blocks move the weights. How far it was off at an exact pass corrects it after that pass.

    ``counters`` is the dual, where the trainer has one; a copy of ``schedule`` is used, None is ``WhenEstimated()``. An
    exact pass is due, too, after ``idle_epochs`` of visits that the cache answered. Of ``value``, the dual objective
    now, a share is taken before the first exact pass; None waits for that pass.
    """

    def __init__(
        self,
        counters: Progress,
        tolerance: Tolerance,
        *,
        max_passes: float = math.inf,
        schedule: Schedule | None = None,
        idle_epochs: float = IDLE_EPOCHS,
        value: Callable[[], float] | None = None,
    ) -> None:
        self._value = value if isinstance(tolerance, Relative) else None
        self._schedule = copy.deepcopy(schedule) if schedule is not None else WhenEstimated()
        check_object(self._schedule, "schedule", "due", "WhenEstimated()")
        self.counters, self.tolerance, self.max_passes, self.idle_epochs = counters, tolerance, max_passes, idle_epochs
        self._worth = expected(tolerance, None)  # the gap at which an exact pass is worth while
        self._asked: float | None = None  # passes when the schedule was asked first: it may count from this number
        self._asked_hits: int | None = None  # of the cache, when it was asked first after an exact pass
        self._hits = self._cache_hits
        self._visits = visited(counters)  # epochs of visits at the last exact pass
        self._drift: float | None = None  # where the gap over its estimate would end, less 1; None before two passes

    @property
    def _cache_hits(self) -> int:
        return getattr(self.counters, "cache_hits", 0)

    @property
    def _age(self) -> float:
        """How much of the drift has come since the last exact pass, from 0 to 1."""
        epochs = max(visited(self.counters) - self._visits, 0.0)
        return epochs / (epochs + HALF_DRIFT)

    @property
    def _correction(self) -> float:
        return 1.0 + (self._drift or 0.0) * self._age

    @property
    def gap_estimate(self) -> float:
        """The gap now, by the last known gaps and by how far they were off at the last exact pass; no proof."""
        return self._correction * self.counters.gap_estimate

    @property
    def spent(self) -> bool:
        """Whether ``max_passes`` are made."""
        return self.counters.passes >= self.max_passes

    @property
    def due(self) -> bool:
        """Whether an exact pass should be made now; asked after every step."""
        if self._asked is None:
            self._asked = self.counters.passes
        if self._asked_hits is None:
            self._asked_hits = self._cache_hits
        estimate = self.counters.gap_estimate
        if self._value is not None and isinstance(self.tolerance, Relative) and estimate < math.inf:
            self._worth = max(self.tolerance.share * self._value(), 0.0)
        idle = self._cache_hits - self._hits >= self.idle_epochs * self.counters.num_examples
        wanted = self._schedule.due(self.counters, self._worth / self._correction)
        return wanted or self.spent or idle or estimate == 0.0

    def certify(self, certify: Callable[[], Proof]) -> Proof:
        """Make an exact pass, count from it, and learn from it how far the estimate is off."""
        estimate, age, before = self.counters.gap_estimate, self._age, self._drift
        certificate = certify()
        self.after(certificate)
        if 0.0 < estimate < math.inf and age > 0.0:
            drift = min(max((certificate.gap / estimate - 1.0) / age, LEAST_DRIFT), MOST_DRIFT)
            self._drift = drift if before is None else (before + drift) / 2  # single passes are noisy
        return certificate

    def after(self, certificate: Certificate) -> None:
        """Count from this exact pass."""
        self._worth, self._value = expected(self.tolerance, certificate), None
        self._schedule.after(certificate)
        self._asked_hits, self._hits, self._visits = None, self._cache_hits, visited(self.counters)

    def state_dict(self) -> dict[str, Any]:
        """What the certificates of the run do not say."""
        counts = self._asked, self._asked_hits, self._hits, self._visits, self._drift
        return dict(zip(PACED, counts, strict=True))

    def resume(self, state: dict[str, Any], certificates: Sequence[Certificate]) -> None:
        """Continue a run from its :meth:`state_dict` and its certificates so far."""
        asked, hits = state.get("asked"), state.get("asked_hits")
        self._ask(asked, hits)
        for certificate in certificates:
            self.after(certificate)
        if certificates and hits is not None:
            self._ask(certificates[-1].passes, hits)
        self._asked, self._asked_hits, self._hits = asked, hits, state.get("cache_hits", 0)
        self._visits, self._drift = state.get("visits", self._visits), state.get("drift")

    def _ask(self, passes: float | None, hits: int | None) -> None:
        """Let the schedule count from these numbers; None is not asked yet."""
        if passes is not None:
            past: Any = SimpleNamespace(num_examples=1, gap_estimate=math.inf, passes=passes, cache_hits=hits or 0)
            self._schedule.due(past, -math.inf)


def run_until(
    steps: Iterable[int],
    counters: Progress,
    certify: Callable[[], Proof],
    *,
    tolerance: Tolerance,
    max_passes: float = math.inf,
    schedule: Schedule | None = None,
    on_check: Callable[[Proof], None] | None = None,
    reached: Callable[[Proof], bool] | None = None,
    progress: bool | ProgressLine = True,
    value: Callable[[], float] | None = None,
    idle_epochs: float = IDLE_EPOCHS,
) -> Proof:
    """Take steps until an exact pass, ``certify()``, proves that the gap is within ``tolerance``.

    Limits, ``schedule`` and ``idle_epochs`` go to :class:`Pacing`.

    Args:
        steps: Endless iterator that takes the steps; yields the number of examples that each visited.
        reached: Whether a certificate ends the run; None: the gap is within the tolerance, or no example has a gap.
        progress: Whether a line on stderr follows the run, or the line of a caller's run.
        value: The dual objective now, for that line, and for when the first exact pass is due by a share of the primal.
    """
    check_limits(tolerance, max_passes)
    grad = torch.set_grad_enabled(torch.is_grad_enabled())  # an interrupt inside no_grad leaves gradients off
    with grad, shown(progress) as line:
        pacing = Pacing(
            counters, tolerance, max_passes=max_passes, schedule=schedule, idle_epochs=idle_epochs, value=value
        )

        def check() -> tuple[Proof, bool]:
            certificate = pacing.certify(certify)
            if line is not None:
                line.certified(certificate)
                if on_check is not None:
                    line.clear()  # the callback may print
            if on_check is not None:
                on_check(certificate)
            enough = counters.gap_estimate == 0.0 or is_within(certificate.gap, tolerance, certificate.primal)
            return certificate, pacing.spent or (enough if reached is None else reached(certificate))

        gap = counters.gap_estimate
        known = value() + gap if value is not None and gap < math.inf else 0.0  # an estimate of the primal
        if is_within(gap, tolerance, known) or pacing.spent:
            certificate, over = check()
            if over:
                return certificate
        for visits in steps:
            if line is not None:
                line.update(counters.passes, pacing.gap_estimate, value)
            if pacing.due or not visits:
                certificate, over = check()
                if over:
                    return certificate
        raise AssertionError("steps do not end")


class DualTrainer:
    """A trainer with a :class:`torchssvm.DualState`; it solves by steps and exact passes.

    Subclasses have ``dual``, ``step`` and ``certify``.
    """

    dual: DualState
    schedule: Schedule | None = None
    """What ``solve`` follows where it is given no schedule."""
    idle_epochs: float = IDLE_EPOCHS
    """An exact pass is due after so many epochs of visits without an oracle call."""
    step: Callable[..., Any]
    certify: Callable[..., Certificate]

    @property
    def damps(self) -> bool:
        """Whether steps of labelings damp the weights where lambda is small."""
        return False

    def solve(
        self,
        tolerance: Tolerance,
        *,
        max_passes: float = math.inf,
        schedule: Schedule | None = None,
        on_check: Callable[[Certificate], None] | None = None,
        progress: bool | ProgressLine = True,
    ) -> Certificate:
        """Take steps until an exact pass proves that the gap is within ``tolerance``; as :meth:`Trainer.solve`.

        Args:
            tolerance: A number, or ``Relative(share)`` of the primal.
            on_check, progress: As in :meth:`Trainer.solve`.
            max_passes: The run stops after the step that reaches it; the certificate takes one more pass.
            schedule: When exact passes are made, asked after every step; None is the schedule of the solver
                given to :func:`torchssvm.make_trainer`, else the trainer's: see ``Solver.schedule``.

        Raises:
            ValueError: An argument is out of range.
            TypeError: ``schedule`` is not a Schedule.
        """
        return run_until(
            self._steps(max_passes),
            self.dual,
            self.certify,
            tolerance=tolerance,
            max_passes=max_passes,
            schedule=schedule if schedule is not None else self.schedule,
            on_check=on_check,
            progress=progress,
            value=self.dual.value,
            idle_epochs=self.idle_epochs,
        )

    def _steps(self, max_passes: float) -> Iterator[int]:
        dual = self.dual
        while True:
            before = dual.oracle_calls + dual.cache_hits
            self.advance(max_passes - dual.passes)
            yield dual.oracle_calls + dual.cache_hits - before

    def advance(self, passes: float) -> Any:
        """A step of a run that may make so many more passes."""
        return self.step()


def check_limits(tolerance: Tolerance, max_passes: float) -> None:
    """Raise ValueError or TypeError for limits that no run can meet."""
    check_tolerance(tolerance)
    check_number(max_passes, "max_passes", above=0.0, finite=False)
    if tolerance == 0 and max_passes == math.inf:
        raise ValueError("tolerance=0 is never reached: give max_passes, or a positive tolerance")
