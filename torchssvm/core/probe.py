"""A fixed direction in parts space, by which linear maps are compared without decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from torchssvm.core.gradients import adjoint, per_example_adjoint
from torchssvm.core.operators import read_together
from torchssvm.core.potentials import Parts, Potentials, inner_and_sizes, padding_of
from torchssvm.core.precision import full_precision
from torchssvm.core.row_sparse import flat
from torchssvm.core.structure import Structure

TOLERANCE = 1e-4
"""Relative tolerance: the features of a network differ by rounding between batches."""


def check_depends(potentials: Potentials, structure: Structure, parameters: Sequence[Tensor]) -> None:
    """Check that the potentials are linear in these parameters, by Euler's identity for one direction; else ValueError.

    ``<r, theta> = <w, Phi^T r>`` holds for the dual's head, but not for a head with other weights. Infinite or NaN
    numbers are skipped.
    """
    if not potentials.requires_grad:
        raise ValueError(
            "the potentials carry no gradient to the dual's parameters: pass the dual's head, without no_grad()"
        )
    parts = probe(potentials, structure)
    with full_precision(potentials.device):
        gradients = adjoint(potentials, parts, parameters)
        detached = potentials.detach().tensors
        terms = flat(parameters) * flat(gradients)
        sums = *inner_and_sizes(parts, detached), terms.sum(), terms.norm(p=1)
    scores, sizes, products, absolute = read_together(*sums)
    score, expected, size = float(scores.sum()), float(products), float(sizes.sum() + absolute)
    rounding = 1e4 * torch.finfo(potentials.dtype).eps
    if math.isfinite(size) and not abs(score - expected) <= rounding * size:
        raise ValueError("the potentials do not come from the dual's parameters alone: pass the dual's head, or a copy")


@torch.no_grad()
def fingerprints(potentials: Potentials, structure: Structure, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """One number for each example that identifies its features, computed through the head's linear map.

    Returns ``[B]`` float64 each: the numbers, and the sums of the absolute values of their terms.
    """
    with torch.enable_grad():
        gradients = per_example_adjoint(potentials, probe(potentials, structure), parameters)
    value = torch.zeros(potentials.batch_size, dtype=torch.float64, device=potentials.device)
    size = torch.zeros_like(value)
    for gradient in gradients:
        terms = gradient.detach() * _pattern(tuple(gradient.shape[1:]), gradient.dtype, gradient.device)
        value += terms.flatten(1).sum(1, dtype=torch.float64)
        size += terms.abs().flatten(1).sum(1, dtype=torch.float64)
    return value, size


def probe(potentials: Potentials, structure: Structure) -> Parts:
    """A direction that does not depend on the padded size, and is zero in the padding."""
    parts, places = {}, structure.places(potentials)
    for name, tensor in potentials.tensors.items():
        values = _pattern(tuple(tensor.shape[1:]), tensor.dtype, tensor.device).expand_as(tensor)
        if (padding := padding_of(potentials, name)) is not None:
            values = values.masked_fill(padding, 0.0)
        parts[name] = (values * places[name] if name in places else values).contiguous()
    return parts


@lru_cache(maxsize=64)
def _pattern(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Non-periodic numbers from -1 to 1, ``[1, *shape]``."""
    angle = torch.ones((1,) * (len(shape) + 1), dtype=torch.float64, device=device)
    for axis, size in enumerate(shape, 1):
        along = torch.arange(size, dtype=torch.float64, device=device) * (axis + 0.3) ** 0.5
        angle = angle + along.view([-1 if a == axis else 1 for a in range(len(shape) + 1)])
    return angle.cos().to(dtype)
