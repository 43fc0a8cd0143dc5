"""Exact primal, dual and gap: the only numbers that may stop a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.arguments import check_flags
from torchssvm.batch import Batch
from torchssvm.caller import warn
from torchssvm.dual import DualState
from torchssvm.dual.digest import digest_targets
from torchssvm.dual.state import check_dual, squared_norm
from torchssvm.potentials import Potentials, full_precision
from torchssvm.primal import every_example
from torchssvm.structures import find_corner


@dataclass(frozen=True)
class Certificate:
    """What one pass over all examples proves about the weights: ``primal - optimum <= gap``.

    Attributes:
        primal: ``lam/2 |w|^2 + (1/n) sum_i H_i(w)`` at the weights that the head holds; with an approximate oracle, an
            upper bound of it.
        dual: ``sum_i l_i - lam/2 |w(alpha)|^2``, with w(alpha) recomputed from the dual blocks; under bounds, the
            formula of :class:`torchssvm.DualState`.
        gap: ``primal - dual``.
        exact: Whether the oracle was exact for every example, so that ``primal`` is the objective itself.
        drift: ``|w - w(alpha)| / |w(alpha)|``: rounding, unless the features or the weights were moved by others. Under
            bounds, the larger of ``|v - v(alpha)|`` and ``|w - w(alpha)|``, over ``|v(alpha)|``.
        oracle_calls: Examples decoded since the start, this pass included.
        passes: ``oracle_calls / n``.
        seconds: Duration of this pass.
        num_examples: n.
        lam: Regularisation.
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

    def __str__(self) -> str:
        kind = "" if self.exact else " (upper bound: approximate oracle)"
        return (
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

    It also brings every gap estimate up to date. Rounding makes the held weights drift from w(alpha), those of the dual
    (1e-6 to 4e-5 relative in float32): with ``refresh`` the next optimizer step starts from the recomputed w(alpha).
    Until then the head keeps the very weights that the certificate is about.

    Args:
        head: The head, or any callable ``(x)`` or ``(x, lengths)`` -> potentials with the dual's parameters in it, such
            as a model of frozen features and the head.
        dual: The dual state.
        batches: Every training example exactly once, in any order, as :class:`torchssvm.Batch`.
        refresh: Whether the next step starts from the recomputed weights.

    Raises:
        ValueError: An example is missing or came twice, or a batch is not valid.
        RuntimeError: A target is not that of the exact pass before, or the gap is negative by more than rounding: the
            dual is not one of these examples. Or the held weights are out of their bounds, where no primal value bounds
            the optimum.
    """
    check_dual(dual)
    check_flags(refresh=refresh)
    return conclude(dual, lambda: exact_pass(head, dual, batches, remember=True), refresh=refresh)


def conclude(dual: DualState, make_pass: Callable[[], ExactPass], *, refresh: bool) -> Certificate:
    """What an exact pass proves; brings the gaps of ``dual`` up to date. Arguments and errors as in :func:`certify`.

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
    hinges, exact, gaps, weights, targets = make_pass()
    dual.check_targets(targets)
    primal = dual.lam / 2 * squared_norm(dual.parameters) + hinges / dual.num_examples
    length = squared_norm(weights)
    value = dual.objective(float(dual.loss.sum()), weights)
    difference = _squared_distance(dual.unclipped, weights)
    if dual.box:
        difference = max(difference, _squared_distance(dual.parameters, dual.box.clip(weights)))
    drift = (difference / length) ** 0.5 if length > 0.0 else difference**0.5
    rounding = 1e3 * torch.finfo(dual.parameters[0].dtype).eps
    if primal - value < -rounding * (1.0 + abs(primal) + dual.lam * length):
        raise RuntimeError(
            f"the gap is negative, {primal - value:.6g}: the dual is not one of these examples. Was an index used for "
            "several examples, or did targets or lengths change?"
        )
    scale = (2.0 * float(dual.loss.sum()) / dual.lam) ** 0.5  # of weights that are not almost nothing
    if drift > 100 * rounding and difference**0.5 > 0.1 * rounding * scale:
        warn(
            f"the weights differ from those of the dual by {drift:.2g} of their length, more than rounding. Have the "
            "features moved (see recompute_weights), or were weights edited? Then the certificate holds. Or was an "
            "index used for several examples, or was the dual trained on others? Then it bounds nothing.",
        )
    dual.gap_estimates = gaps.clamp(min=0.0)
    dual.oracle_gaps = dual.gap_estimates.clone()
    dual.certified_gap = max(primal - value, 0.0)
    dual.oracle_calls += dual.num_examples
    if refresh:
        dual.recomputed = [w.to(p.dtype) for w, p in zip(weights, dual.parameters, strict=True)]
        if features_moved(dual, weights):
            dual.restarts += 1  # the next step starts elsewhere
            dual.storage.forget_features()
    return Certificate(
        primal=primal,
        dual=value,
        gap=primal - value,
        exact=exact,
        drift=drift,
        oracle_calls=dual.oracle_calls,
        passes=dual.passes,
        seconds=time.perf_counter() - start,
        num_examples=dual.num_examples,
        lam=dual.lam,
    )


class ExactPass(NamedTuple):
    """What one pass over all examples finds, decoding at the weights that the head holds.

    Attributes:
        hinges: ``sum_i H_i``; with an approximate oracle, an upper bound of it.
        exact: Whether the oracle was exact for every example.
        gaps: ``[n]`` float64, the block gaps at the held weights.
        weights: w(alpha), those of the dual for the features as they stand, float64, one tensor for each parameter;
            under bounds, v.
        targets: ``[n]`` int64, a digest of every example's target.
    """

    hinges: float
    exact: bool
    gaps: Tensor
    weights: list[Tensor]
    targets: Tensor


def exact_pass(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch], *, remember: bool = False
) -> ExactPass:
    """Decode every example once; arguments and errors as in :func:`certify`.

    With ``remember`` a storage that keeps labelings may keep those that were found; nothing else changes.
    """
    hinges = 0.0
    exact = True
    gaps = torch.zeros(dual.num_examples, dtype=torch.float64, device=dual.parameters[0].device)
    targets = torch.zeros_like(gaps, dtype=torch.int64)
    weights = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
    for batch, potentials, index in every_training_example(head, dual, batches):
        target = dual.structure.check_target(batch.y, potentials)
        targets[index] = digest_targets(target, potentials.lengths)
        corner = find_corner(dual.structure, potentials, target)
        stored = dual.storage.gather(index, potentials, target)
        with torch.no_grad(), full_precision(potentials.device):
            hinges += float(corner.bound.sum())
            exact &= corner.exact
            gaps[index] = corner.hinge / dual.num_examples + stored.inner(potentials) - dual.loss[index]
            for total, part in zip(weights, dual.storage.contribution(stored, potentials), strict=True):
                total += part
            if remember and dual.storage.remember(stored, corner):
                dual.version += 1  # slots may hold other labelings now, even if a later batch is refused
    return ExactPass(hinges, exact, gaps, weights, targets)


def features_moved(dual: DualState, weights: list[Tensor]) -> bool:
    """Whether w(alpha) is longer or shorter than the weights that the last step left, by more than rounding.

    Args:
        dual: The dual state.
        weights: w(alpha) for the features as they stand; under bounds, v.
    """
    length = squared_norm(dual.box.clip(weights)) ** 0.5
    return abs(length - dual.held_norm) > 1e5 * torch.finfo(dual.parameters[0].dtype).eps * max(length, dual.held_norm)


@torch.no_grad()
def recompute_weights(head: Callable[..., Any], dual: DualState, batches: Iterable[Batch]) -> float:
    """Set the weights to w(alpha) at once, by a pass without decoding: needed when the features have moved.

    Under bounds v is recomputed, and the weights are ``clip(v)``.

    Block gaps are gaps only at w(alpha) of the features as they stand; gap estimates become unknown (infinite).

    Args:
        head: As in :func:`certify`.
        dual: The dual state, with a storage that can follow the features (``MeanParts`` or ``Labelings``).
        batches: Every training example exactly once.

    Returns:
        The relative change of the weights; under bounds, that of v.

    Raises:
        ValueError: An example is missing or came twice, or the storage keeps weights.
    """
    check_dual(dual)
    if dual.storage.needs_gradients:
        raise ValueError(
            f"storage={type(dual.storage).__name__}() keeps weights of old features: use MeanParts() or Labelings()"
        )
    weights = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
    for batch, potentials, index in every_training_example(head, dual, batches):
        target = dual.structure.check_target(batch.y, potentials)
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


def _squared_distance(held: Sequence[Tensor], weights: Sequence[Tensor]) -> float:
    return squared_norm(p.detach().to(torch.float64) - w for p, w in zip(held, weights, strict=True))


def every_training_example(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, Potentials, Tensor]]:
    """The batches with their potentials and checked index; raises ValueError unless every example comes once."""
    return every_example(head, batches, dual.parameters[0].device, dual.check_batch, dual.num_examples)
