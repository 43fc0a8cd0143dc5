"""The best class, in plain torch operators."""

from __future__ import annotations

from torch import Tensor, nn

from torchssvm.core.potentials import Parts
from torchssvm.structures.multiclass.structure import Multiclass


class ClassDecoder(nn.Module):
    """The best class of a :class:`~torchssvm.Multiclass`; ties go to the smallest."""

    def __init__(self, structure: Multiclass) -> None:
        super().__init__()

    def forward(self, potentials: Parts, lengths: None) -> Tensor:
        """The only potentials ``[B, K]`` -> ``[B]`` int64."""
        (scores,) = potentials.values()
        return scores.argmax(1)
