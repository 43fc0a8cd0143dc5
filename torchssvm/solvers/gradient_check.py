"""Check that the weights' gradient is the one from the backward pass of ``BlockGap``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.on_host import read_together
from torchssvm.core.ordered_sums import add_rows
from torchssvm.core.precision import lowered_advice
from torchssvm.core.row_sparse import distance, flat, products, squared_norm
from torchssvm.dual.state import DualState
from torchssvm.steps.proposal import Proposal

ADVICE = (
    "BCFW needs the gradient of BlockGap as backward() left it. Call optimizer.zero_grad() before every forward pass; "
    "remove gradient clipping and scaling, averages over processes (DistributedDataParallel), mixed precision and "
    "other losses on the head's weights; if the head is your own, see torchssvm.check(head, structure, batch)"
)


class GradientProducts(NamedTuple):
    """Products of weights w and gradient d.

    Attributes:
        size: ``|w|``.
        inner: ``<w, d>``.
        squared_norm: ``|d|^2``.
        some_are_zero: Whether some weight is zero, so that Euler's identity does not check its gradient.
        expected: What ``<w, d>`` should be, if already computed.
        value: Derivative of the dual along d at the weights of the forward pass, if already computed.
        same: Whether d has been compared with the gradient that the backward pass gave, and is the same.
    """

    size: float
    inner: float
    squared_norm: float
    some_are_zero: bool
    expected: float | None = None
    value: float | None = None
    same: bool = False


def check_gradient(dual: DualState, proposals: list[Proposal], gradients: list[Tensor]) -> GradientProducts:
    """Check that the gradients are those of the proposals, mainly by Euler's identity.

    A linear head has ``<w, d> = sum_i gamma_i <Delta_i, theta_i>/n``. If per-example gradients are known or some weight
    is zero, the gradient itself is compared. Of sparse gradients only the stored rows are read.

    Args:
        dual: The dual state.
        proposals: The steps that the backward passes proposed.
        gradients: For each parameter; sparse ones coalesced.

    Returns:
        The products that were computed.

    Raises:
        TypeError: The weights have another dtype than when the dual was made.
        RuntimeError: The gradients are not those of the proposals or not finite, or the weights have changed since the
            last step.
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
    numbers = torch.cat([(every @ every.t()).flatten(), along, factor.to(along.dtype).view(1)]).tolist()
    squared_size, inner, _, _, squared, shared, _, _, told, slope, value, scale = numbers
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
