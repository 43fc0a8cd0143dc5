"""A first lambda, from how far one example alone would move the weights, and the advice that runs draw from it."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from torchssvm.core.arguments import check_dataset
from torchssvm.core.batch import Part, apply_head, check_fits, fetcher, pass_over, to_device
from torchssvm.core.operators import full_precision
from torchssvm.core.packages import warn
from torchssvm.core.problem import find_structure
from torchssvm.core.structure import Structure
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.exact_pass import primal
from torchssvm.solvers.feature_losses import StructuredHinge

SAMPLE = 64
"""At most so many examples are looked at."""

SHARE = 1 / 30
"""Of the lambda at which an example moves the weights as far as it needs; see docs/choosing.md for what it is worth."""


def guess_lam(head: nn.Module, dataset: Any, *, structure: Structure | None = None) -> float:
    """A lambda to begin with: a thirtieth of the lambda at which weights fit one example alone.

    At zero weights the output with the largest loss L_i violates the margin by L_i, and differs from the target by
    ``psi_i`` in the features. A full Frank-Wolfe step on this example changes its score by ``|psi_i|^2 / (lam n)``,
    which is L_i at ``lam = |psi_i|^2 / (n L_i)``. The mean of these over some examples is divided by 30. So the
    scales of the features and of the loss are accounted for, which 1/n does not.

    Args:
        head: Features -> potentials, linear in all its weights, whatever they are; stays as it is.
        dataset: The training set: map-style, n examples with ``collate``. 64 examples, evenly spread, are decoded.
        structure: What an output is; None is ``head.structure``.

    Raises:
        ValueError: The dataset is empty, no output of these examples has a loss or known scores fit all of them, or all
            features are zero, or so large that their squares overflow.
        TypeError: The dataset has no length.

    Example:
        >>> guess_lam(LinearMulticlass(4, 3), data) > 0.0
        True
    """
    check_dataset(dataset)
    n = len(dataset)
    if not n:
        raise ValueError("dataset is empty: give at least one example")
    structure, fetch = find_structure(head, structure), fetcher(dataset)
    check_fits(head, structure, dataset)
    trial = copy.deepcopy(head)
    weights = [parameter.requires_grad_(True) for parameter in trial.parameters()]
    for weight in weights:
        nn.init.zeros_(weight)
    hinge, ratios = StructuredHinge(structure), []
    with torch.enable_grad(), full_precision(weights[0].device):
        for place in _spread(n):
            batch = to_device(fetch([place]), weights[0].device)
            loss = hinge(apply_head(trial, batch), batch.y)
            if float(loss.detach()) > 0.0:
                slopes = torch.autograd.grad(loss, weights, allow_unused=True)
                ratios.append(sum(_square(slope) for slope in slopes if slope is not None) / float(loss.detach()))
    if not 0.0 < sum(ratios) < math.inf:
        raise ValueError("dataset has zero losses or features, or squares overflow: scale them, or give lam")
    return SHARE * sum(ratios) / len(ratios) / n


def _spread(n: int) -> range:
    """At most ``SAMPLE`` places, evenly spread over n."""
    return range(0, n, -(-n // SAMPLE))


def _square(tensor: torch.Tensor) -> float:
    dense = tensor.coalesce().values() if tensor.is_sparse else tensor
    return float(dense.to(torch.float64).square().sum())


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
    structure, lam, few = dual.structure, certificate.lam, Part(dataset, _spread(len(dataset)))

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
