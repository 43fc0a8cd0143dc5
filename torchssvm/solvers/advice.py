"""Warnings at the end of a run: it stopped short, or its lambda is far too small or far too large."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from torchssvm.core.batch import Part, pass_over
from torchssvm.core.packages import warn
from torchssvm.core.structure import Structure
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.exact_pass import primal
from torchssvm.solvers.gdmm.reports import FactorwiseCertificate
from torchssvm.solvers.guess_lam import guess_lam, spread
from torchssvm.solvers.solver import Tolerance, is_within

FAR = 0.1
"""A run that ends with a larger gap than this share of its primal is far from the optimum."""

FAR_BELOW = 100.0
"""A lambda is far too small where the guess is more than so many times larger, and the run did not reach its gap."""

FAR_ABOVE = 10.0
"""A lambda is far too large only where it is more than so many times larger than the guess."""

LITTLE = 0.02
"""Weights are practically zero where the primal is less than this share below the primal of zero weights."""


def guess_or_none(head: nn.Module, dataset: Any, structure: Structure) -> float | None:
    """What :func:`torchssvm.guess_lam` gives; None where it has no answer: an advice never ends a run that is done."""
    try:
        return guess_lam(head, dataset, structure=structure)
    except Exception:
        return None


def advice_if_small(lam: float, dual: DualState, head: nn.Module, dataset: Any, C: float | None = None) -> str:
    """What to try in the place of a lambda that is far too small, as a sentence; else empty."""
    guess = guess_or_none(head, dataset, dual.structure)
    if guess is None or guess < FAR_BELOW * lam:
        return ""
    return f". lam={lam:.3g} is {guess / lam:,.0f} times below guess_lam(head, dataset): try {_to_try(lam, guess, C)}"


def _to_try(lam: float, guess: float, C: float | None) -> str:
    return f"lam={guess:.3g}" + ("" if C is None else f" (C={C * lam / guess:.3g})")


def warn_if_zero(
    certificate: Certificate, dual: DualState, head: nn.Module, dataset: Any, C: float | None = None
) -> None:
    """Warn of a run whose weights are practically zero, since lambda is far too large.

    The weights that are learnt take ``lam/2 |w|^2`` off the primal, or more. Where that is little, the guess and a pass
    at zero weights decide. ``C`` is what lambda was given by, ``1 / (lam n)``; None if it was not.
    """
    if 0.5 * certificate.lam * dual.held_norm**2 > LITTLE * certificate.primal or dual.ranks:
        return
    trained = {name: parameter.detach() for name, parameter in head.named_parameters()}
    zeros = {name: torch.zeros_like(weight) for name, weight in trained.items()}
    structure, lam, few = dual.structure, certificate.lam, Part(dataset, spread(len(dataset)))

    def at(weights: dict[str, torch.Tensor], part: Any) -> float:
        call, batches = lambda *x: functional_call(head, weights, x), pass_over(part)
        return primal(call, structure, batches, lam, parameters=weights.values()).value

    try:
        if at(trained, few) < 0.5 * at(zeros, few):  # as of nearly all runs
            return
        guess = guess_or_none(head, dataset, structure)
        if guess is None or lam <= FAR_ABOVE * guess:
            return
        nothing = at(zeros, dataset)
    except Exception:
        return
    if certificate.primal >= (1.0 - LITTLE) * nothing > 0.0:
        warn(
            f"lam={lam:.3g} leaves the weights practically zero: the primal, {certificate.primal:.4g}, is "
            f"{100 * certificate.primal / nothing:.1f} % of the primal of zero weights. Try "
            f"{_to_try(lam, guess, C)}, from guess_lam(head, dataset)"
        )


def warn_if_short(certificate: Certificate, tolerance: Tolerance, max_passes: float, advice: str = "") -> None:
    """Warn of a run that ``max_passes`` ended before its tolerance, by the gap of the problem that was trained.

    ``advice`` is on its lambda, if that is small.
    """
    if is_within(certificate.gap, tolerance, certificate.primal):
        return
    far = ", far from the optimum" if certificate.relative_gap > FAR else ""
    warn(
        f"the run ended at max_passes={max_passes:g} with a gap{certificate.kind} of {certificate.gap:.4g}, "
        f"{100 * certificate.relative_gap:.3g} % of the primal{far}; tolerance asks for {tolerance:g}"
        + (advice or ". Give a larger max_passes, or a larger lam, which takes fewer passes")
    )


def warn_if_far(certificate: Certificate) -> None:
    """Warn of a run that ends with a gap above a tenth of the primal; GDMM closes the gap of the relaxation."""
    gap, primal, kind = certificate.gap, certificate.primal, certificate.kind
    if isinstance(certificate, FactorwiseCertificate):
        gap, primal = certificate.relaxed_gap, certificate.relaxed_primal
        kind = " of the relaxation" if certificate.has_relaxation else kind
    if gap > FAR * primal > 0.0:
        warn(
            f"the run ended far from the optimum: the gap{kind}, {gap:.4g}, is {100 * gap / primal:.0f} % of the "
            f"primal, {primal:.4g}. Train longer, or with a larger lam, which takes fewer passes"
        )


def warn_if_estimated_far(dual: DualState) -> None:
    """Warn of a run without a certificate whose estimated gap is above a tenth of the primal that it gives."""
    gap = dual.gap_estimate
    if (primal := dual.value() + gap) < math.inf and gap > FAR * primal > 0.0:
        warn(
            f"the run ended far from the optimum: the gap is estimated at {gap:.4g}, {100 * gap / primal:.0f} % of the "
            "primal. DualityGap() among the callbacks certifies the gap and ends a run at 1 % of the primal"
        )
