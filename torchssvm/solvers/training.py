"""Training a head to a certified gap in a plain torch loop; grids and regularisation paths use it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from torchssvm.core.arguments import check_dataset
from torchssvm.core.batch import apply_head, fetcher, pass_over, to_device
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate, certify
from torchssvm.solvers.run_options import RunOptions, check_options
from torchssvm.solvers.trainer import check_limits, run_until
from torchssvm.steps.sampler import GapBatchSampler


def solve(
    head: nn.Module,
    loss: BlockGap,
    dataset: Any,
    *,
    tolerance: float,
    max_passes: float = math.inf,
    optimizer: torch.optim.Optimizer | None = None,
    options: RunOptions | None = None,
    on_check: Callable[[Certificate], None] | None = None,
) -> Certificate:
    """Train until an exact pass proves that the gap is within ``tolerance``.

    Continues from the dual's current state, and changes only the dual and the weights.

    Args:
        head: The head of the dual.
        loss: The block gap of the dual, with the direction rule.
        dataset: Map-style, n examples; an item's index is its place.
        tolerance: The gap to reach, ``primal - dual``; at least 0.
        max_passes: Stop at this many effective passes of the dual, those before this call included. Needed with an
            approximate oracle, whose gap may never reach the tolerance.
        optimizer: None is ``BCFW(head.parameters(), loss.dual)``.
        options: Size and order of batches, and when exact passes are made; None is ``RunOptions()``.
        on_check: Called with the certificate of every exact pass.

    Returns:
        The certificate of the last exact pass, which is that of the current weights.

    Raises:
        ValueError: An argument is out of range, or the dataset does not fit the dual.
        TypeError: ``options`` is not a :class:`RunOptions`, or the dataset has no length.
    """
    check_limits(tolerance, max_passes)
    options = check_options(options)
    with Steps(head, loss, dataset, options, optimizer=optimizer) as steps:
        return run_until(
            steps,
            loss.dual,
            lambda: certify(head, loss.dual, pass_over(dataset, options.collate_fn)),
            tolerance=tolerance,
            max_passes=max_passes,
            schedule=options.schedule,
            on_check=on_check,
        )


class Steps:
    """Endless training steps of one run; iterating takes a step and yields the number of blocks that it visited.

    As a context manager, removes its gradients and its observer at the end.

    Args:
        head: As in :func:`solve`.
        loss: The block gap.
        dataset: The training set.
        options: Size and order of batches.
        optimizer: None is ``BCFW(head.parameters(), loss.dual)``.

    Raises:
        ValueError: The dataset has another size than the dual, or no ``collate``; or the optimizer is not the BCFW of
            this dual.
    """

    def __init__(
        self,
        head: nn.Module,
        loss: BlockGap,
        dataset: Any,
        options: RunOptions | None = None,
        *,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        options = check_options(options)
        check_dataset(dataset)
        if len(dataset) != loss.dual.num_examples:
            raise ValueError(f"dataset has {len(dataset)} examples, and the dual was made for {loss.dual.num_examples}")
        if optimizer is not None and getattr(optimizer, "dual", None) is not loss.dual:
            raise ValueError(f"optimizer={type(optimizer).__name__} must be a BCFW of the dual of the loss")
        self.fetch = fetcher(dataset, options.collate_fn)
        self.sampler = GapBatchSampler(loss.dual, batch_size=options.batch_size, order=options.order, seed=options.seed)
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
