"""The move of blocks that accumulated batches propose."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.on_host import on_host, read_together
from torchssvm.core.row_sparse import dense, inner_product
from torchssvm.distributed.exchange import Figures, Round
from torchssvm.dual.state import DualState
from torchssvm.solvers.accumulation import farthest_step, largest_step, merge
from torchssvm.solvers.gradient_check import GradientProducts, check_gradient
from torchssvm.steps.proposal import Proposal


class Move(NamedTuple):
    """A direction of the weights, and how the blocks move along it.

    Attributes:
        proposals: The batches.
        gradients: d, for each parameter; sparse ones coalesced.
        value: Derivative of the dual along d, at the start of the step.
        largest: Largest feasible step.
        seen: Products of weights and d, if they are known.
        coefficients: The moves of each batch's blocks at step 1, ``[B]``.
        rows: The rows of each batch whose blocks move.
    """

    proposals: list[Proposal]
    gradients: list[Tensor]
    value: float
    largest: float
    seen: GradientProducts | None
    coefficients: list[Tensor]
    rows: list[Tensor]

    @property
    def calls(self) -> int:
        """Examples decoded."""
        decoded = [(len(p.index), p.found.decoded) for p in self.proposals]
        return sum(size if some is None else int(on_host(some).sum()) for size, some in decoded)

    @property
    def hits(self) -> int:
        """Labelings taken from the cache."""
        return sum(len(p.index) for p in self.proposals) - self.calls

    @property
    def moved(self) -> int:
        """Blocks that move."""
        return sum(len(rows) for rows in self.rows)

    def figures(self, dual: DualState) -> Figures:
        """What other ranks need to know."""
        change, gaps = 0.0, dual.gap_estimates.clone()
        for coefficient, proposal, rows in zip(self.coefficients, self.proposals, self.rows, strict=True):
            change += float((coefficient * proposal.loss_changes)[rows].sum())
            gaps[proposal.index[rows]] = proposal.block_gaps.clamp(min=0.0)[rows]
        loss, gap = float(dual.loss.sum()), float(gaps.sum())
        return Figures(self.value, self.largest, loss, change, gap, self.calls, self.hits, self.moved)

    def take(self, dual: DualState, step: float) -> None:
        """Move the blocks, and set their gaps."""
        for proposal, coefficient, rows in zip(self.proposals, self.coefficients, self.rows, strict=True):
            _move(dual, proposal, step * coefficient, rows)


def check_move(dual: DualState, proposals: list[Proposal]) -> Move:
    """The move that the batches propose together, once the gradient is known to be theirs; changes nothing.

    Raises:
        TypeError: See :func:`check_gradient`.
        RuntimeError: See there; or the batches come from losses with different ``block_steps``.
        ValueError: The storage cannot move the batches together.
    """
    if len(rules := {repr(proposal.block_steps) for proposal in proposals}) > 1:
        raise RuntimeError(
            f"the accumulated batches come from losses with different block_steps, {sorted(rules)}: one rule "
            "chooses the steps of all of them. Give the losses the same one, or step between them"
        )
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in dual.parameters]
    gradients = [g.coalesce() if g.is_sparse else g for g in gradients]
    seen: GradientProducts | None = check_gradient(dual, proposals, gradients)
    if len(proposals) > 1 and all(p.gradients is not None and p.block_steps.needs_gradients for p in proposals):
        coefficients, gradients, rows = merge(proposals, dual)
        largest, seen = 1.0, None
    else:
        rows = [proposal.rows for proposal in proposals]
        coefficients = [p.gammas if p.scale == 1.0 else p.scale * p.gammas for p in proposals]
        largest = largest_step(proposals)
    if dual.box.has_bounds:  # the box QP is then a lower bound of the dual, whose best step may be larger
        gradients = [dense(g) if bounded else g for g, bounded in zip(gradients, dual.box.bounded, strict=True)]
        largest = farthest_step(proposals, coefficients)
    if len(proposals) > 1 or len(proposals[0].rows) < len(proposals[0].index):  # examples may repeat
        dual.storage.check_together([proposal.stored for proposal in proposals], rows)
    value = None if seen is None else seen.value
    if value is None:
        value = sum(map(float, read_together(*(c @ p.values for c, p in zip(coefficients, proposals, strict=True)))))
    if dual.recomputed is not None:
        # The step starts there, but the slopes were computed at the held weights; they are linear in w.
        moved = zip(dual.box.clip(dual.recomputed), dual.parameters, strict=True)
        value += inner_product([there.to(torch.float64) - w for there, w in moved], gradients)
    return Move(proposals, gradients, value, largest, seen, coefficients, rows)


def record(dual: DualState, found: Round, step: float) -> None:
    """Count a step of all ranks, and keep what it says of their losses and gaps together."""
    own = found.figures
    dual.count(own.calls, own.hits, own.moved)
    dual.keep_sums(own.loss + step * own.loss_change, own.gap)
    dual.rho = found.rho


def _move(dual: DualState, proposal: Proposal, move: Tensor, rows: Tensor) -> None:
    """Move the blocks of a batch's ``rows`` by ``move``, ``[B]``."""
    index, found, gaps = proposal.index, proposal.found, proposal.block_gaps.clamp(min=0.0)
    decoded, changes = found.decoded, move * proposal.loss_changes
    place, targets = on_host(index), proposal.targets
    proposal.stored.move(move, rows, proposal.change, proposal.parts, proposal.gradients)
    if rows.shape[0] < index.shape[0]:
        index, gaps, changes = index[rows], gaps[rows], changes[rows]
        place, targets = (t[on_host(rows)] for t in (place, targets))
        decoded = None if decoded is None else decoded[rows]
    dual.loss.index_add_(0, index, changes)  # of distinct examples
    dual.targets[place] = targets
    dual.relaxed |= found.relaxed
    dual.gap_estimates.index_copy_(0, index, gaps)
    seen = gaps if decoded is None else torch.where(decoded, gaps, dual.oracle_gaps[index])
    dual.oracle_gaps.index_copy_(0, index, seen)
