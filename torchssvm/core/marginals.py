"""Marginals of a structure, and marginals at a temperature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.potentials import Parts, Potentials


class Marginals(NamedTuple):
    """The mean parts of the distribution ``P(y) = exp(score(y)) / Z``, for every example of a batch.

    Attributes:
        parts: ``sum_y P(y) p(y)``, shaped like the potentials; zero where an example is padded, and else NaN where
            scores of ``-inf`` forbid every output.
        log_partition: ``log Z``, ``[B]`` float64; ``-inf`` if every output is forbidden.

    Example:
        >>> marginals = Multiclass(2).marginals(Potentials(torch.tensor([[0.0, 0.0]])))
        >>> marginals.log_partition
        tensor([0.6931], dtype=torch.float64)
        >>> marginals.parts
        {'potentials': tensor([[0.5000, 0.5000]])}
    """

    parts: Parts
    log_partition: Tensor


def marginals_at(structure: Any, potentials: Potentials, temperature: float) -> Marginals:
    """Marginals of the scores divided by the temperature, in float64."""
    warm = {name: tensor.double() / temperature for name, tensor in potentials.tensors.items()}
    return structure.marginals(potentials.replace(warm))


FORBIDDEN = -1e200  # stands for a score of -inf, of which differences would be NaN


def marginals_by_gradient(potentials: Potentials, log_partition: Callable[[Potentials], Tensor]) -> Marginals:
    """Marginals as the gradient of ``log Z``, ``[B]``, which ``log_partition`` computes from potentials in float64."""
    with torch.inference_mode(False), torch.enable_grad():
        scores = {name: t.detach().clone().double().requires_grad_() for name, t in potentials.tensors.items()}
        given = potentials.replace({name: tensor.clamp(min=FORBIDDEN) for name, tensor in scores.items()})
        for name in ("lengths", *potentials.carried):  # tensors of inference mode have no backward pass
            tensor = getattr(potentials, name)
            setattr(given, name, None if tensor is None else tensor.clone())
        log_z = log_partition(given)
        means = torch.autograd.grad(log_z.sum(), list(scores.values()), allow_unused=True, materialize_grads=True)
    none = log_z.detach() < FORBIDDEN / 2
    parts = {
        name: mean.masked_fill(none.view(-1, *[1] * (mean.ndim - 1)), torch.nan).to(potentials[name].dtype)
        for name, mean in zip(scores, means, strict=True)
    }
    return Marginals(parts, log_z.detach().masked_fill(none, -torch.inf))
