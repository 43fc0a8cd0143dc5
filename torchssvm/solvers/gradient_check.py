"""Is the gradient that the weights hold the one that the backward pass of ``BlockGap`` gave?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.ordered_sums import add_rows
from torchssvm.core.precision import lowered_advice
from torchssvm.core.row_sparse import distance, flat, products, squared_norm
from torchssvm.dual.state import DualState
from torchssvm.steps.proposal import Proposal

ADVICE = (
    "BCFW needs the gradient of BlockGap as backward() left it. Call optimizer.zero_grad() before every forward pass; "
    "remove gradient clipping and scaling, mixed precision and other losses on the head's weights; if the head is your "
    "own, see torchssvm.check(head, structure, batch)"
)


class Seen(NamedTuple):
    """What was read of weights w and gradient d.

    Attributes:
        size: ``|w|``.
        inner: ``<w, d>``.
        squared_norm: ``|d|^2``.
        some_are_zero: Whether some weight is zero: Euler's identity does not see its gradient.
    """

    size: float
    inner: float
    squared_norm: float
    some_are_zero: bool


def check_gradient(dual: DualState, proposals: list[Proposal], gradients: list[Tensor]) -> Seen:
    """Whether the gradients are those of the proposals; Euler's identity is the main witness.

    For a linear head ``<w, d> = sum_i gamma_i <Delta_i, theta_i>/n``. Where per-example gradients are known, and at
    w = 0, where Euler's identity says nothing, the gradient itself is compared. Of sparse gradients, the rows that they
    have are read, and no others.

    Args:
        dual: The dual state.
        proposals: The steps that the backward passes proposed.
        gradients: For each parameter; sparse ones coalesced.

    Returns:
        What was read of them.

    Raises:
        TypeError: The weights are not of the dtype that the dual was made for.
        RuntimeError: They are not; or the weights are not those that the last step left, or not finite.
    """
    for proposal in proposals:
        if proposal.version != dual.version:
            raise RuntimeError(
                "the directions of this backward pass are of an earlier state of the dual: call the head and "
                "BlockGap again after every step (no retain_graph), and after loading or recomputing weights"
            )
        if not (math.isfinite(proposal.scale) and proposal.scale > 0.0):
            raise RuntimeError(f"the loss was multiplied by {proposal.scale}: only positive factors make sense")
    for parameter, gradient in zip(dual.parameters, gradients, strict=True):
        if parameter.dtype is not dual.dtype:
            dual.check_dtype()
        if gradient.dtype != parameter.dtype:
            raise RuntimeError(f"a gradient is {gradient.dtype} and its weight {parameter.dtype}: {_advice(dual)}")
    seen = _look(dual, gradients)
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
    expected = sum(p.scale * float(p.gammas @ p.slopes) for p in proposals)
    allowed = 1e-4 * abs(expected) + 200 * eps * seen.size * length + 1e-30  # the last for products that underflow
    if not abs(seen.inner - expected) <= allowed:
        # Slopes are sums of larger terms: allow for their rounding before an error is raised.
        allowed += 200 * eps * sum(_size_of_terms(p, dual.num_examples) for p in proposals)
    if not abs(seen.inner - expected) <= allowed:
        raise RuntimeError(
            f"<w, gradient> is {seen.inner:.9g} and should be {expected:.9g}, as for every head that is linear in its "
            f"weights: {_advice(dual)}"
        )
    if len(proposals) == 1 and proposals[0].squared_norm is not None and not seen.some_are_zero:
        # Euler's identity and the length tell almost every change, and are known already: only if the length is not
        # to the last digits what it should be, or some weight is zero, the gradient itself is compared.
        told = proposals[0].scale ** 2 * proposals[0].squared_norm
        if abs(seen.squared_norm - told) <= 30 * eps * told:
            return seen
    _compare(dual, proposals, gradients, length)
    return seen


def _look(dual: DualState, gradients: Sequence[Tensor]) -> Seen:
    if any(gradient.is_sparse for gradient in gradients):
        size = math.sqrt(squared_norm(dual.parameters)) if dual.written_to() or not dual.is_large else dual.held_norm
        return Seen(size, *products(dual.parameters, gradients), True)
    both = flat([*dual.parameters, *gradients]).view(2, -1)
    (squared_size, inner), (_, squared) = (both @ both.t()).tolist()
    return Seen(math.sqrt(squared_size), inner, squared, not bool(both[0].all()))


def _compare(dual: DualState, proposals: list[Proposal], gradients: list[Tensor], length: float) -> None:
    """Compare the gradient with what it should be, where that can be told without it."""
    known = [[proposal.scale * part for part in proposal.reference or []] for proposal in proposals]
    if not all(known):
        return
    reference = [sum(parts[1:], parts[0]) for parts in zip(*known, strict=True)]
    pairs = list(zip(gradients, reference, strict=True))
    if any(a.is_sparse != b.is_sparse for a, b in pairs):  # an accumulated one: sparse and dense make dense
        gradients, reference = ([t.to_dense() if t.is_sparse else t for t in some] for some in zip(*pairs, strict=True))
    difference, scale = distance(gradients, reference), math.sqrt(squared_norm(reference))
    eps = torch.finfo(dual.parameters[0].dtype).eps
    allowed = 1e-4 * max(scale, length)
    if not difference <= allowed:  # terms that cancel leave their rounding, and that of the blocks they came from
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
    """How large the numbers are that the slopes were summed from: their rounding is relative to it."""
    total = proposal.scale * sum(float(proposal.gammas @ terms.abs()) for terms in proposal.slope_terms)
    for name, tensor in proposal.potentials.tensors.items():
        # Where labelings cancel, what is left of their masses and scores is rounding.
        moved = 2.0 if proposal.change is None else proposal.change.abs().sum(1)
        sizes = tensor.flatten(1).norm(dim=1) * (proposal.parts[name].flatten(1).norm(dim=1) + moved)
        total += proposal.scale * float(proposal.gammas @ sizes.to(torch.float64)) / num_examples
    return total


def _length_of_terms(proposal: Proposal, num_examples: int) -> float:
    """``sum_i scale gamma_i |d_i|``, or the length of the sum where only that is known."""
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
