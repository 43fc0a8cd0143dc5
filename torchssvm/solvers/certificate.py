"""Exact primal, dual and gap: only these may stop a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import clock
from torchssvm.core.arguments import check_flags
from torchssvm.core.batch import Batch, check_fits
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.operators import on_host, scalars, upload
from torchssvm.core.packages import warn
from torchssvm.core.precision import full_precision
from torchssvm.core.ranks import sum_in_order
from torchssvm.core.row_sparse import flat, parts_of, squared_norm
from torchssvm.dual.checks import check_dual, check_targets, digest_examples
from torchssvm.dual.state import DualState
from torchssvm.solvers.exact_pass import ExactPass, every_block, exact_pass

_MASSES = 1e-12  # rounding of masses, which were of size 1 before they became small, times a loss of that size


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
        num_examples: n, the number of examples.
        lam: Regularisation.
        relaxed: Whether the oracle has returned labelings outside of the hull of outputs (``Decoding.relaxed``).
            Primal, dual and gap then belong to the relaxation, whose optimum may lie above the problem's: the primal
            bounds both optima, the dual only the relaxation's.

    Example:
        >>> certificate = solve(LinearMulticlass(4, 3), data, lam=0.1)
        >>> certificate.dual <= certificate.primal
        True
        >>> certificate.num_examples, certificate.lam, certificate.exact
        (30, 0.1, True)
    """

    primal: float
    dual: float
    gap: float
    exact: bool
    drift: float
    oracle_calls: int
    passes: float
    seconds: float = field(compare=False)
    num_examples: int
    lam: float
    relaxed: bool = field(default=False, kw_only=True)

    @property
    def relative_gap(self) -> float:
        """``gap / primal``: how far from the optimum the objective is at most, as a share of itself."""
        return self.gap / self.primal if self.primal > 0.0 else 0.0

    @property
    def kind(self) -> str:
        """Words that follow "gap" where it is an upper bound or belongs to a relaxation; else empty."""
        if self.relaxed:
            return " of the relaxation"
        return "" if self.exact else " (upper bound: approximate oracle)"

    @property
    def gaps(self) -> str:
        """The gap in words; the problem's gap first, then the relaxation's."""
        return f"gap{self.kind} {self.gap:.6g}"

    def __str__(self) -> str:
        return ("relaxation: " if self.relaxed else "") + f"{self.bounds} after {self.passes:.1f} effective passes"

    @property
    def bounds(self) -> str:
        """Primal, dual and gap in words."""
        bounded = not (self.exact or self.relaxed)
        return (
            f"primal {self.primal:.6g}{' (upper bound)' if bounded else ''}, dual {self.dual:.6g}, gap {self.gap:.6g} "
            f"({100 * self.relative_gap:.3g} % of the primal{'; upper bound: approximate oracle' if bounded else ''})"
        )


def certify(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch], *, refresh: bool = True
) -> Certificate:
    """One exact pass over the training set: primal, dual and gap of the weights that the head holds.

    Also updates every gap estimate. Rounding makes the head's weights drift from the dual's w(alpha), by 1e-6 to 4e-5
    relative in float32. With ``refresh`` the next optimizer step starts from the recomputed w(alpha); until then
    the head keeps the weights that the certificate is about. Without it, weights that were written to since the last
    step, such as an average, leave the run as it is.

    The pass runs in float64: a float64 copy of the weights and buffers of the head, on float64 features, so that
    primal, dual and gap are exact to the rounding of float64. Features of a network below the head are computed as in
    training. A head that is no module, or whose weights no module has alone, runs in the weights' dtype: its primal is
    exact up to 1e-7 of the scores in float32.

    Args:
        head: The head, or any callable ``(x)`` or ``(x, lengths)`` -> potentials that contains the dual's parameters,
            such as a model of frozen features and the head. A copy with equal weights is accepted.
        batches: Every training example exactly once, in any order, as :class:`torchssvm.Batch`.
        refresh: Whether the next step starts from the recomputed weights.

    Raises:
        ValueError: An example is missing or duplicated, a batch is not valid, or the head has other weights than the
            dual.
        RuntimeError: The dual does not belong to these examples: a target has changed since the example's first visit,
            a block's loss does not fit its labelings, or the gap is negative by more than rounding. Or features have
            moved and the storage cannot follow them. Or the weights violate their bounds. Nothing changes then.

    Example:
        >>> trainer = make_trainer(LinearMulticlass(4, 3), data, lam=0.1)
        >>> trainer.step()
        30
        >>> certificate = certify(trainer.head, trainer.dual, in_order(data))
        >>> certificate.gap == certificate.primal - certificate.dual
        True
    """
    check_dual(dual)
    check_flags(refresh=refresh)
    check_fits(head, dual.structure, batches)
    return conclude(dual, lambda: exact_pass(head, dual, batches, remember=True), refresh=refresh)


def pass_of_all_ranks(dual: DualState, make_pass: Callable[[], ExactPass]) -> ExactPass:
    """The pass of all ranks: each decodes its examples, and hinges, losses and weights are added up.

    Gaps, targets and ``remember`` belong to this rank's examples. Raises RankError if another rank has raised.
    """
    ranks = dual.ranks
    if not ranks:
        result = make_pass()
        check_pass(dual, result)
        return result
    sizes = [p.numel() for p in dual.parameters]
    small = ranks.is_small(sum(sizes))

    def make() -> tuple[ExactPass, Tensor]:
        result = make_pass()
        check_pass(dual, result)
        sums = result.hinges, float(on_host(dual.loss).sum()), float(result.gaps.clamp(min=0.0).sum())
        told = torch.tensor([*sums, result.exact, result.relaxed], dtype=torch.float64)
        return result, torch.cat([told, flat(result.weights).cpu()]) if small else told

    result, table = ranks.share(make, 5 + (sum(sizes) if small else 0))
    hinges, loss, gap = sum_in_order(table[:, :3]).tolist()
    dual.keep_sums(loss, dual.gap_estimate)
    total = sum_in_order(table[:, 5:]).to(result.weights[0]) if small else ranks.sum(flat(result.weights))
    return result._replace(
        hinges=hinges,
        exact=bool(table[:, 3].all()),
        relaxed=bool(table[:, 4].any()),
        gap_estimate=gap,
        weights=parts_of(total, dual.parameters),
    )


def conclude(dual: DualState, make_pass: Callable[[], ExactPass], *, refresh: bool) -> Certificate:
    """The certificate of the exact pass that ``make_pass`` makes, as :func:`certify`; updates the gaps of ``dual``."""
    start = clock()
    dual.to(dual.parameters[0].device)

    def within_bounds() -> ExactPass:
        dual.check_dtype()
        if dual.box.has_bounds and not dual.box.holds([p.detach() for p in dual.parameters]):
            raise RuntimeError("head has weights outside their bounds: let BCFW alone change them")
        return make_pass()

    result = pass_of_all_ranks(dual, within_bounds)
    sizes = _Sizes.of(dual, result.weights)
    primal = dual.lam / 2 * sizes.weights + result.hinges / dual.num_examples
    loss = dual.total_loss if dual.ranks else sizes.loss
    value = loss - dual.lam * sizes.dual
    difference = max(sizes.drifted, sizes.moved)
    drift = (difference / sizes.unclipped) ** 0.5 if sizes.unclipped > 0.0 else difference**0.5
    if dual_exceeds_primal(primal, value, dual.parameters[0].dtype, dual.lam * sizes.unclipped):
        raise RuntimeError(
            f"the gap is negative, {primal - value:.6g}: give the dual's examples, and run torchssvm.check(...)"
        )
    value = min(value, primal)  # a dual above the primal is rounding
    rounding = 1e3 * torch.finfo(dual.parameters[0].dtype).eps
    strange = drift > 100 * rounding
    # Without refresh, weights that the dual has not set, such as an average, say nothing of the run.
    foreign = not refresh and (dual.written_to() or dual.norm_changed(sizes.weights**0.5))
    # At a tiny lambda masses round to other weights: what that is worth goes with the losses.
    largest = float(result.losses[1].max()) if result.losses.numel() else 0.0
    visible = dual.lam / 2 * difference > (10 * rounding) ** 2 * abs(loss) + _MASSES * largest
    if strange and visible and not foreign:
        warn(
            f"the weights differ from the dual's by {drift:.2g} of their length: features have moved, an index names "
            "several examples, or another optimizer stepped"
            + (". The next step starts from the dual's" if refresh else "")
        )
    with undisturbed():
        dual.oracle_calls += dual.num_examples
        if refresh or not (foreign or strange):
            result.remember()
            if dual.steps:
                dual.targets = result.targets
            dual.relaxed |= result.relaxed
            gaps, device = result.gaps.clamp(min=0.0), dual.loss.device
            dual.gap_estimates, dual.oracle_gaps = upload(gaps, device), upload(gaps.clone(), device)
            dual.keep_sums(loss, result.gap_estimate)
            dual.certified_gap = primal - value
        if refresh:
            dual.recomputed = parts_of(sizes.numbers.to(dual.dtype), dual.parameters)
            if _far(dual, sizes):
                dual.restarts += 1  # the next step starts elsewhere
                dual.storage.forget_features()
    if result.hinges == 0.0 and not any(bool(p.any()) for p in dual.parameters):
        warn(
            "the primal is 0 at zero weights: the oracle returned an output without loss for every example. If outputs "
            "have losses, augmented_argmax must maximise score + loss: run torchssvm.check(head, structure, batch)"
        )
    return make_certificate(dual, primal, value, drift, start, exact=result.exact, relaxed=result.relaxed)


def make_certificate(
    dual: DualState, primal: float, value: float, drift: float, start: float, *, exact: bool, relaxed: bool
) -> Certificate:
    """The certificate of an exact pass that began at ``start`` and whose calls have been counted."""
    relaxed |= dual.relaxed
    return Certificate(
        primal=primal,
        dual=value,
        gap=primal - value,
        exact=exact and not relaxed,
        drift=drift,
        oracle_calls=dual.oracle_calls,
        passes=dual.passes,
        seconds=clock() - start,
        num_examples=dual.num_examples,
        lam=dual.lam,
        relaxed=relaxed,
    )


@undisturbed()
@torch.no_grad()
def write(values: Iterable[Tensor], parameters: Iterable[Tensor]) -> None:
    """Copy weights to the parameters."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


@contextmanager
def weights_kept(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Put the weights back at the end."""
    copies = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        write(copies, parameters)


def dual_exceeds_primal(primal: float, dual: float, dtype: torch.dtype, size: float = 0.0) -> bool:
    """Whether the dual exceeds the primal by more than rounding, so that one of them is wrong; true for NaN.

    Rounding is relative to primal, dual and ``size`` of the term that the dual subtracts; ``dtype`` is the weights'.
    """
    return not primal - dual >= -1e3 * torch.finfo(dtype).eps * (abs(primal) + abs(dual) + size) - 0.1 * _MASSES


def check_pass(dual: DualState, result: ExactPass) -> None:
    """Check by targets and losses that the dual belongs to these examples."""
    check_targets(dual, result.targets)
    # Arrays of numpy: its operators take less time than torch's.
    losses, (told, sizes) = dual.num_examples * on_host(dual.loss).numpy(), result.losses.numpy()
    # Rounding adds up over the moves of a block.
    rounding = (1e3 + 0.1 * dual.moved / dual.num_examples) * torch.finfo(dual.parameters[0].dtype).eps
    with np.errstate(invalid="ignore"):
        wrong = abs(losses - told) > rounding * (sizes + abs(losses).max()) + _MASSES  # False where NaN
    if wrong.any():
        examples = (wrong.nonzero()[0] + dual.own.start).tolist()
        raise RuntimeError(
            f"the losses of {len(examples)} blocks, examples {examples[:5]} among them, contradict their outputs: "
            "use unchanged costs, and run torchssvm.check(...)"
        )


class _Sizes(NamedTuple):
    """Squared lengths of the head's weights w, and of the recomputed v and its clipped weights w'."""

    weights: float  # ``|w|^2``
    unclipped: float  # ``|v|^2``
    clipped: float  # ``|w'|^2``
    dual: float  # ``<w', v - w'/2>``, which the dual subtracts ``lam`` times
    drifted: float  # ``|u - v|^2``, with u = ``dual.unclipped``
    moved: float  # ``|w - w'|^2``
    loss: float  # ``sum_i l_i`` of this process
    numbers: Tensor  # v as ``flat`` gives it

    @classmethod
    def of(cls, dual: DualState, weights: list[Tensor]) -> _Sizes:
        w, v, loss = flat(dual.parameters), flat(weights), float(on_host(dual.loss).sum())
        if not dual.box.has_bounds:
            moved = (flat(dual.origin) if dual.damped else w) - v  # damped weights are others on purpose
            length, square, distance = scalars(w @ w, v @ v, moved @ moved)
            return cls(length, square, square, square / 2, distance, distance, loss, v)
        clipped = flat(dual.box.clip(weights))
        drifted, moved = flat(dual.unclipped) - v, w - clipped
        products = w @ w, v @ v, clipped @ clipped, clipped @ (v - clipped / 2), drifted @ drifted, moved @ moved
        a, b, c, d, e, f = scalars(*products)
        return cls(a, b, c, d, e, f, loss, v)


def _far(dual: DualState, sizes: _Sizes) -> bool:
    """Whether the recomputed w(alpha) differs from the head's weights by more than rounding."""
    length = sizes.clipped**0.5
    allowed = 1e4 * torch.finfo(dual.parameters[0].dtype).eps * max(length, dual.held_norm)
    if dual.norm_changed(sizes.weights**0.5):  # the head holds other weights now, such as an average
        return abs(length - dual.held_norm) > allowed
    return sizes.moved**0.5 > allowed


@torch.no_grad()
def recompute_weights(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch], *, moved: bool = True
) -> float:
    """Set the weights to w(alpha) of the current features, by a pass without decoding; needed when features have moved.

    Under bounds v is recomputed, and the weights are ``clip(v)``. Gap estimates become unknown (infinite), as they were
    made for other weights.

    Args:
        head: As in :func:`certify`.
        dual: The dual state, with a storage that can follow the features (``MeanParts`` or ``Labelings``).
        batches: Every training example exactly once.
        moved: Whether features may have moved, which ``Weights()`` cannot follow.

    Returns:
        The relative change of the weights; under bounds, the relative change of v.

    Raises:
        ValueError: An example is missing or duplicated, the head has other weights than the dual, or the storage keeps
            weights.
        RuntimeError: A target has changed since the example's first visit.

    Example:
        >>> trainer = make_trainer(LinearMulticlass(4, 3), data, lam=0.1)
        >>> trainer.step()
        30
        >>> recompute_weights(trainer.head, trainer.dual, in_order(data)) < 1e-4  # the drift: rounding alone
        True
    """
    check_dual(dual)
    if moved and dual.storage.needs_gradients:
        raise ValueError(f"storage={type(dual.storage).__name__}() keeps old features: use MeanParts() or Labelings()")
    weights = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]

    def add_up() -> None:
        for batch, potentials, index, leaves in every_block(head, dual, batches):
            target = dual.structure.check_target(batch.y, potentials)
            check_targets(dual, digest_examples(target, potentials), index)
            with full_precision(potentials.device):
                stored = dual.storage.gather(index, potentials.detach(), target)
                dual.storage.check_features(stored, potentials, leaves)
                parts = dual.storage.contribution(stored, potentials, leaves)
            for total, part in zip(weights, parts, strict=True):
                total += part

    dual.ranks.run_on_all(add_up)
    weights = [dual.ranks.sum(total) for total in weights]
    before = squared_norm(dual.unclipped)
    change = squared_norm(v.detach().to(torch.float64) - w for v, w in zip(dual.unclipped, weights, strict=True))
    with undisturbed():
        dual.set_weights(weights)
        dual.restarts += 1
        dual.storage.forget_features()
        dual.gap_estimates.fill_(torch.inf)
        dual.oracle_gaps.fill_(torch.inf)
        dual.certified_gap = torch.inf
    dual.sum_over_ranks()
    return (change / before) ** 0.5 if before > 0.0 else change**0.5
