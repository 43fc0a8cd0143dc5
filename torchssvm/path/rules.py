"""How a breakpoint of the path is solved: with a proof, or on estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import nn

from torchssvm.core.arguments import as_number
from torchssvm.core.batch import in_order
from torchssvm.core.row_sparse import squared_norm
from torchssvm.path.recipe import MakeOptimizer
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import certify
from torchssvm.solvers.run_options import RunOptions
from torchssvm.solvers.training import Steps, solve


class Training(NamedTuple):
    """What is needed to train at one lambda, from where the dual stands.

    Attributes:
        head: The head.
        loss: The block gap of its dual.
        dataset: The training set.
        options: Size and order of batches, and when exact passes are made.
        max_passes: Effective passes of the dual that must not be exceeded.
        make_optimizer: Makes the optimizer of the dual; bounds on the weights are chosen here.
    """

    head: nn.Module
    loss: BlockGap
    dataset: Any
    options: RunOptions
    max_passes: float
    make_optimizer: MakeOptimizer


class Accuracy(NamedTuple):
    """What is known of the weights at one lambda.

    Attributes:
        gap: Their gap; an estimate where it was not certified.
        slope: Delta of [G16] Proposition 1: at ``rho lam`` the gap of the same weights is ``gap + (1 - rho) slope``.
    """

    gap: float
    slope: float


class PathRule(Protocol):
    """Solves one breakpoint to kappa epsilon."""

    @property
    def kappa(self) -> float:
        """Which share of epsilon a breakpoint is solved to, in (0, 1). The rest is for the step to the next one."""
        ...

    @property
    def certified(self) -> bool:
        """Whether the gaps are proved."""
        ...

    def first(self, training: Training, bound: float) -> Accuracy:
        """Accuracy at the largest breakpoint, where the weights and the bound of their gap are those of Algorithm 6."""
        ...

    def next(self, training: Training, tolerance: float) -> Accuracy:
        """Train to the tolerance, or until there are no passes left."""
        ...


@dataclass(frozen=True)
class Certified:
    """The epsilon-approximate path of [G16] Algorithm 7: every breakpoint ends with an exact pass."""

    kappa: float = 0.9
    certified = True

    def __post_init__(self) -> None:
        _check_kappa(self.kappa)

    def first(self, training: Training, bound: float) -> Accuracy:
        """By one exact pass; the gap is usually much smaller than its bound."""
        certificate = certify(
            training.head, training.loss.dual, in_order(training.dataset, collate_fn=training.options.collate_fn)
        )
        return self._accuracy(training, certificate.gap, certificate.dual)

    def next(self, training: Training, tolerance: float) -> Accuracy:
        """By :func:`torchssvm.solve`."""
        certificate = solve(
            training.head,
            training.loss,
            training.dataset,
            tolerance=tolerance,
            max_passes=training.max_passes,
            optimizer=training.make_optimizer(training.loss.dual),
            options=training.options,
        )
        return self._accuracy(training, certificate.gap, certificate.dual)

    def _accuracy(self, training: Training, gap: float, value: float) -> Accuracy:
        # P - D changes by (1 - rho)(sum_i l_i - lam/2 |w|^2 - lam/2 |w(alpha)|^2), for the very weights that are held,
        # however rounding has moved them from w(alpha), and with an upper bound in place of P too. Under bounds the
        # last term is lam (<v, w> - |w|^2/2), and the sum is the same.
        dual = training.loss.dual
        return Accuracy(gap, value - dual.lam / 2 * squared_norm(dual.parameters))


@dataclass(frozen=True)
class Heuristic:
    """The heuristic path of [G16] appendix K: breakpoints are left as soon as the stale gaps add up to little enough.

    Quicker where many breakpoints are close to each other, and without any proof: no exact pass is made.
    """

    kappa: float = 0.7
    certified = False

    def __post_init__(self) -> None:
        _check_kappa(self.kappa)

    def first(self, training: Training, bound: float) -> Accuracy:
        """The bound of Algorithm 6."""
        return self._accuracy(training, bound)

    def next(self, training: Training, tolerance: float) -> Accuracy:
        """Steps until the sum of the gaps as last seen is within the tolerance."""
        dual = training.loss.dual
        optimizer = training.make_optimizer(dual)
        with Steps(training.head, training.loss, training.dataset, training.options, optimizer=optimizer) as steps:
            for _ in steps:
                if dual.gap_estimate <= tolerance or dual.passes >= training.max_passes:
                    break
        return self._accuracy(training, dual.gap_estimate)

    def _accuracy(self, training: Training, gap: float) -> Accuracy:
        dual = training.loss.dual  # within bounds that are 0 or infinite, <v, w> = |w|^2
        return Accuracy(gap, float(dual.loss.sum()) - dual.lam * squared_norm(dual.parameters))


def _check_kappa(kappa: float) -> None:
    if not 0.0 < as_number(kappa, "kappa") < 1.0:
        raise ValueError(f"kappa={kappa} must lie between 0 and 1, both excluded")
