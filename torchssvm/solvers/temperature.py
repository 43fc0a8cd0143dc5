"""The temperature of probabilities, fitted to examples that were not trained on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from torchssvm.core.arguments import naming
from torchssvm.core.potentials import Potentials, conform, inner
from torchssvm.core.structure import Structure

_STEPS = 40  # of the search: they halve the interval


@torch.no_grad()
def fit_temperature(structure: Structure, examples: Iterable[tuple[Potentials, Any]]) -> float:
    """The T that makes the targets most probable, ``P(y) = exp(score(y) / T) / Z``, from 0.001 to 1000.

    See Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.

    Args:
        structure: One with ``marginals``.
        examples: Potentials and targets of every batch.

    Raises:
        ValueError: A target does not fit.
    """
    scored = []
    for potentials, target in examples:
        with naming(potentials.index):
            target = structure.check_target(target, potentials)
        parts = conform(structure.parts(target), potentials, "parts(target)")
        scored.append((potentials, float(inner(parts, potentials.tensors).sum())))

    def slope(factor: float) -> float:
        """The derivative of the negative log-likelihood by 1/T, which grows with 1/T."""
        total = 0.0
        for potentials, own in scored:
            tensors = potentials.tensors
            warm = potentials.replace({name: factor * tensor for name, tensor in tensors.items()})
            total += float(inner(structure.marginals(warm).parts, tensors).sum()) - own
        return total

    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(math.exp(middle)) < 0.0 else (low, middle)
    return math.exp(-(low + high) / 2)
