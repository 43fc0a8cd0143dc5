"""Exact primal, dual and gap: only these may stop a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchssvm.core.arguments import check_flags
from torchssvm.core.batch import Batch
from torchssvm.core.caller import warn
from torchssvm.core.digest import digest_targets
from torchssvm.core.potentials import Potentials
from torchssvm.core.precision import full_precision, in_full_precision
from torchssvm.core.probe import check_depends
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.structure import find_corner
from torchssvm.dual.state import DualState, check_dual
from torchssvm.solvers.objective import every_example


@dataclass(frozen=True)
class Certificate:
    """What one pass over all examples proves about the weights: ``primal - optimum <= gap``.

    Attributes:
        primal: ``lam/2 |w|^2 + (1/n) sum_i H_i(w)`` at the weights that the head holds; with an approximate oracle, an
            upper bound of it.
        dual: ``sum_i l_i - lam/2 |w(alpha)|^2``, with w(alpha) recomputed from the dual blocks; under bounds, the
            formula of :class:`torchssvm.DualState`.
        gap: ``primal - dual``.
        exact: Whether the oracle was exact for every example, so that ``primal`` is the objective itself. False where
            ``relaxed``.
        drift: ``|w - w(alpha)| / |w(alpha)|``: rounding, unless something else moved the features or the weights. Under
            bounds, the larger of ``|v - v(alpha)|`` and ``|w - w(alpha)|``, over ``|v(alpha)|``.
        oracle_calls: Examples decoded since the start, this pass included.
        passes: ``oracle_calls / n``.
        seconds: Duration of this pass.
        num_examples: n.
        lam: Regularisation.
        relaxed: Whether the oracle has returned labelings outside of the hull of outputs (``Decoding.relaxed``).
            Primal, dual and gap are then those of the relaxation, whose optimum may lie above that of the problem: the
            primal bounds both optima, the dual only that of the relaxation.
    """

    primal: float
    dual: float
    gap: float
    exact: bool
    drift: float
    oracle_calls: int
    passes: float
    seconds: float
    num_examples: int
    lam: float
    relaxed: bool = field(default=False, kw_only=True)

    def __str__(self) -> str:
        kind = "" if self.exact or self.relaxed else " (upper bound: approximate oracle)"
        return ("relaxation: " if self.relaxed else "") + (
            f"primal {self.primal:.6f}{kind}, dual {self.dual:.6f}, gap {self.gap:.6f} "
            f"after {self.passes:.1f} effective passes"
        )


def certify(
    head: Callable[..., Any],
    dual: DualState,
    batches: Iterable[Batch],
    *,
    refresh: bool = True,
) -> Certificate:
    """One exact pass over the training set: primal, dual and gap of the weights that the head holds.

    Also updates every gap estimate. Rounding makes the held weights drift from the dual's weights w(alpha), by 1e-6 to
    4e-5 relative in float32. With ``refresh`` the next optimizer step starts from the recomputed w(alpha); until then
    the head keeps the weights that the certificate is about.

    Args:
        head: The head, or any callable ``(x)`` or ``(x, lengths)`` -> potentials that contains the dual's parameters,
            such as a model of frozen features and the head. A copy with equal weights is accepted.
        dual: The dual state.
        batches: Every training example exactly once, in any order, as :class:`torchssvm.Batch`.
        refresh: Whether the next step starts from the recomputed weights.

    Raises:
        ValueError: An example is missing or duplicated, a batch is not valid, or the head has other weights than the
            dual.
        RuntimeError: The dual does not belong to these examples: a target has changed since the example's first visit,
            a block's loss does not fit its labelings, or the gap is negative by more than rounding. Or features have
            moved and the storage cannot follow them. Or the held weights violate their bounds. Nothing changes then.
    """
    check_dual(dual)
    check_flags(refresh=refresh)
    return conclude(dual, lambda: exact_pass(head, dual, batches, remember=True), refresh=refresh)


def conclude(dual: DualState, make_pass: Callable[[], ExactPass], *, refresh: bool) -> Certificate:
    """The certificate of an exact pass; updates the gaps of ``dual``. Arguments and errors as in :func:`certify`.

    Args:
        dual: The dual state.
        make_pass: Makes the pass.
        refresh: Whether the next step starts from the recomputed weights.
    """
    start = time.perf_counter()
    dual.to(dual.parameters[0].device)
    if not dual.box.holds([p.detach() for p in dual.parameters]):
        raise RuntimeError(
            "the head's weights are out of their bounds: they are a function of the dual, and were changed by others"
        )
    found = make_pass()
    weights = found.weights
    check_pass(dual, found)
    primal = dual.lam / 2 * squared_norm(dual.parameters) + found.hinges / dual.num_examples
    length = squared_norm(weights)
    value = dual.objective(float(dual.loss.sum()), weights)
    difference = _squared_distance(dual.unclipped, weights)
    if dual.box.has_bounds:
        difference = max(difference, _squared_distance(dual.parameters, dual.box.clip(weights)))
    drift = (difference / length) ** 0.5 if length > 0.0 else difference**0.5
    if crosses(primal, value, dual.parameters[0].dtype, dual.lam * length):
        raise RuntimeError(
            f"the gap is negative, {primal - value:.6g}: the dual is not one of these examples. Was an index used for "
            "several examples, or did targets or lengths change? Or, with a structure of your own, augmented_argmax "
            "ignores the loss: run torchssvm.check(head, structure, batch)"
        )
    rounding = 1e3 * torch.finfo(dual.parameters[0].dtype).eps
    scale = (2.0 * float(dual.loss.sum()) / dual.lam) ** 0.5  # the size of weights that are not negligible
    if drift > 100 * rounding and difference**0.5 > 0.1 * rounding * scale:
        warn(
            f"the weights differ from those of the dual by {drift:.2g} of their length, more than rounding: features "
            "have moved, an index names several examples, or weights were edited: did another optimizer step them? "
            "Only BCFW may. The certificate holds all the same, and the next step starts from the dual's weights; the "
            "gap does not close while this goes on. Compare the features and indices of training with those of the "
            "exact pass",
        )
    if found.hinges == 0.0 and not any(bool(p.any()) for p in dual.parameters):
        warn(
            "the primal is 0 at zero weights: the oracle returned an output without loss for every example, such as "
            "the target. Unless there are no others, it is wrong, and nothing is learned: augmented_argmax must "
            "maximise score + loss; run torchssvm.check(head, structure, batch)"
        )
    value = min(value, primal)  # a dual above the primal is rounding
    found.remember()
    if dual.steps:
        dual.targets = found.targets
    dual.relaxed |= found.relaxed
    dual.gap_estimates = found.gaps.clamp(min=0.0)
    dual.oracle_gaps = dual.gap_estimates.clone()
    dual.certified_gap = primal - value
    dual.oracle_calls += dual.num_examples
    if refresh:
        dual.recomputed = [w.to(p.dtype) for w, p in zip(weights, dual.parameters, strict=True)]
        if features_moved(dual, weights):
            dual.restarts += 1  # the next step starts elsewhere
            dual.storage.forget_features()
    return issue(dual, found, primal, value, drift, start)


def issue(dual: DualState, found: ExactPass, primal: float, value: float, drift: float, start: float) -> Certificate:
    """The certificate of an exact pass that began at ``start`` and whose calls have been counted."""
    relaxed = dual.relaxed or found.relaxed
    return Certificate(
        primal=primal,
        dual=value,
        gap=primal - value,
        exact=found.exact and not relaxed,
        drift=drift,
        oracle_calls=dual.oracle_calls,
        passes=dual.passes,
        seconds=time.perf_counter() - start,
        num_examples=dual.num_examples,
        lam=dual.lam,
        relaxed=relaxed,
    )


def crosses(primal: float, dual: float, dtype: torch.dtype, size: float = 0.0) -> bool:
    """Whether the dual exceeds the primal by more than rounding, so that one of them is wrong; true for NaN.

    Args:
        primal: The primal, or an upper bound of it.
        dual: The dual.
        dtype: The dtype of the weights.
        size: Size of the term that the dual subtracts; the rounding of the dual is relative to it.
    """
    return not primal - dual >= -1e3 * torch.finfo(dtype).eps * (1.0 + abs(primal) + size)


def check_pass(dual: DualState, found: ExactPass) -> None:
    """Check by targets and losses that the dual belongs to these examples.

    Raises:
        RuntimeError: Targets differ, or a block's loss does not fit the labelings in the block.
    """
    dual.check_targets(found.targets)
    held, (told, sizes) = dual.num_examples * dual.loss, found.losses
    # Rounding adds up over the moves of a block.
    rounding = (1e3 + 0.1 * dual.moved / dual.num_examples) * torch.finfo(dual.parameters[0].dtype).eps
    wrong = (held - told).abs() > rounding * (sizes + held.abs().max()) + 1e-12  # False where NaN
    if bool(wrong.any()):
        raise RuntimeError(
            f"the losses of {int(wrong.sum())} blocks are not those of the outputs that they hold, of examples "
            f"{wrong.nonzero().flatten().tolist()[:5]} among them: costs have changed, the dual was edited, or "
            "loss_potentials() does not say what loss() does (see torchssvm.check). Load an earlier checkpoint, or "
            "make a new DualState"
        )


class ExactPass(NamedTuple):
    """The results of one pass over all examples at the weights that the head holds; the pass changes nothing.

    Attributes:
        hinges: ``sum_i H_i``; with an approximate oracle, an upper bound of it.
        exact: Whether the oracle was exact for every example.
        relaxed: Whether labelings may lie outside of the hull of outputs.
        gaps: ``[n]`` float64, the block gaps at the held weights.
        weights: w(alpha), the dual's weights for the current features, float64, one tensor for each parameter; under
            bounds, v.
        targets: ``[n]`` int64, a digest of every example's target.
        losses: ``[2, n]`` float64: ``n l_i`` computed from each block, NaN where that is impossible, and the sum of the
            absolute values of its terms.
        remember: Stores the labelings found, if the storage keeps labelings and was asked to.
    """

    hinges: float
    exact: bool
    relaxed: bool
    gaps: Tensor
    weights: list[Tensor]
    targets: Tensor
    losses: Tensor
    remember: Callable[[], None]


def exact_pass(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch], *, remember: bool = False
) -> ExactPass:
    """Decode every example once; arguments and errors as in :func:`certify`.

    With ``remember`` the result can add the labelings found to a storage that keeps labelings.
    """
    hinges = 0.0
    exact, relaxed = True, False
    gaps = torch.zeros(dual.num_examples, dtype=torch.float64, device=dual.parameters[0].device)
    losses = torch.stack([torch.full_like(gaps, torch.nan), gaps])
    targets = torch.zeros_like(gaps, dtype=torch.int64)
    weights = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
    keep: list[Callable[[], None]] = []
    for batch, potentials, index in _every_block(head, dual, batches):
        target = dual.structure.check_target(batch.y, potentials)
        targets[index] = digest_targets(target, potentials.lengths)
        corner = find_corner(dual.structure, potentials, target)
        with torch.no_grad(), full_precision(potentials.device):
            stored = dual.storage.gather(index, potentials, target)
            dual.storage.check_features(stored, potentials)
            hinges += float(corner.bound.sum())
            exact &= corner.exact
            relaxed |= corner.relaxed
            gaps[index] = corner.hinge / dual.num_examples + stored.inner(potentials) - dual.loss[index]
            if (known := stored.mean_loss(potentials)) is not None:
                losses[:, index] = torch.stack(known)
            for total, part in zip(weights, dual.storage.contribution(stored, potentials), strict=True):
                total += part
            if remember and (insert := dual.storage.remember(stored, corner)) is not None:
                keep.append(insert)

    def insert_all() -> None:
        for insert in keep:
            insert()
        if keep:
            dual.version += 1  # slots may hold other labelings now

    return ExactPass(hinges, exact, relaxed, gaps, weights, targets, losses, insert_all)


def of_dual(head: Callable[..., Any], dual: DualState) -> Callable[..., Any]:
    """``head``, with the dual's parameters put in place of equal copies if it is a module.

    Raises:
        ValueError: ``head`` is a module with other weights.
    """
    if not isinstance(head, nn.Module):
        return head
    named = dict(head.named_parameters())
    wanted = {id(p) for p in dual.parameters}
    if wanted <= {id(p) for p in named.values()}:
        return head
    some = _alike(named, dual.parameters)
    if some is None:
        raise ValueError(
            f"head={type(head).__name__}(...) has other weights than the dual, and a certificate is for the weights of "
            "the dual alone: pass the head that the dual was made for. To load weights, load the state of their "
            "optimizer; for the objective of other weights, see torchssvm.primal"
        )
    replaced: dict[str, Tensor] = dict(zip(some, dual.parameters, strict=True))
    # As in in_full_precision: features below the copy stay in the precision of the process.
    alone = full_precision if len(named) == len(wanted) else lambda _: nullcontext()

    def call(*args: Any) -> Any:
        with alone(dual.parameters[0].device):
            return functional_call(head, replaced, args)

    return call


def _alike(named: dict[str, nn.Parameter], parameters: Sequence[nn.Parameter]) -> list[str] | None:
    """The names of consecutive parameters that are equal to ``parameters``, or None."""
    names = list(named)
    for begin in range(len(names) - len(parameters) + 1):
        some = names[begin : begin + len(parameters)]
        pairs = zip((named[name] for name in some), parameters, strict=True)
        if all(a.dtype == b.dtype and torch.equal(a.to(b.device), b) for a, b in pairs):
            return some
    return None


def features_moved(dual: DualState, weights: list[Tensor]) -> bool:
    """Whether the recomputed w(alpha) differs from the held weights by more than the rounding of many steps.

    Args:
        dual: The dual state.
        weights: w(alpha) for the current features; under bounds, v.
    """
    length = squared_norm(dual.box.clip(weights)) ** 0.5
    allowed = 1e4 * torch.finfo(dual.parameters[0].dtype).eps * max(length, dual.held_norm)
    if dual.norm_changed(squared_norm(dual.parameters) ** 0.5):  # the head holds other weights now, such as an average
        return abs(length - dual.held_norm) > allowed
    return _squared_distance(dual.parameters, dual.box.clip(weights)) ** 0.5 > allowed


@torch.no_grad()
def recompute_weights(head: Callable[..., Any], dual: DualState, batches: Iterable[Batch]) -> float:
    """Set the weights to w(alpha) of the current features, by a pass without decoding; needed when features have moved.

    Under bounds v is recomputed, and the weights are ``clip(v)``. Gap estimates become unknown (infinite), as they were
    made for other weights.

    Args:
        head: As in :func:`certify`.
        dual: The dual state, with a storage that can follow the features (``MeanParts`` or ``Labelings``).
        batches: Every training example exactly once.

    Returns:
        The relative change of the weights; under bounds, that of v.

    Raises:
        ValueError: An example is missing or duplicated, the head has other weights than the dual, or the storage keeps
            weights.
        RuntimeError: A target has changed since the example's first visit.
    """
    check_dual(dual)
    if dual.storage.needs_gradients:
        raise ValueError(
            f"storage={type(dual.storage).__name__}() keeps weights of old features: use MeanParts() or Labelings()"
        )
    weights = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
    for batch, potentials, index in _every_block(head, dual, batches):
        target = dual.structure.check_target(batch.y, potentials)
        dual.check_targets(digest_targets(target, potentials.lengths), index)
        with full_precision(potentials.device):
            parts = dual.storage.contribution(dual.storage.gather(index, potentials, target), potentials)
        for total, part in zip(weights, parts, strict=True):
            total += part
    before = squared_norm(dual.unclipped)
    change = _squared_distance(dual.unclipped, weights)
    dual.set_weights(weights)
    dual.restarts += 1
    dual.storage.forget_features()
    dual.gap_estimates.fill_(torch.inf)
    dual.oracle_gaps.fill_(torch.inf)
    dual.certified_gap = torch.inf
    return (change / before) ** 0.5 if before > 0.0 else change**0.5


def _every_block(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, Potentials, Tensor]]:
    """As :func:`every_training_example`, for a head that must have the dual's weights."""
    every = every_training_example(of_dual(head, dual), dual, batches)
    for place, (batch, potentials, index) in enumerate(every):
        if place == 0:
            check_depends(potentials, dual.structure, dual.parameters)
        yield batch, potentials, index


def _squared_distance(held: Sequence[Tensor], weights: Sequence[Tensor]) -> float:
    return squared_norm(p.detach().to(torch.float64) - w for p, w in zip(held, weights, strict=True))


def every_training_example(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, Potentials, Tensor]]:
    """Yield each batch with its potentials and checked index; raise ValueError unless every example comes once."""
    head = in_full_precision(head, dual.parameters)
    return every_example(head, batches, dual.parameters[0].device, dual.check_batch, dual.num_examples)
