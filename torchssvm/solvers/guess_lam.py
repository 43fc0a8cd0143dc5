"""A first lambda, from how far one example alone would move the weights, and the advice that runs draw from it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from torchssvm.core.arguments import check_dataset
from torchssvm.core.batch import Batch, apply_head, check_fits, fetcher, to_device
from torchssvm.core.precision import full_precision
from torchssvm.core.problem import find_structure
from torchssvm.core.structure import Structure
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
    ratios = steps_to_fit(head, structure, (fetch([place]) for place in spread(n)))
    if not ratios:
        raise ValueError("dataset has no output with a loss among the examples that were looked at: give lam")
    if not 0.0 < sum(ratios) < math.inf:
        raise ValueError("dataset has features of zero, or their squares overflow: scale them, or give lam")
    return SHARE * sum(ratios) / len(ratios) / n


def steps_to_fit(head: nn.Module, structure: Structure, examples: Iterable[Batch]) -> list[float]:
    """``|psi_i|^2 / L_i`` of every example that has a loss, at zero weights; a batch has one example."""
    trial = copy.deepcopy(head)
    weights = [parameter.requires_grad_(True) for parameter in trial.parameters()]
    for weight in weights:
        nn.init.zeros_(weight)
    hinge, ratios = StructuredHinge(structure), []
    with torch.enable_grad(), full_precision(weights[0].device):
        for example in examples:
            batch = to_device(example, weights[0].device)
            loss = hinge(apply_head(trial, batch), batch.y)
            if float(loss.detach()) > 0.0:
                slopes = torch.autograd.grad(loss, weights, allow_unused=True)
                ratios.append(sum(_square(slope) for slope in slopes if slope is not None) / float(loss.detach()))
    return ratios


def spread(n: int) -> range:
    """At most ``SAMPLE`` places, evenly spread over n."""
    return range(0, n, -(-n // SAMPLE))


def _square(tensor: torch.Tensor) -> float:
    dense = tensor.coalesce().values() if tensor.is_sparse else tensor
    return float(dense.to(torch.float64).square().sum())
