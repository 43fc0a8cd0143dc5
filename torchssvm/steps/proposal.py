"""A step that ``BlockGap`` proposes and ``BCFW`` takes or refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.structure import OracleResult
from torchssvm.dual.storage import Stored
from torchssvm.steps.block_steps import BlockSteps


@dataclass(slots=True)
class Proposal:
    """The directions of a batch of blocks, as they stood in the forward pass, and how far each goes.

    With gamma_i the step that was chosen for block i, the gradient that goes to the weights is
    ``scale * sum_i gamma_i d_i`` with ``d_i = (1/n) Phi_i^T Delta_i``. It is completed as the forward pass goes on: the
    first fields are known from the start, then come the directions, then the steps.

    Attributes:
        version: ``DualState.version`` when the directions were computed.
        index: ``[B]`` int64, the examples.
        rows: ``[R]`` int64, the rows of the batch that count: the first of every example.
        targets: ``[B]`` int64, digests of the examples' targets.
        potentials: theta_i, detached.
        stored: The blocks that the direction starts from.
        block_steps: The rule of the steps; batches that are accumulated are solved by it together.
        scale: The upstream gradient that reached the loss.
        found: The outputs to move to.
        block_gaps: ``[B]`` float64, g_i at the weights of the forward pass.
        change: The change of the atoms' masses, ``[B, A + 1]``; None where all of it goes to the corner.
        slopes: ``[B]`` float64, ``<Delta_i, theta_i> / n``: their weighted sum must equal ``<w, gradient>``.
        slope_terms: ``[B]`` float64 each, the terms that each slope was summed from: their rounding is in it.
        loss_changes: ``[B]`` float64, the change of l_i for a step of 1.
        values: ``[B]`` float64, ``slopes + loss_changes``: derivative of the dual along each direction, at the weights
            of the forward pass.
        parts: The direction as ``Stored.combine`` gave it.
        gammas: ``[B]`` float64 in [0, 1]; 0 in rows that do not count.
        gradients: n d_i for each parameter, ``[B, *parameter.shape]``; None where the head cannot give them.
        reference: ``sum_i gamma_i d_i`` for each parameter, where it is known from ``gradients``, or where nothing else
            could tell a changed gradient; else None.
        squared_norm: ``|sum_i gamma_i d_i|^2``, where ``gradients`` have told it; else None.
    """

    version: int
    index: Tensor
    rows: Tensor
    targets: Tensor
    potentials: Potentials
    stored: Stored
    block_steps: BlockSteps
    scale: float = 1.0
    found: OracleResult = field(init=False)
    block_gaps: Tensor = field(init=False)
    change: Tensor | None = field(init=False, default=None)
    slopes: Tensor = field(init=False)
    slope_terms: tuple[Tensor, ...] = field(init=False)
    loss_changes: Tensor = field(init=False)
    values: Tensor = field(init=False)
    parts: Parts = field(init=False)
    gammas: Tensor = field(init=False)
    gradients: list[Tensor] | None = field(init=False, default=None)
    reference: list[Tensor] | None = field(init=False, default=None)
    squared_norm: float | None = field(init=False, default=None)

    def take(self, optimizer: Any, together: list[Any]) -> None:
        """Move weights and blocks, after every check of the gradient: ``BCFW.take_batches``."""
        optimizer.take_batches(together)
