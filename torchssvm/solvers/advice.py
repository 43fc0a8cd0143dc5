"""Warnings: features keep a run from its goal; it stopped short; its lambda is far too small or far too large."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchssvm.core.batch import Batch, Part, pass_over
from torchssvm.core.packages import warn
from torchssvm.core.structure import Structure
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.exact_pass import primal
from torchssvm.solvers.gdmm.reports import FactorwiseCertificate
from torchssvm.solvers.guess_lam import guess_lam, spread, steps_to_fit
from torchssvm.solvers.solver import Tolerance, is_within

FAR = 0.1
"""A run that ends with a larger gap than this share of its primal is far from the optimum."""

FAR_BELOW = 100.0
"""A lambda is far too small where the guess is more than so many times larger, and the run did not reach its gap."""

FAR_ABOVE = 10.0
"""A lambda is far too large only where it is more than so many times larger than the guess."""

LITTLE = 0.02
"""Weights are practically zero where the primal is less than this share below the primal of zero weights."""


SHARED = 0.5
"""Features share a direction if their mean has more than this share of their mean square."""

PASSES, PASSES_WITH_CACHE = 0.25, 0.08
"""Of ``|psi|^2 / (lam n L)`` along a direction that all examples share: the passes that a gap of 1 % takes at least."""


def warn_if_stiff(
    head: nn.Module,
    dual: DualState,
    fetch: Callable[[list[int]], Batch],
    max_passes: float,
    category: type[Warning] = UserWarning,
) -> None:
    """Warn before a run about a direction that all features share, if ``max_passes`` are too few for it.

    Every step along it undoes a part of all others. A full step on an example overshoots ``|psi|^2 / (lam n L)`` times
    at zero weights, here of features that are replaced by their mean: passes grow with it (docs/choosing.md). Only
    dense features are looked at. ``fetch`` gives the batch of some places, with what the head is given as ``x``.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # items may draw numbers
            examples = [fetch([place]) for place in spread(dual.num_examples)]
        if not all(isinstance(b.x, Tensor) and b.x.is_floating_point() and b.x.ndim > 1 for b in examples):
            return
        rows = torch.cat([b.x.flatten(0, -2).double() for b in examples])
        rows = rows[rows.any(1)]  # padding is zero
        mean, square = rows.mean(0), float(rows.square().sum(1).mean())
        share = float(mean.square().sum()) / square
        if not share > SHARED:
            return
        alike = [b.replace(x=torch.where(b.x.any(-1, keepdim=True), mean.to(b.x), 0.0)) for b in examples]
        ratios = steps_to_fit(head, dual.structure, alike)
        rate = PASSES_WITH_CACHE if dual.storage.keeps_labelings else PASSES
        passes = rate * sum(ratios) / len(ratios) / (dual.lam * dual.num_examples)
    except Exception:  # an advice never ends a run
        return
    if not max_passes < passes < math.inf:
        return
    column = int(mean.abs().argmax())
    cause, remedy = "all features point the same way", "subtract their mean"
    if float(mean[column].square()) > SHARED * square:
        cause, remedy = (
            f"column {column} is about {mean[column]:.3g} everywhere",
            f"divide it by {abs(mean[column]):.3g}",
        )
    warn(
        f"a gap of 1 % takes some {passes:,.0f} passes or more, beyond max_passes={max_passes:g}: {cause}, {share:.0%} "
        f"of the features' mean square. For fewer passes {remedy}, or give a larger lam",
        category,
    )


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
    return (
        f". lam={lam:.3g} is {guess / lam:,.0f} times below guess_lam(head, dataset), {_to_try(lam, guess, C)}: a "
        "larger lam takes fewer passes, and choose_lam finds the one that predicts best"
    )


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
