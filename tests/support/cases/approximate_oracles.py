"""Oracles that err on purpose, as far as [B13] appendix C allows: adversaries that return the worst output allowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm import Potentials, Structure
from torchssvm.core.decoding import Decoding
from torchssvm.core.potentials import conform, inner


class Adversary(Structure):
    """A structure of few outputs whose max oracle returns the worst output at or above a floor.

    Args:
        structure: Enumerates its outputs.
        looseness: How much the bound exceeds the maximum.

    Attributes:
        floor: ``[B] -> [B]``: given H_i, what ``L + score difference`` has to reach. Set by the test.
        calls: Examples decoded for training steps.
        errors: How often the output was not a maximiser.
    """

    def __init__(self, structure: Structure, looseness: float = 0.0) -> None:
        self.structure = structure
        self.looseness = looseness
        self.floor: Any = None
        self.calls = 0
        self.errors = 0

    def augmented_argmax(self, potentials: Potentials, target: Any) -> Decoding:
        """The worst output allowed, never one that is worse than the target."""
        correct = self._score(potentials, target)
        outputs = list(self.structure.enumerate(potentials) or ())
        values = self._scores(potentials, outputs) + self._losses(outputs, target) - correct
        best = values.amax(0)
        floor = (best if self.floor is None else self.floor(best)).clamp(min=0.0).minimum(best)
        chosen = torch.where(values >= floor, values, torch.inf).argmin(0)
        labeling = torch.stack(outputs)[chosen, torch.arange(len(chosen))]
        value = values[chosen, torch.arange(len(chosen))]
        if self.floor is not None:
            self.calls += len(value)
            self.errors += int((value < best - 1e-12).sum())
        return Decoding(labeling, correct + value, correct + best + self.looseness, exact=False)

    def _score(self, potentials: Potentials, labeling: Any) -> Tensor:
        return inner(conform(self.structure.parts(labeling), potentials, "parts"), potentials.tensors)

    def _scores(self, potentials: Potentials, outputs: list[Tensor]) -> Tensor:
        """``[Y, B]``, of all outputs at once."""
        together = potentials.replace(
            {n: t.repeat(len(outputs), *[1] * (t.ndim - 1)) for n, t in potentials.tensors.items()}
        )
        return self._score(together, torch.cat(outputs)).view(len(outputs), -1)

    def _losses(self, outputs: list[Tensor], target: Tensor) -> Tensor:
        many = target.repeat(len(outputs), *[1] * (target.ndim - 1))
        return self.structure.loss(torch.cat(outputs), many).view(len(outputs), -1)

    def argmax(self, potentials: Potentials) -> Any:
        return self.structure.argmax(potentials)

    def parts(self, labeling: Any) -> Any:
        return self.structure.parts(labeling)

    def loss(self, labeling: Any, target: Any) -> Tensor:
        return self.structure.loss(labeling, target)

    def loss_potentials(self, target: Any) -> Any:
        return self.structure.loss_potentials(target)

    def check_target(self, target: Any, potentials: Potentials) -> Any:
        return self.structure.check_target(target, potentials)

    def enumerate(self, potentials: Potentials) -> Any:
        return self.structure.enumerate(potentials)
