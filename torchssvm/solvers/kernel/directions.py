"""Directions of a kernel step, in parts and in masses of support labelings."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchssvm.core.batch import tree_map
from torchssvm.core.ordered_sums import add_rows
from torchssvm.core.potentials import Parts, Potentials, inner, scale, subtract
from torchssvm.core.structure import OracleResult, Structure
from torchssvm.solvers.kernel.support import MERGED, SupportLabelings
from torchssvm.steps.directions import FrankWolfe, Pairwise

_EMPTY = 1e-12
"""Merged mass below this is rounding, and is not moved."""


class KernelBatch(NamedTuple):
    """The blocks of a batch, as a direction sees them.

    Attributes:
        index: ``[B]`` int64, distinct examples.
        target: Their targets, checked.
        potentials: theta_i, detached.
        psi: p(y_i) - mu_i, ``[B, ...]``.
        loss: ``[B]`` float64, l_i.
        structure: What an output is.
        support: The labelings of all examples.
        num_examples: n.
    """

    index: Tensor  # type: ignore[assignment]  # it hides tuple.index
    target: Any
    potentials: Potentials
    psi: Parts
    loss: Tensor
    structure: Structure
    support: SupportLabelings
    num_examples: int


class Direction(NamedTuple):
    """``Delta_i = parts_i + decay_i psi_i``, feasible up to step 1.

    Attributes:
        parts: The part that does not depend on the block, relative to the target's parts; ``[B, ...]``.
        slopes: ``[B]`` float64, ``<parts_i, theta_i> / n``.
        loss: ``[B]`` float64, already divided by n.
    """

    parts: Parts
    slopes: Tensor
    loss: Tensor


class Move(NamedTuple):
    """A direction, and its full step in masses: all masses shrink by ``decay``, then ``mass`` goes to the corner.

    Attributes:
        direction: The direction in parts.
        decay: ``[B]`` float64, the share that every labeling of the example loses.
        mass: ``[B]`` float64, the mass that the corner gains.
        away: ``[B]`` int64, the slot (or ``MERGED``) that loses ``mass``; None if ``mass`` comes from the decay.
    """

    direction: Direction
    decay: Tensor
    mass: Tensor
    away: Tensor | None


class KernelDirection(Protocol):
    """Chooses the direction of every block of a batch."""

    def __call__(self, corner: OracleResult, blocks: KernelBatch) -> Move:
        """The directions, given what the max oracle found."""
        ...


def _frank_wolfe(corner: OracleResult, blocks: KernelBatch) -> Move:
    """Towards the corner ([B13] Algorithm B.1): alpha_i <- (1 - gamma) alpha_i + gamma e_s."""
    one = torch.ones_like(blocks.loss)
    n = blocks.num_examples
    return Move(Direction(corner.parts, corner.score / n, corner.loss / n), one, one, None)


def _pairwise(corner: OracleResult, blocks: KernelBatch) -> Move:
    """From the worst labeling of the support to the corner ([G16] Algorithm 3): gamma alpha_i(a) moves from a to s.

    The worst labeling has the smallest ``score + loss``. Merged mass counts as one more labeling, with its mean.
    """
    support, index, n = blocks.support, blocks.index, blocks.num_examples
    rows, slots = support.listed(index)
    parts = _differences(corner, blocks, rows, slots)
    mass, loss = support.mass[index[rows], slots], support.loss[index[rows], slots]
    score = inner(parts, blocks.potentials.select(rows).tensors)  # of a, less the target's

    values = torch.full_like(support.mass[index], torch.inf)
    values[rows, slots] = score + loss
    smallest, away = values.min(1)
    # The merged mass is the block minus its listed labelings; <-psi_i, theta_i> and n l_i are sums of the block.
    merged = support.merged[index]
    rest_score = add_rows(-inner(blocks.psi, blocks.potentials.tensors), rows, -mass * score)
    rest_loss = add_rows(n * blocks.loss, rows, -mass * loss)
    from_merged = (merged > _EMPTY) & (rest_score + rest_loss < smallest * merged)
    away = torch.where(from_merged, MERGED, away)

    amount = torch.where(from_merged, merged, support.mass[index, away.clamp(min=0)])
    of_rows = torch.where(away[rows] == slots, mass, 0.0)  # what leaves each listed labeling
    leaving = _sum_by_row(scale(parts, of_rows), rows, blocks.psi)
    score_leaving = add_rows(torch.zeros_like(amount), rows, of_rows * score)
    loss_leaving = add_rows(torch.zeros_like(amount), rows, of_rows * loss)
    if bool(from_merged.any()):
        listed = _sum_by_row(scale(parts, mass), rows, blocks.psi)
        rest = {name: -psi - listed[name] for name, psi in blocks.psi.items()}
        chosen = scale(rest, from_merged.to(torch.float64))
        leaving = {name: tensor + chosen[name] for name, tensor in leaving.items()}
        score_leaving = torch.where(from_merged, rest_score, score_leaving)
        loss_leaving = torch.where(from_merged, rest_loss, loss_leaving)
    direction = Direction(
        parts=subtract(scale(corner.parts, amount), leaving),
        slopes=(amount * corner.score - score_leaving) / n,
        loss=(amount * corner.loss - loss_leaving) / n,
    )
    return Move(direction, torch.zeros_like(amount), amount, away)


def _differences(corner: OracleResult, blocks: KernelBatch, rows: Tensor, slots: Tensor) -> Parts:
    """``p(a) - p(y_i)`` of the labelings in these slots, ``[P, ...]``."""
    labelings = blocks.support.labelings(blocks.index[rows], slots, corner.labeling)
    target = tree_map(lambda tensor: tensor[rows], blocks.target)
    return blocks.structure.difference(labelings, target, blocks.potentials.select(rows))


def _sum_by_row(parts: Parts, rows: Tensor, like: Parts) -> Parts:
    """Sums of ``parts`` ``[P, ...]`` over the entries of each row of the batch, ``[B, ...]``."""
    return {name: add_rows(torch.zeros_like(like[name]), rows, tensor) for name, tensor in parts.items()}


MOVES: dict[type, KernelDirection] = {FrankWolfe: _frank_wolfe, Pairwise: _pairwise}
"""What the directions of ``torchssvm.steps`` are in a kernel model."""
