"""Runs whose lambda is far from any sense, and which one to try in its place."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from torchssvm.core.batch import pass_over
from torchssvm.core.caller import warn
from torchssvm.core.structure import Structure
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.guess_lam import guess_lam
from torchssvm.solvers.objective import primal

FAR_BELOW = 100.0
"""A lambda is far too small where the guess is more than so many times larger, and the run did not reach its gap."""

FAR_ABOVE = 10.0
"""A lambda is far too large only where it is more than so many times larger than the guess."""

LITTLE = 0.02
"""Weights are practically zero where the primal is less than this share below that of zero weights."""


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
    return f". lam={lam:.3g} is {guess / lam:,.0f} times below that of guess_lam: try {_to_try(lam, guess, C)}"


def _to_try(lam: float, guess: float, C: float | None) -> str:
    return f"lam={guess:.3g}" + ("" if C is None else f" (C={C * lam / guess:.3g})")


def warn_if_zero(
    certificate: Certificate,
    dual: DualState,
    head: nn.Module,
    dataset: Any,
    C: float | None = None,
) -> None:
    """Warn of a run whose weights are practically zero, since lambda is far too large.

    The weights that are learnt take ``lam/2 |w|^2`` off the primal, or more. Where that is little, the guess and a pass
    at zero weights decide.

    Args:
        certificate: Of the run's end.
        dual: The dual.
        head: The head.
        dataset: The training set.
        C: What lambda was given by, ``1 / (lam n)``; None if it was not.
    """
    if 0.5 * certificate.lam * dual.held_norm**2 > LITTLE * certificate.primal or dual.ranks:
        return
    guess = guess_or_none(head, dataset, dual.structure)
    if guess is None or certificate.lam <= FAR_ABOVE * guess:
        return
    zeros = {name: torch.zeros_like(parameter) for name, parameter in head.named_parameters()}

    def without_weights(*inputs: Any) -> Any:
        return functional_call(head, zeros, inputs)

    batches, lam = pass_over(dataset), certificate.lam
    try:
        nothing = primal(without_weights, dual.structure, batches, lam, parameters=zeros.values()).value
    except Exception:
        return
    if certificate.primal >= (1.0 - LITTLE) * nothing > 0.0:
        warn(
            f"lam={certificate.lam:.3g} leaves the weights practically zero: the primal, {certificate.primal:.4g}, is "
            f"{100 * certificate.primal / nothing:.1f} % of that of zero weights. Try "
            f"{_to_try(certificate.lam, guess, C)}, which is that of guess_lam"
        )
