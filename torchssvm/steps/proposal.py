"""A step that ``BlockGap`` proposes and ``BCFW`` takes or refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchssvm.core.oracle_result import OracleResult
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.dual.storage import Stored
from torchssvm.steps.block_steps import BlockSteps


@dataclass(slots=True)
class Proposal:
    """The directions and steps of a batch of blocks, computed in the forward pass.

    The gradient of the weights is ``scale * sum_i gamma_i d_i``, with ``d_i = (1/n) Phi_i^T Delta_i`` and the step
    gamma_i of block i. The forward pass fills in the fields: first the batch, then directions, then steps.

    Attributes:
        version: ``DualState.version`` when the directions were computed.
        index: ``[B]`` int64, the examples.
        rows: ``[R]`` int64, the rows of the batch that count: the first of every example.
        targets: ``[B]`` int64, digests of the examples' targets.
        potentials: theta_i, detached.
        stored: The blocks.
        block_steps: The rule that chooses the steps, of accumulated batches together.
        scale: The upstream gradient of the loss.
        factor: The same on a device, until the step reads it with all other numbers that it needs; None on the CPU.
        found: The corners.
        block_gaps: ``[B]`` float64, g_i at the weights of the forward pass.
        change: The change of the atoms' masses, ``[B, A + 1]``; None if all mass moves to the corner.
        slopes: ``[B]`` float64, ``<Delta_i, theta_i> / n``. Their sum weighted by the gammas must equal
            ``<w, gradient>``.
        slope_terms: ``[B]`` float64 each, the terms of the slopes, which determine their rounding.
        loss_changes: ``[B]`` float64, the change of l_i for a step of 1.
        values: ``[B]`` float64, ``slopes + loss_changes``: derivative of the dual along each direction, at the weights
            of the forward pass.
        parts: The direction in parts space, from ``Stored.combine``.
        gammas: ``[B]`` float64 in [0, 1]; 0 in rows that do not count.
        gradients: n d_i for each parameter, ``[B, *parameter.shape]``; None if they are not available.
        reference: ``sum_i gamma_i d_i`` for each parameter, to compare the gradient with; None if that would take an
            extra backward pass and is not needed.
        squared_norm: ``|sum_i gamma_i d_i|^2`` if computed from ``gradients``; else None.
    """

    version: int
    index: Tensor
    rows: Tensor
    targets: Tensor
    potentials: Potentials
    stored: Stored
    block_steps: BlockSteps
    scale: float = 1.0
    factor: Tensor | None = None
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
        """Let the optimizer check the gradient and move weights and blocks, by ``BCFW.take_batches``."""
        optimizer.take_batches(together)
