"""Kernel functions, which replace inner products of token features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_number, check_whole
from torchssvm.core.precision import full_precision

Kernel = Callable[[Tensor, Tensor], Tensor]
"""``(a [M, F], b [N, F]) -> [M, N]``, symmetric and positive semidefinite, in the dtype of its arguments."""


@dataclass(frozen=True)
class Linear:
    """``<a, b>``: the same model as the linear heads."""

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """``[M, F]`` and ``[N, F]`` -> ``[M, N]``."""
        return a @ b.t()


@dataclass(frozen=True)
class Polynomial:
    """``(scale <a, b> + constant)^degree``.

    Args:
        degree: A positive whole number.
        constant: Non-negative; if positive, all lower degrees are included.
        scale: Positive; ``1 / F``, or one over the mean squared length of the features, keeps values near 1.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> a = torch.tensor([[1.0, 2.0]])
        >>> Polynomial(degree=2)(a, a)  # (5 + 1) ** 2
        tensor([[36.]])
    """

    degree: int = 2
    constant: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", check_whole(self.degree, "degree"))
        object.__setattr__(self, "constant", check_number(self.constant, "constant", 0.0))
        object.__setattr__(self, "scale", check_number(self.scale, "scale", above=0.0))

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """``[M, F]`` and ``[N, F]`` -> ``[M, N]``."""
        return (self.scale * (a @ b.t()) + self.constant) ** self.degree


@dataclass(frozen=True)
class RBF:
    """``exp(-gamma |a - b|^2)``.

    Args:
        gamma: Positive; one over the mean squared distance of the features is a usual start.

    Raises:
        ValueError: ``gamma`` is not positive and finite.

    Example:
        >>> a, b = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]])
        >>> RBF(gamma=1.0)(a, b)  # exp(-1)
        tensor([[0.3679]])
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check_number(self.gamma, "gamma", above=0.0))

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """``[M, F]`` and ``[N, F]`` -> ``[M, N]``."""
        distances = torch.addmm(b.square().sum(1), a, b.t(), alpha=-2.0)
        distances += a.square().sum(1, keepdim=True)
        return distances.clamp_(min=0.0).mul_(-self.gamma).exp_()


def evaluate(kernel: Kernel, a: Tensor, b: Tensor) -> Tensor:
    """``kernel(a, b)``, checked.

    Raises:
        TypeError: The result is not a tensor of the features' dtype.
        ValueError: The result is not of shape ``[M, N]``, or not finite.
    """
    with full_precision(a.device):
        values: Any = kernel(a, b)
    if not isinstance(values, Tensor) or values.dtype != a.dtype:
        found = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"kernel={name_of(kernel)} must return a tensor of the features' dtype {a.dtype}, got {found}")
    if values.shape != (len(a), len(b)):
        raise ValueError(
            f"kernel={name_of(kernel)} must return [M, N] = {[len(a), len(b)]} for features {list(a.shape)} and "
            f"{list(b.shape)}, got {list(values.shape)}"
        )
    if not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"kernel={name_of(kernel)} returned numbers that are not finite: scale the features, or the kernel"
        )
    return values


def check_kernel(kernel: Kernel, tokens: Tensor, sample: int = 64) -> None:
    """Check shape, symmetry and positive semidefiniteness of the kernel on a sample of ``tokens`` ``[N, F]``.

    Raises:
        TypeError: The result is not a tensor of the features' dtype.
        ValueError: The function is not a kernel on this sample.
    """
    step = max(1, len(tokens) // sample)
    chosen = tokens[::step][:sample]
    evaluate(kernel, chosen[:1], chosen)  # a square result would hide a transposition
    values = evaluate(kernel, chosen, chosen).to(torch.float64)
    allowed = 1e3 * torch.finfo(tokens.dtype).eps * float(values.abs().max())
    if float((values - values.t()).abs().max()) > allowed:
        raise ValueError(f"kernel={name_of(kernel)} is not symmetric: kernel(a, b) must be the transpose of (b, a)")
    smallest = float(torch.linalg.eigvalsh(values)[0])
    if smallest < -allowed * len(chosen):
        raise ValueError(
            f"kernel={name_of(kernel)} is not positive semidefinite: the Gram matrix of {len(chosen)} tokens has the "
            f"eigenvalue {smallest:.3g}, so some squared length would be negative"
        )


def name_of(kernel: Any) -> str:
    """The name of a kernel in checkpoints and messages, without the address that a default ``repr`` shows."""
    shown = repr(kernel)
    if " at 0x" not in shown:
        return shown
    return str(getattr(kernel, "__qualname__", type(kernel).__qualname__))
