"""The steps of a batch's blocks: the interface of such rules, and the rule of one common step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.gradients import combine
from torchssvm.core.potentials import Potentials
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.structure import Labeling, OracleResult, Structure
from torchssvm.dual.storage import Storage, Stored


class BatchSteps(NamedTuple):
    """The steps of a batch's blocks, ``[R]`` float64 in [0, 1], and the direction that they combine to.

    ``combined`` is ``factor sum_i gamma_i g_i`` for each parameter; its squared norm is None on a device, where it
    would have to be read.
    """

    gammas: Tensor
    combined: list[Tensor]
    squared_norm: float | None


class Visited(NamedTuple):
    """The result of exact steps on a batch's blocks, taken one after another.

    Attributes:
        found: The corners, each decoded at the weights after the previous block's step, and scored at the head's.
        gammas: ``[B]`` float64, the steps towards them.
        gaps: ``[B]`` float64, the block gaps, each at the weights of its own visit.
        combined: ``(1/n) sum_i gamma_i Phi_i^T Delta_i`` for each of the head's parameters.
    """

    found: OracleResult
    gammas: Tensor
    gaps: Tensor
    combined: list[Tensor]


class BlockSteps(ABC):
    """Chooses the step of each block of a batch along its direction, before the line search over all of them."""

    needs_gradients = False
    """Whether it uses per-example gradients, where the head gives them."""

    visits = False
    """Whether it implements :meth:`visit`; see ``torchssvm.Sequential``."""

    def check(self, direction: Any, oracle: Any, storage: Storage) -> None:
        """Raise ValueError if it does not support these rules; the default supports all."""
        return

    @abstractmethod
    def solve(self, gradients: Sequence[Tensor], values: Tensor, weight: float, factor: float = 1.0) -> BatchSteps:
        """The steps of a batch.

        Args:
            gradients: g_i for each parameter, ``[R, *parameter.shape]``; possibly sparse.
            values: v, ``[R]`` float64, the derivatives of the dual along the directions.
            weight: Positive; the dual grows by ``sum_i gamma_i v_i - weight/2 |sum_i gamma_i g_i|^2``.
            factor: Multiplies the combined gradient.
        """

    def visit(
        self,
        potentials: Potentials,
        structure: Structure,
        target: Labeling,
        stored: Stored,
        losses: Tensor,
        lam: float,
        n: int,
    ) -> Visited:
        """Exact steps on the blocks one after another, from the held weights; changes nothing, needs ``visits``.

        Args:
            potentials: The head's output.
            structure: The dual's.
            target: From ``check_target``.
            stored: The blocks.
            losses: ``[B]`` float64, l_i.
            lam: Regularisation.
            n: Size of the training set.
        """
        raise NotImplementedError(f"{self} does not visit blocks")


class CommonStep(BlockSteps):
    """One common step for all blocks of a batch, by the line search along the sum of their directions.

    Example:
        >>> solver = Solver(block_steps=CommonStep())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver, tolerance=Relative(0.1)).relative_gap <= 0.1
        True
    """

    def solve(self, gradients: Sequence[Tensor], values: Tensor, weight: float, factor: float = 1.0) -> BatchSteps:
        """All gammas are 1."""
        return combine_steps(gradients, torch.ones_like(values), factor)

    def __repr__(self) -> str:
        return "CommonStep()"


def combine_steps(gradients: Sequence[Tensor], gammas: Tensor, factor: float) -> BatchSteps:
    """The combined direction of these gammas."""
    combined = combine(gradients, gammas * factor)
    return BatchSteps(gammas, combined, squared_norm(combined) if gammas.is_cpu else None)


def check_block_steps(block_steps: Any) -> BlockSteps:
    """``block_steps``; TypeError unless it is a BlockSteps."""
    if isinstance(block_steps, BlockSteps):
        return block_steps
    raise TypeError(f"block_steps={block_steps!r} must be an object such as BoxQP(), CommonStep() or Sequential()")
