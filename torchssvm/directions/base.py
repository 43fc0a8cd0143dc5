"""What a direction is, for any storage of the dual."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from torchssvm.potentials import Parts
from torchssvm.structures import Corner


class Direction(NamedTuple):
    """For each block of a batch a direction with maximal step 1.

    In parts space ``Delta_i = parts_i + decay_i psi_i``, with psi_i = p(y_i) - mu_i the block as it is stored; the mean
    parts move by ``gamma Delta_i``, and l_i by ``gamma (loss_i - decay_i l_i)``.

    Attributes:
        parts: What does not depend on the block, relative to the target's parts; ``[B, ...]``.
        slopes: ``[B]`` float64, ``<parts_i, theta_i> / n``.
        loss: ``[B]`` float64, already divided by n.
        decay: ``[B]`` float64, or None for 1 everywhere.
    """

    parts: Parts
    slopes: Tensor
    loss: Tensor
    decay: Tensor | None = None


class DirectionRule(Protocol):
    """Chooses the direction of every block of a batch."""

    def __call__(self, corner: Corner, num_examples: int) -> Direction:
        """The directions, given what the max oracle found."""
        ...
