"""A step that a loss proposes and an optimizer takes or refuses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchssvm.core.potentials import Parts, Potentials
from torchssvm.dual.storage import Stored


@dataclass(slots=True)
class Proposal:
    """The directions of a batch of blocks, as they stood when the backward pass ran.

    With gamma_i the step that the box QP chose for block i (or 1), the gradient that went to the weights is
    ``scale * sum_i gamma_i d_i`` with ``d_i = (1/n) Phi_i^T Delta_i``.

    Attributes:
        version: ``DualState.version`` when the directions were computed.
        index: ``[B]`` int64, the examples.
        rows: ``[R]`` int64, the rows of the batch that count: the first of every example.
        gammas: ``[B]`` float64 in [0, 1]; 0 in rows that do not count.
        scale: The upstream gradient that reached the loss.
        slopes: ``[B]`` float64, ``<Delta_i, theta_i> / n``: their weighted sum must equal ``<w, gradient>``.
        slope_terms: ``[B]`` float64 each, the terms that each slope was summed from: their rounding is in it.
        loss_changes: ``[B]`` float64, the change of l_i for a step of 1.
        block_gaps: ``[B]`` float64, g_i at the weights of the forward pass.
        decoded: ``[B]`` bool, where the max oracle was called; None where it was for all.
        change: The change of the atoms' masses, ``[B, A + 1]``; None where all of it goes to the corner.
        parts: The direction as ``Stored.combine`` gave it.
        gradients: n d_i for each parameter, ``[B, *parameter.shape]``; None where the head cannot give them.
        reference: ``sum_i gamma_i d_i`` for each parameter, where it is known from ``gradients``, or where nothing else
            could tell a changed gradient; else None.
        potentials: theta_i, detached.
        squared_norm: ``|sum_i gamma_i d_i|^2``, where ``gradients`` have told it; else None.
        stored: The blocks that the direction starts from.
        targets: ``[B]`` int64, digests of the examples' targets.
        relaxed: Whether an output may lie outside of the hull of outputs.
        sweeps: Sweeps of the box QP; 0 where all blocks take one common step.
    """

    version: int
    index: Tensor
    rows: Tensor
    gammas: Tensor
    scale: float
    slopes: Tensor
    slope_terms: tuple[Tensor, ...]
    loss_changes: Tensor
    block_gaps: Tensor
    decoded: Tensor | None
    change: Tensor | None
    parts: Parts
    gradients: list[Tensor] | None
    reference: list[Tensor] | None
    potentials: Potentials
    squared_norm: float | None
    stored: Stored
    targets: Tensor
    relaxed: bool
    sweeps: int

    @property
    def values(self) -> Tensor:
        """``[B]`` float64: derivative of the dual along each direction, at the weights of the forward pass."""
        return self.slopes + self.loss_changes
