"""Log-probabilities and entropies under ``P(y) = exp(score(y)) / Z``, from the marginals of a structure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.operators import transformed
from torchssvm.core.potentials import Parts, Potentials, conform, inner


def log_prob(structure: Any, potentials: Potentials, target: Any) -> Tensor:
    """``score(target) - log Z`` of a checked target, ``[B]`` float64; its gradient is ``p(target) - mu``."""
    with torch.no_grad():
        given = _in_float64(potentials)
        shown, whole = structure._target_marginals(given, target), structure.marginals(given)
        value = shown.log_partition - whole.log_partition
        mean = conform(whole.parts, given, "marginals(potentials).parts")
        true = conform(shown.parts, given, "parts(target)")
    for name, tensor in potentials.tensors.items():
        finite = tensor.masked_fill(tensor.detach() == -torch.inf, 0.0)
        change = (true[name] - mean[name]) * (finite - finite.detach())  # 0, with a gradient
        value = value + change.flatten(1).sum(1)
    return once_differentiable(value, potentials, "log_prob")


def entropy(structure: Any, potentials: Potentials) -> Tensor:
    """``log Z - <mu, theta>``, ``[B]`` float64; its gradient, which needs covariances of parts, is an error."""
    with torch.no_grad():
        given = _in_float64(potentials)
        whole = structure.marginals(given)
        mean = conform(whole.parts, given, "marginals(potentials).parts")
        value = whole.log_partition - inner(mean, where_present(mean, given))
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return value
    message = "entropy has no gradient: leave it out of the loss, or call it under torch.no_grad() to report it"
    return _Refusal.apply(message, value, *potentials.tensors.values())


def _in_float64(potentials: Potentials) -> Potentials:
    return potentials.replace({name: tensor.detach().double() for name, tensor in potentials.tensors.items()})


def where_present(parts: Parts, potentials: Potentials) -> Parts:
    """The potentials, with 0 where parts are zero: scores of -inf would make their products NaN."""
    return {name: tensor.detach().masked_fill(parts[name] == 0.0, 0.0) for name, tensor in potentials.tensors.items()}


def once_differentiable(value: Tensor, potentials: Potentials, what: str) -> Tensor:
    """``value``, whose gradients are not differentiated again: the marginals in them would pass for constants."""
    if not value.requires_grad or transformed() or torch.compiler.is_compiling():
        return value
    message = f"{what} has no second derivatives: use its gradient, create_graph=False"

    def hook(upstream: Tensor) -> Tensor | None:
        if not torch.is_grad_enabled():  # it is under create_graph=True
            return None
        return _Refusal.apply(message, upstream, *potentials.tensors.values())

    value.register_hook(hook)
    return value


class _Refusal(torch.autograd.Function):
    """A value whose backward pass to some tensors is an error."""

    @staticmethod
    def forward(ctx: Any, message: str, value: Tensor, *tensors: Tensor) -> Tensor:
        ctx.message = message
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        raise RuntimeError(ctx.message)
