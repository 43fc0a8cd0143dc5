"""The dual state of a kernel model, with the squared length of the implicit weights."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.potentials import Potentials
from torchssvm.core.schema import Entry, Schema
from torchssvm.core.structure import Labeling
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.state import DualState


class TokenParts(MeanParts):
    """Mean parts whose unary rows, the coefficients of the kernel expansion, can be read token by token."""

    def check_memory(self, potentials: Potentials, target: Labeling, advice: str) -> None:
        """Raise MemoryError if the blocks would not fit."""
        super().check_memory(potentials, target, "take a larger memory_limit, float32 features, or fewer examples")

    def table(self, name: str, counts: Tensor, like: Tensor) -> Tensor:
        """The psi of every training token, example after example: ``[N, K]``.

        Args:
            name: The unary potentials.
            counts: ``[n]`` int64, tokens of each example.
            like: ``[..., K]``, gives dtype and K while nothing is stored.
        """
        buffer = self.buffers.get(name)
        if buffer is None:
            return like.new_zeros(int(counts.sum()), like.shape[-1])
        longest = int(counts.max())
        real = torch.arange(longest, device=counts.device) < counts.unsqueeze(1)
        places = buffer.locate(torch.arange(len(counts), device=counts.device), longest)[real]
        return buffer.values[places]


class KernelDual(DualState):
    """``D = sum_i l_i - lam/2 (|w_k|^2 + |w|^2)``: w_k is the kernel expansion, w are the explicit weights.

    Attributes:
        kernel_squared_norm: ``|w_k|^2``, updated by every step and recomputed by exact passes.
    """

    kernel_squared_norm = 0.0

    def value(self) -> float:
        """The dual objective."""
        return super().value() - self.lam / 2 * self.kernel_squared_norm

    def _schema(self) -> Schema:
        return {**super()._schema(), "kernel_squared_norm": Entry(float, low=0.0)}
