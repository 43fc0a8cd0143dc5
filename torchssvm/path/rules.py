"""How a breakpoint of the path is solved: to a certified gap, or to an estimated one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torchssvm.core.arguments import as_number
from torchssvm.core.row_sparse import squared_norm
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.solver import Tolerance, is_within
from torchssvm.solvers.trainer import ProgressLine


class Accuracy(NamedTuple):
    """The gap and the primal of the weights at one lambda, estimates where not certified, and how they change with it.

    At ``rho lam`` the gap of the same weights is ``gap + (1 - rho) slope`` (Delta of [G16] Proposition 1), and the
    primal ``primal - (1 - rho) lam/2 |w|^2``.
    """

    gap: float
    slope: float
    primal: float


@dataclass(frozen=True)
class Certified:
    """The epsilon-approximate path of [G16] Algorithm 7: every breakpoint ends with an exact pass.

    Args:
        kappa: The share of epsilon that a breakpoint is solved to, in (0, 1); the step to the next uses the rest.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> regularization_path(head, data, epsilon=0.1, lam_min=0.1, rule=Certified(kappa=0.8)).certified
        True
    """

    kappa: float = 0.9
    certified = True

    def __post_init__(self) -> None:
        _check_kappa(self.kappa)

    def first(self, trainer: Any, bound: float) -> Accuracy:
        """Accuracy by one exact pass; the gap is usually much smaller than ``bound``."""
        return self._accuracy(trainer.dual, trainer.certify())

    def next(self, trainer: Any, tolerance: Tolerance, max_passes: float, progress: bool | ProgressLine) -> Accuracy:
        """Train by the trainer's ``solve``."""
        return self._accuracy(trainer.dual, trainer.solve(tolerance, max_passes=max_passes, progress=progress))

    def _accuracy(self, dual: DualState, found: Certificate) -> Accuracy:
        # P - D changes by (1 - rho)(sum_i l_i - lam/2 |w|^2 - lam/2 |w(alpha)|^2). This holds for the held weights w,
        # despite their rounding, and for an upper bound in place of P. Under bounds the last term is
        # lam (<v, w> - |w|^2/2), and the formula is the same.
        slope = found.dual - dual.lam / 2 * squared_norm(dual.parameters)
        return Accuracy(found.gap, slope, found.dual + found.gap)


@dataclass(frozen=True)
class Heuristic:
    """The heuristic path of [G16] appendix K: a breakpoint is done once the sum of stale gaps is within kappa epsilon.

    Faster where breakpoints are close together. Proves nothing: it makes no exact pass.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> regularization_path(head, data, epsilon=0.1, lam_min=0.1, rule=Heuristic()).certified
        False
    """

    kappa: float = 0.7
    certified = False

    def __post_init__(self) -> None:
        _check_kappa(self.kappa)

    def first(self, trainer: Any, bound: float) -> Accuracy:
        """The bound of Algorithm 6."""
        return self._accuracy(trainer.dual, bound)

    def next(self, trainer: Any, tolerance: Tolerance, max_passes: float, progress: bool | ProgressLine) -> Accuracy:
        """Take steps until the sum of the stale gaps is within the tolerance."""
        dual = trainer.dual
        trainer.step()
        while dual.passes < max_passes:
            gap = dual.gap_estimate
            if is_within(gap, tolerance, dual.value() + gap):
                break
            trainer.step()
            if isinstance(progress, ProgressLine):
                progress.update(dual.passes, dual.gap_estimate, dual.value)
        return self._accuracy(dual, dual.gap_estimate)

    def _accuracy(self, dual: DualState, gap: float) -> Accuracy:
        slope = dual.total_loss - dual.lam * squared_norm(
            dual.parameters
        )  # under bounds, 0 or infinite, <v, w> = |w|^2
        return Accuracy(gap, slope, dual.value() + gap)


def _check_kappa(kappa: float) -> None:
    if not 0.0 < as_number(kappa, "kappa") < 1.0:
        raise ValueError(f"kappa={kappa} must lie between 0 and 1, both excluded")
