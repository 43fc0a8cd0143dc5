"""A step that ``BlockGap`` proposes, and how ``BCFW`` checks and takes it.

In the order of a step: :class:`Proposal` is what the forward pass computed; ``check_gradient`` checks that the gradient
is the one that the backward passes gave; ``check_move`` joins accumulated batches into one :class:`Move`, which moves
the blocks by the step of the line search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.operators import known, lowered_advice, on_host, read_together, source, upload
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.row_sparse import add_rows, dense, distance, flat, inner_product, products, squared_norm
from torchssvm.core.structure import OracleResult
from torchssvm.distributed.exchange import Figures, Round
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import Stored
from torchssvm.steps.box_qp import BlockSteps

ADVICE = (
    "BCFW needs the gradient of BlockGap as backward() left it. Call optimizer.zero_grad() before every forward pass; "
    "remove gradient clipping and scaling, averages over processes (DistributedDataParallel), mixed precision and "
    "other losses on the head's weights; if the head is your own, see torchssvm.check(head, structure, batch)"
)


@dataclass(slots=True)
class Proposal:
    """The directions and steps of a batch of blocks, computed in the forward pass.

    The gradient of the weights is ``scale * sum_i gamma_i d_i``, with ``d_i = (1/n) Phi_i^T Delta_i`` and the step
    gamma_i of block i. The forward pass fills in the fields: first the batch, then directions, then steps.
    """

    version: int  # ``DualState.version`` when the directions were computed
    index: Tensor  # [B] int64, the examples
    rows: Tensor  # [R] int64, the rows of the batch that count: the first of every example
    targets: Tensor | None  # [B] int64, digests of the examples' targets; None where the dual has them already
    potentials: Potentials  # theta_i, detached
    stored: Stored  # the blocks
    block_steps: BlockSteps  # chooses the steps, of accumulated batches together
    scale: float = 1.0  # the upstream gradient of the loss
    factor: Tensor | None = None  # the same on a device, until the step reads it with all other numbers
    found: OracleResult = field(init=False)  # the corners
    block_gaps: Tensor = field(init=False)  # [B] float64, g_i at the weights of the forward pass
    change: Tensor | None = field(init=False, default=None)  # [B, A + 1], of the masses; None: all goes to the corner
    slopes: Tensor = field(init=False)  # [B] float64, <Delta_i, theta_i> / n: by the gammas they sum to <w, gradient>
    slope_terms: tuple[Tensor, ...] = field(init=False)  # [B] float64 each; the rounding of slopes is that of these
    loss_changes: Tensor = field(init=False)  # [B] float64, the change of l_i for a step of 1
    values: Tensor = field(init=False)  # [B] float64, slopes + loss_changes: the dual's derivative along each
    parts: Parts = field(init=False)  # the direction in parts space, from ``Stored.combine``
    gammas: Tensor = field(init=False)  # [B] float64 in [0, 1]; 0 in rows that do not count
    gradients: list[Tensor] | None = field(init=False, default=None)  # n d_i, [B, *shape] each, if available
    reference: list[Tensor] | None = field(init=False, default=None)  # sum_i gamma_i d_i, if it is to be compared
    squared_norm: float | None = field(init=False, default=None)  # |sum_i gamma_i d_i|^2 if computed from ``gradients``

    def gap(self) -> Tensor:
        """The sum of the block gaps of the rows that count."""
        whole = self.rows.shape == self.index.shape
        return (self.block_gaps if whole else self.block_gaps[self.rows]).sum()


class GradientProducts(NamedTuple):
    """Products of weights w and gradient d."""

    size: float  # ``|w|``
    inner: float  # ``<w, d>``
    squared_norm: float  # ``|d|^2``
    some_are_zero: bool  # whether some weight is zero, so that Euler's identity does not check its gradient
    expected: float | None = None  # what <w, d> should be, if already computed
    value: float | None = None  # derivative of the dual along d at the weights of the forward pass, if already computed
    same: bool = False  # whether d has been compared with the gradient that the backward pass gave, and is the same


def check_gradient(dual: DualState, proposals: list[Proposal], gradients: list[Tensor]) -> GradientProducts:
    """Raise an error unless the gradients are those of the proposals, finite, and the weights as after the last step.

    A linear head has ``<w, d> = sum_i gamma_i <Delta_i, theta_i>/n`` (Euler's identity). If per-example gradients are
    known or some weight is zero, the gradient itself is compared. Of sparse gradients, which are coalesced, only the
    stored rows are read.
    """
    for proposal in proposals:
        if proposal.version != dual.version:
            raise RuntimeError(
                "the directions of this backward pass are of an earlier state of the dual: call the head and "
                "BlockGap again after every step (no retain_graph), and after loading or recomputing weights"
            )
    for parameter, gradient in zip(dual.parameters, gradients, strict=True):
        if parameter.dtype is not dual.dtype:
            dual.check_dtype()
        if gradient.dtype != parameter.dtype:
            raise RuntimeError(f"a gradient is {gradient.dtype} and its weight {parameter.dtype}: {_advice(dual)}")
    seen = _look(dual, proposals, gradients)
    for proposal in proposals:
        if not (math.isfinite(proposal.scale) and proposal.scale > 0.0):
            raise RuntimeError(f"the loss was multiplied by {proposal.scale}: only positive factors make sense")
    length = math.sqrt(seen.squared_norm)
    if dual.recomputed is None and dual.norm_changed(seen.size):
        raise RuntimeError(
            f"the head's weights have changed since BCFW set them (their norm was {dual.held_norm:.6g} and is "
            f"{seen.size:.6g}): they are a function of the dual. Load the optimizer's state too, or make BCFW after "
            "initialising the head. Did another optimizer step them? Only BCFW may"
        )
    if not math.isfinite(length):
        raise RuntimeError("the gradient of the head's weights is not finite: check the features, padding too")
    eps = torch.finfo(dual.parameters[0].dtype).eps
    expected = seen.expected
    if expected is None:
        slopes = read_together(*(p.gammas @ p.slopes for p in proposals))
        expected = sum(p.scale * float(slope) for p, slope in zip(proposals, slopes, strict=True))
    allowed = 1e-4 * abs(expected) + 200 * eps * seen.size * length + 1e-30  # 1e-30: products may underflow
    if not abs(seen.inner - expected) <= allowed:
        # Slopes are sums of larger terms: allow for their rounding too.
        allowed += 200 * eps * sum(_size_of_terms(p, dual.num_examples) for p in proposals)
    if not abs(seen.inner - expected) <= allowed:
        raise RuntimeError(
            f"<w, gradient> is {seen.inner:.9g} and should be {expected:.9g}, as for every head that is linear in its "
            f"weights: {_advice(dual)}"
        )
    if seen.same:
        return seen
    if len(proposals) == 1 and proposals[0].squared_norm is not None and not seen.some_are_zero:
        # Euler's identity and the norm detect almost every change and are already computed. The gradient itself is
        # compared only if the norm differs by more than a few units of rounding, or some weight is zero.
        told = proposals[0].scale ** 2 * proposals[0].squared_norm
        if abs(seen.squared_norm - told) <= 30 * eps * told:
            return seen
    _compare(dual, proposals, gradients, length)
    return seen


def _look(dual: DualState, proposals: list[Proposal], gradients: Sequence[Tensor]) -> GradientProducts:
    first = proposals[0]
    if first.factor is not None and first.reference is not None and len(proposals) == 1:
        dense = not any(t.is_sparse for t in (*gradients, *first.reference))
        if dense:
            return _read(dual, first, first.factor, gradients, first.reference)
    waiting = [(proposal, proposal.factor) for proposal in proposals if proposal.factor is not None]
    if waiting:
        for (proposal, _), factor in zip(waiting, read_together(*(factor for _, factor in waiting)), strict=True):
            proposal.scale = float(factor)
    if any(gradient.is_sparse for gradient in gradients):
        size = math.sqrt(squared_norm(dual.parameters)) if dual.written_to() or not dual.is_large else dual.held_norm
        return GradientProducts(size, *products(dual.parameters, gradients), True)
    both = flat([*dual.parameters, *gradients]).view(2, -1)
    inner_products, all_count = read_together(both @ both.t(), both[0].all())
    (squared_size, inner), (_, squared) = inner_products.tolist()
    return GradientProducts(math.sqrt(squared_size), inner, squared, not bool(all_count))


def _read(
    dual: DualState, proposal: Proposal, factor: Tensor, gradients: Sequence[Tensor], reference: Sequence[Tensor]
) -> GradientProducts:
    """As ``_look``, on a device: everything that a step asks of one batch, in one copy to the host."""
    every = flat([*dual.parameters, *gradients, *reference]).view(3, -1)
    along = torch.stack([proposal.slopes, proposal.values]) @ proposal.gammas
    one_number = factor.to(along.dtype).view(1)
    numbers = torch.cat([(every @ every.t()).flatten(), along, one_number, proposal.block_gaps]).cpu()
    squared_size, inner, _, _, squared, shared, _, _, told, slope, value, scale = numbers[:12].tolist()
    known(proposal.block_gaps, numbers[12:])  # for the draws of the next batches
    proposal.scale = scale
    difference = math.sqrt(max(squared - 2 * scale * shared + scale**2 * told, 0.0))
    same = difference <= 1e-4 * max(scale * math.sqrt(told), math.sqrt(squared))
    return GradientProducts(math.sqrt(squared_size), inner, squared, True, scale * slope, scale * value, same)


def _compare(dual: DualState, proposals: list[Proposal], gradients: list[Tensor], length: float) -> None:
    """Compare the gradient with the reference of the proposals, if all have one."""
    known = [[proposal.scale * part for part in proposal.reference or []] for proposal in proposals]
    if not all(known):
        return
    reference = [sum(parts[1:], parts[0]) for parts in zip(*known, strict=True)]
    pairs = list(zip(gradients, reference, strict=True))
    if any(a.is_sparse != b.is_sparse for a, b in pairs):  # accumulated: sparse plus dense is dense
        gradients, reference = ([t.to_dense() if t.is_sparse else t for t in some] for some in zip(*pairs, strict=True))
    difference, scale = distance(gradients, reference), math.sqrt(squared_norm(reference))
    eps = torch.finfo(dual.parameters[0].dtype).eps
    allowed = 1e-4 * max(scale, length)
    if not difference <= allowed:  # allow for the rounding of terms that cancel, and of the blocks
        terms = sum(_length_of_terms(p, dual.num_examples) for p in proposals)
        allowed += 200 * eps * (terms + dual.lam * math.sqrt(squared_norm(dual.unclipped)))
    if not difference <= allowed:
        raise RuntimeError(
            f"the gradient differs from the one that the backward pass gave by {difference:.3g} (its length is "
            f"{scale:.3g}): {_advice(dual)}"
        )


def _advice(dual: DualState) -> str:
    return ADVICE + lowered_advice(dual.parameters[0].device)


def _size_of_terms(proposal: Proposal, num_examples: int) -> float:
    """The size of the terms of the slopes, which their rounding is relative to."""
    total = proposal.scale * sum(float(proposal.gammas @ terms.abs()) for terms in proposal.slope_terms)
    for name, tensor in proposal.potentials.tensors.items():
        # Labelings may cancel up to the rounding of their masses and scores.
        moved = 2.0 if proposal.change is None else proposal.change.abs().sum(1)
        sizes = tensor.flatten(1).norm(dim=1) * (proposal.parts[name].flatten(1).norm(dim=1) + moved)
        total += proposal.scale * float(proposal.gammas @ sizes.to(torch.float64)) / num_examples
    return total


def _length_of_terms(proposal: Proposal, num_examples: int) -> float:
    """``sum_i scale gamma_i |d_i|``, or the norm of ``sum_i scale gamma_i d_i`` if only that is known."""
    if proposal.gradients is None:
        return proposal.scale * math.sqrt(squared_norm(proposal.reference or []))
    squares = torch.zeros_like(proposal.gammas)
    for gradient in proposal.gradients:
        if gradient.is_sparse:
            of_rows = gradient.values().to(torch.float64).square().view(gradient._nnz(), -1).sum(1)
            add_rows(squares, gradient.indices()[0], of_rows)
        else:
            squares += gradient.flatten(1).to(torch.float64).square().sum(1)
    return proposal.scale / num_examples * float(proposal.gammas @ squares.sqrt())


class Move(NamedTuple):
    """A direction of the weights, and how the blocks move along it."""

    proposals: list[Proposal]  # the batches
    gradients: list[Tensor]  # d, for each parameter; sparse ones coalesced
    value: float  # derivative of the dual along d, at the start of the step
    largest: float  # largest feasible step
    seen: GradientProducts | None  # products of weights and d, if they are known
    coefficients: list[Tensor]  # the moves of each batch's blocks at step 1, ``[B]``
    rows: list[Tensor]  # the rows of each batch whose blocks move

    def counts(self) -> tuple[int, int, int]:
        """Examples decoded, labelings taken from the cache, and blocks that move."""
        decoded = [(len(p.index), p.found.decoded) for p in self.proposals]
        calls = sum(size if some is None else int(on_host(some).sum()) for size, some in decoded)
        return calls, sum(size for size, _ in decoded) - calls, sum(map(len, self.rows))

    def figures(self, dual: DualState) -> Figures:
        """What other ranks need to know."""
        change, gaps = 0.0, dual.gap_estimates.clone()
        for coefficient, proposal, rows in zip(self.coefficients, self.proposals, self.rows, strict=True):
            change += float((coefficient * proposal.loss_changes)[rows].sum())
            gaps[proposal.index[rows]] = proposal.block_gaps.clamp(min=0.0)[rows]
        loss, gap = float(dual.loss.sum()), float(gaps.sum())
        return Figures(self.value, self.largest, loss, change, gap, *self.counts())

    def take(self, dual: DualState, step: float) -> None:
        """Move the blocks, and set their gaps."""
        for proposal, coefficient, rows in zip(self.proposals, self.coefficients, self.rows, strict=True):
            _move(dual, proposal, step * coefficient, rows)


def check_move(dual: DualState, proposals: list[Proposal]) -> Move:
    """The move that the batches propose together, once the gradient is known to be theirs; changes nothing.

    Raises what :func:`check_gradient` does, RuntimeError for batches from losses with different ``block_steps``, and
    ValueError where the storage cannot move the batches together.
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
        coefficients, gradients, rows = _merge(proposals, dual)
        largest, seen = 1.0, None
    else:
        rows = [proposal.rows for proposal in proposals]
        coefficients = [p.gammas if p.scale == 1.0 else p.scale * p.gammas for p in proposals]
        largest = _largest_step(proposals)
    if dual.box.has_bounds:  # the box QP is then a lower bound of the dual, whose best step may be larger
        gradients = [dense(g) if bounded else g for g, bounded in zip(gradients, dual.box.bounded, strict=True)]
        largest = _farthest_step(proposals, coefficients)
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


def _merge(proposals: list[Proposal], dual: DualState) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Choose the steps of all batches together, as for one batch; an example counts at its first occurrence.

    Returns the coefficients of the rows of each batch, the gradient, and the rows of each batch that count.
    """
    seen: set[int] = set()
    keep: list[Tensor] = []
    for proposal in proposals:
        index = on_host(proposal.index).tolist()
        fresh = [row for row in on_host(proposal.rows).tolist() if index[row] not in seen]
        seen.update(index[row] for row in fresh)
        keep.append(upload(torch.tensor(fresh, dtype=torch.int64), proposal.index.device))
    stacked = [
        torch.cat(
            [g if len(g) == len(rows) else g.index_select(0, rows) for g, rows in zip(several, keep, strict=True)]
        )
        for several in zip(*(p.gradients or [] for p in proposals), strict=True)
    ]
    stacked = [g.coalesce() if g.is_sparse else g for g in stacked]
    values = torch.cat([p.values[rows] for p, rows in zip(proposals, keep, strict=True)])
    weight = 1.0 / (dual.lam * dual.num_examples**2)
    gammas, combined, _ = proposals[0].block_steps.solve(stacked, values, weight, 1.0 / dual.num_examples)
    coefficients = [
        torch.zeros_like(proposal.gammas).index_put_((rows,), part)
        for proposal, rows, part in zip(proposals, keep, gammas.split([len(rows) for rows in keep]), strict=True)
    ]
    return coefficients, combined, keep


def _largest_step(proposals: list[Proposal]) -> float:
    """The largest feasible step if each batch has chosen its own gammas; moves of an example in several batches add up.

    A batch whose loss was scaled by c moves by c of its direction at step 1.
    """
    if len(proposals) == 1:
        return 1.0 / proposals[0].scale
    scales = torch.cat([torch.full((len(p.rows),), p.scale, dtype=p.gammas.dtype) for p in proposals])
    return 1.0 / float(add_rows(torch.zeros_like(scales), _examples(proposals), scales).max())


def _farthest_step(proposals: list[Proposal], coefficients: list[Tensor]) -> float:
    """The largest feasible step if blocks move by ``coefficients`` at step 1."""
    moves = torch.cat(read_together(*(c[p.rows] for p, c in zip(proposals, coefficients, strict=True))))
    most = float(add_rows(torch.zeros_like(moves), _examples(proposals), moves).max())
    return 1.0 / most if most > 0.0 else 1.0


def _examples(proposals: list[Proposal]) -> Tensor:
    """A number for the example of each row that counts, on the CPU: 0 to the number of distinct examples less 1."""
    index = torch.cat([on_host(p.index)[on_host(p.rows)] for p in proposals])
    return index.unique(return_inverse=True)[1]


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
        first = on_host(rows)
        place, targets = place[first], None if targets is None else targets[first]
        decoded = None if decoded is None else decoded[rows]
    dual.loss.index_add_(0, index, changes)  # of distinct examples
    if targets is not None:
        dual.targets[place] = targets
    dual.relaxed |= found.relaxed
    there = source(dual.gap_estimates), source(proposal.block_gaps)
    dual.gap_estimates.index_copy_(0, index, gaps)
    if there[0] is not None and there[1] is not None:
        there[0][place] = (there[1] if len(there[1]) == len(place) else there[1][on_host(rows)]).clamp(min=0.0)
        known(dual.gap_estimates, there[0])
    seen = gaps if decoded is None else torch.where(decoded, gaps, dual.oracle_gaps[index])
    dual.oracle_gaps.index_copy_(0, index, seen)
