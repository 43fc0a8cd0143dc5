"""Training a head to a certified gap in a plain loop: what benchmarks and the regularisation path call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from torchssvm.core.arguments import as_number, check_dataset, check_number, check_object
from torchssvm.core.batch import Batch, apply_head, to_device
from torchssvm.dual.state import DualState
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate, certify
from torchssvm.steps.orders import GapBatchSampler, Order

Collate = Callable[[list[Any]], Batch]
"""Makes a batch of a list of examples."""

_CACHED_EPOCHS = 100  # of blocks visited without an oracle call, after which an exact pass is made in any case


class Schedule(Protocol):
    """Decides when an exact pass is worth its n oracle calls. An object serves one run at a time."""

    def due(self, dual: DualState, tolerance: float) -> bool:
        """Whether an exact pass should be made now; asked after every step, so it must be cheap.

        Args:
            dual: As the step left it; ``oracle_calls``, ``passes`` and ``gap_estimate`` are what it can be judged by.
            tolerance: The gap that the run is to reach.
        """
        ...

    def after(self, certificate: Certificate) -> None:
        """An exact pass was made."""
        ...


class EveryPasses:
    """An exact pass after every ``passes`` effective passes, 10 in [G16] section 3.

    Args:
        passes: Effective passes (n oracle calls each) between exact passes; positive.

    Raises:
        ValueError: ``passes`` is not positive.
    """

    def __init__(self, passes: float = 10.0) -> None:
        self.passes = check_number(passes, "passes", above=0.0, finite=False)
        self._last: float | None = None

    def due(self, dual: DualState, tolerance: float) -> bool:
        """Whether as many passes were made since the last exact pass, or since this was asked first."""
        if self._last is None or self._last > dual.passes:  # the latter after another dual
            self._last = dual.passes
        return dual.passes - self._last >= self.passes

    def after(self, certificate: Certificate) -> None:
        """Count from here."""
        self._last = certificate.passes


class WhenEstimated(EveryPasses):
    """An exact pass as soon as the stale gaps say that the run is over, and at the latest after ``passes`` passes.

    Args:
        passes: As in :class:`EveryPasses`.
        at_least: Effective passes after an exact pass before estimates are trusted again.
    """

    def __init__(self, passes: float = 10.0, at_least: float = 1.0) -> None:
        super().__init__(passes)
        self.at_least = self._wait = as_number(at_least, "at_least")
        if not 0.0 < at_least <= passes:
            raise ValueError(f"at_least={at_least} must be positive and at most passes={passes}")

    def due(self, dual: DualState, tolerance: float) -> bool:
        """Whether the sum of the gaps as last seen is within the tolerance, or it is time."""
        if super().due(dual, tolerance):
            return True
        assert self._last is not None
        return dual.passes - self._last >= self._wait and dual.gap_estimate <= tolerance

    def after(self, certificate: Certificate) -> None:
        """Count from here; longer each time where an approximate oracle leaves a gap that no step can close."""
        super().after(certificate)
        self._wait = self.at_least if certificate.exact else min(2 * self._wait, self.passes)


def solve(
    head: nn.Module,
    loss: BlockGap,
    dataset: Any,
    *,
    tolerance: float,
    batch_size: int = 16,
    order: Order | None = None,
    schedule: Schedule | None = None,
    max_passes: float = math.inf,
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    on_check: Callable[[Certificate], None] | None = None,
    collate_fn: Collate | None = None,
) -> Certificate:
    """Train until an exact pass proves that the gap is within ``tolerance``.

    Goes on from where the dual stands, and leaves nothing behind but the dual and the weights.

    Args:
        head: The head of the dual.
        loss: The block gap of the dual, with the direction to take.
        dataset: Map-style, n examples; an item's index is its place.
        tolerance: The gap to reach, ``primal - dual``; at least 0.
        batch_size: Blocks of a step.
        order: In which order blocks are visited; None is ``Proportional()``, gap sampling.
        schedule: When exact passes are made; None is ``WhenEstimated()``.
        max_passes: Stop at this many effective passes of the dual, those before this call included. Give it where the
            oracle is approximate: its gap may never come down to the tolerance.
        seed: Of the sampler.
        optimizer: None is ``BCFW(head.parameters(), loss.dual)``.
        on_check: Called with the certificate of every exact pass.
        collate_fn: Makes a ``Batch`` of a list of items; None is ``dataset.collate``.

    Returns:
        The certificate of the last exact pass, which is about the weights as they are.

    Raises:
        ValueError: An argument is out of range, or the dataset is not that of the dual.
    """
    dual = loss.dual
    _check_limits(tolerance, max_passes)
    with Steps(
        head, loss, dataset, batch_size=batch_size, order=order, seed=seed, optimizer=optimizer, collate_fn=collate_fn
    ) as steps:
        return run_until(
            steps,
            dual,
            lambda: certify(head, dual, in_order(dataset, collate_fn=collate_fn)),
            tolerance=tolerance,
            schedule=schedule,
            max_passes=max_passes,
            on_check=on_check,
        )


def run_until(
    steps: Iterable[int],
    dual: DualState,
    exact_pass: Callable[[], Certificate],
    *,
    tolerance: float,
    schedule: Schedule | None = None,
    max_passes: float = math.inf,
    on_check: Callable[[Certificate], None] | None = None,
) -> Certificate:
    """Let a solver take steps until an exact pass proves that the gap is within ``tolerance``.

    Args:
        steps: Endless; every item is the number of blocks that were just visited.
        dual: What the steps change.
        exact_pass: Makes an exact pass.
        tolerance: As in :func:`solve`, like the rest.
        schedule: When exact passes are made.
        max_passes: Where to stop.
        on_check: Called with every certificate.

    Raises:
        ValueError: An argument is out of range.
    """
    _check_limits(tolerance, max_passes)
    schedule = schedule if schedule is not None else WhenEstimated()
    check_object(schedule, "schedule", "due", "WhenEstimated()")

    def check() -> tuple[Certificate, bool]:
        certificate = exact_pass()
        schedule.after(certificate)
        if on_check is not None:
            on_check(certificate)
        over = certificate.gap <= tolerance or dual.passes >= max_passes or not bool(dual.gap_estimates.any())
        return certificate, over

    if dual.gap_estimate <= tolerance or dual.passes >= max_passes:
        certificate, over = check()
        if over:
            return certificate
    cached = 0  # blocks visited without an oracle call since the last exact pass
    calls = dual.oracle_calls
    for visited in steps:
        cached += visited - (dual.oracle_calls - calls)
        calls = dual.oracle_calls
        due = schedule.due(dual, tolerance) or dual.passes >= max_passes or cached >= _CACHED_EPOCHS * dual.num_examples
        if due or not visited:
            certificate, over = check()
            if over:
                return certificate
            cached, calls = 0, dual.oracle_calls
    raise AssertionError("steps do not end")


def _check_limits(tolerance: float, max_passes: float) -> None:
    check_number(tolerance, "tolerance", 0.0)
    check_number(max_passes, "max_passes", above=0.0, finite=False)
    if tolerance == 0 and max_passes == math.inf:
        raise ValueError("tolerance=0 is never reached, because of rounding: give max_passes, or a positive tolerance")


class Steps:
    """Endless training steps of one run; iterating takes them, and yields the number of blocks that each visited.

    Used as a context manager, it leaves no gradients and no observer behind.

    Args:
        head: As in :func:`solve`, like all others.
        loss: The block gap.
        dataset: The training set.
        batch_size: Blocks of a step.
        order: In which order blocks are visited.
        seed: Of the sampler.
        optimizer: None is ``BCFW(head.parameters(), loss.dual)``.
        collate_fn: None is ``dataset.collate``.

    Raises:
        ValueError: The dataset is not of the dual's size, or has no ``collate``; or the optimizer is not BCFW of this
            dual.
    """

    def __init__(
        self,
        head: nn.Module,
        loss: BlockGap,
        dataset: Any,
        *,
        batch_size: int = 16,
        order: Order | None = None,
        seed: int = 0,
        optimizer: torch.optim.Optimizer | None = None,
        collate_fn: Collate | None = None,
    ) -> None:
        check_dataset(dataset)
        if len(dataset) != loss.dual.num_examples:
            raise ValueError(f"dataset has {len(dataset)} examples, and the dual was made for {loss.dual.num_examples}")
        if optimizer is not None and getattr(optimizer, "dual", None) is not loss.dual:
            raise ValueError(f"optimizer={type(optimizer).__name__} must be a BCFW of the dual of the loss")
        self.fetch = fetcher(dataset, collate_fn)
        self.sampler = GapBatchSampler(loss.dual, batch_size=batch_size, order=order, seed=seed)
        self.head = head
        self.loss = loss
        self.optimizer = optimizer if optimizer is not None else BCFW(head.parameters(), loss.dual)

    def __iter__(self) -> Iterator[int]:
        """Take steps, epoch after epoch."""
        head, loss, optimizer, fetch = self.head, self.loss, self.optimizer, self.fetch
        device = loss.dual.parameters[0].device
        while True:
            for index in self.sampler:
                batch = fetch(index)
                if device.type != "cpu":
                    batch = to_device(batch, device)
                optimizer.zero_grad()
                loss(apply_head(head, batch), batch.y, batch.index).backward()
                optimizer.step()
                yield len(index)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *exception: object) -> None:
        self.optimizer.zero_grad()
        self.loss.dual.mailbox.forget(self.sampler)


def in_order(dataset: Any, *, batch_size: int = 256, collate_fn: Collate | None = None) -> Iterable[Batch]:
    """The batches of an exact pass: every example once, in order."""
    fetch = fetcher(dataset, collate_fn)
    for start in range(0, len(dataset), batch_size):
        yield fetch(range(start, min(start + batch_size, len(dataset))))


def fetcher(dataset: Any, collate_fn: Collate | None = None) -> Callable[[Sequence[int]], Batch]:
    """What makes a batch of indices, as a ``DataLoader`` without workers does, without touching the global generator.

    Raises:
        ValueError: There is neither ``collate_fn`` nor ``dataset.collate``.
    """
    collate = collate_fn if collate_fn is not None else getattr(dataset, "collate", None)
    if collate is None:
        raise ValueError(
            f"collate_fn=None, and {type(dataset).__name__} has no method `collate`: pass what makes a Batch of items"
        )
    if hasattr(dataset, "__getitems__"):
        return lambda index: collate(dataset.__getitems__(list(index)))
    return lambda index: collate([dataset[i] for i in index])
