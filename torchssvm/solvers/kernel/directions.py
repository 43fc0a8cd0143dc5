"""Directions of a kernel step, in parts and in masses of support labelings."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchssvm.core.batch import tree_map
from torchssvm.core.ordered_sums import add_rows
from torchssvm.core.potentials import Parts, Potentials, inner, scale, subtract
from torchssvm.core.structure import OracleResult, Structure
from torchssvm.dual.mean_parts import StoredParts
from torchssvm.solvers.kernel.support import MERGED, SupportLabelings
from torchssvm.steps.directions import FrankWolfe, Pairwise

_EMPTY = 1e-12
"""Merged mass below this is rounding, and is not moved."""


class KernelBatch(NamedTuple):
    """A batch of distinct examples at the current weights."""

    index: Tensor  # type: ignore[assignment]  # it hides tuple.index; [B] int64
    target: Any  # checked
    potentials: Potentials  # of all weights, detached
    corner: OracleResult
    stored: StoredParts  # the blocks: its psi is p(y_i) - mu_i
    loss: Tensor  # [B] float64, l_i
    gaps: Tensor  # [B] float64
    rows: Tensor  # [U, M]: the kernel rows of their tokens
    explicit: Potentials  # potentials of the explicit weights, with the autograd graph
    kernel: Tensor  # [B, N, K] or [B, K]: what the kernel adds to the unary potentials
    structure: Structure
    support: SupportLabelings  # the labelings of all examples
    num_examples: int


class Move(NamedTuple):
    """The direction ``Delta_i = parts_i + decay_i psi_i``, feasible up to step 1, and its full step in masses.

    All masses of an example shrink by ``decay``, then ``mass`` goes to the corner.
    """

    parts: Parts  # [B, ...], the part that does not depend on the block, relative to the target's parts
    slopes: Tensor  # [B] float64, <parts_i, theta_i> / n
    loss: Tensor  # [B] float64, already divided by n
    decay: Tensor  # [B] float64, the share that every labeling of the example loses
    mass: Tensor  # [B] float64, the mass that the corner gains
    away: Tensor | None  # [B] int64, the slot (or MERGED) that loses ``mass``; None if it comes from the decay


class KernelDirection(Protocol):
    """Chooses the direction of every block of a batch."""

    def __call__(self, blocks: KernelBatch) -> Move:
        """The directions, given what the max oracle found."""


def _frank_wolfe(blocks: KernelBatch) -> Move:
    """Towards the corner ([B13] Algorithm B.1): alpha_i <- (1 - gamma) alpha_i + gamma e_s."""
    one, corner, n = torch.ones_like(blocks.loss), blocks.corner, blocks.num_examples
    return Move(corner.parts, corner.score / n, corner.loss / n, one, one, None)


def _pairwise(blocks: KernelBatch) -> Move:
    """From the worst labeling of the support to the corner ([G16] Algorithm 3): gamma alpha_i(a) moves from a to s.

    The worst labeling has the smallest ``score + loss``. Merged mass counts as one more labeling, with its mean.
    """
    support, index, corner, psi, n = blocks.support, blocks.index, blocks.corner, blocks.stored.psi, blocks.num_examples
    rows, slots = support.listed(index)
    labelings = support.labelings(index[rows], slots, corner.labeling)
    target = tree_map(lambda tensor: tensor[rows], blocks.target)
    parts = blocks.structure.difference(labelings, target, blocks.potentials.select(rows))  # p(a) - p(y_i), [P, ...]
    mass, loss = support.mass[index[rows], slots], support.loss[index[rows], slots]
    score = inner(parts, blocks.potentials.select(rows).tensors)  # of a, less the target's

    values = torch.full_like(support.mass[index], torch.inf)
    values[rows, slots] = score + loss
    smallest, away = values.min(1)
    # The merged mass is the block minus its listed labelings; <-psi_i, theta_i> and n l_i are sums of the block.
    merged = support.merged[index]
    rest_score = add_rows(-inner(psi, blocks.potentials.tensors), rows, -mass * score)
    rest_loss = add_rows(n * blocks.loss, rows, -mass * loss)
    from_merged = (merged > _EMPTY) & (rest_score + rest_loss < smallest * merged)
    away = torch.where(from_merged, MERGED, away)

    amount = torch.where(from_merged, merged, support.mass[index, away.clamp(min=0)])
    of_rows = torch.where(away[rows] == slots, mass, 0.0)  # what leaves each listed labeling
    leaving = _sum_by_row(scale(parts, of_rows), rows, psi)
    score_leaving = add_rows(torch.zeros_like(amount), rows, of_rows * score)
    loss_leaving = add_rows(torch.zeros_like(amount), rows, of_rows * loss)
    if bool(from_merged.any()):
        listed = _sum_by_row(scale(parts, mass), rows, psi)
        rest = {name: -held - listed[name] for name, held in psi.items()}
        chosen = scale(rest, from_merged.to(torch.float64))
        leaving = {name: tensor + chosen[name] for name, tensor in leaving.items()}
        score_leaving = torch.where(from_merged, rest_score, score_leaving)
        loss_leaving = torch.where(from_merged, rest_loss, loss_leaving)
    return Move(
        parts=subtract(scale(corner.parts, amount), leaving),
        slopes=(amount * corner.score - score_leaving) / n,
        loss=(amount * corner.loss - loss_leaving) / n,
        decay=torch.zeros_like(amount),
        mass=amount,
        away=away,
    )


def _sum_by_row(parts: Parts, rows: Tensor, like: Parts) -> Parts:
    """Sums of ``parts`` ``[P, ...]`` over the entries of each row of the batch, ``[B, ...]``."""
    return {name: add_rows(torch.zeros_like(like[name]), rows, tensor) for name, tensor in parts.items()}


MOVES: dict[type, KernelDirection] = {FrankWolfe: _frank_wolfe, Pairwise: _pairwise}
"""What the directions of ``torchssvm.steps`` are in a kernel model."""
