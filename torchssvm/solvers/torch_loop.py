"""The torch loop as a trainer: batches from a dataset, the head, the block gap, and BCFW."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import torch
from torch import nn

from torchssvm.core.arguments import check_dataset
from torchssvm.core.batch import apply_head, check_fits, fetcher, pass_over, to_device
from torchssvm.core.states import Stateful, check_entries
from torchssvm.distributed.exchange import refusing_on_all
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate, certify
from torchssvm.solvers.trainer import DualTrainer
from torchssvm.steps.directions import Order
from torchssvm.steps.sampler import GapBatchSampler


class TorchLoop(DualTrainer, Stateful):
    """Trains a head by the block gap of its dual and ``BCFW``, for any head, structure, storage and device.

    It is the loop that a user would write, with the verbs of a :class:`torchssvm.solvers.Trainer`. It goes on from the
    dual's current state, and changes only the dual and the weights.

    Args:
        head: The head of the dual, or features and the head as one module.
        loss: The block gap of the dual, with the rules of its steps.
        dataset: Map-style, n examples; an item's index is its place.
        batch_size: Blocks in a step, of each process.
        order: In which order blocks are visited; None is ``Proportional()``.
        optimizer: The ``BCFW`` of the dual; None is ``BCFW(loss.dual.parameters, loss.dual)``.

    Raises:
        ValueError: The dataset has another size than the dual, or no ``collate``; or the optimizer is not the BCFW of
            this dual.
        TypeError: The dataset has no length, or the order is of another kind.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> loss = BlockGap(DualState.for_head(head, num_examples=30, lam=0.1))
        >>> TorchLoop(head, loss, data, batch_size=10).solve(tolerance=0.05).gap <= 0.05
        True
    """

    state_name = "loop"

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
    ) -> None:
        check_dataset(dataset)
        if len(dataset) != loss.dual.num_examples:
            raise ValueError(f"dataset has {len(dataset)} examples, but the dual num_examples={loss.dual.num_examples}")
        check_fits(head, loss.dual.structure, dataset)
        if optimizer is not None and getattr(optimizer, "dual", None) is not loss.dual:
            raise ValueError(f"optimizer={type(optimizer).__name__} must be a BCFW with the loss's dual")
        self.head, self.loss, self.dual, self.dataset = head, loss, loss.dual, dataset
        self.sampler = GapBatchSampler(loss.dual, batch_size=batch_size, order=order, seed=seed)
        self.optimizer: Any = optimizer if optimizer is not None else BCFW(loss.dual.parameters, loss.dual)
        self._fetch = fetcher(dataset)
        self._draws: Iterator[list[int]] | None = None

    def step(self) -> int:
        """Take one step on the next batch of the sampler.

        Returns:
            Examples of the batch.

        Raises:
            ValueError: See ``BlockGap``.
            RuntimeError: See ``BlockGap`` and ``BCFW.step``.
        """
        dual = self.dual
        device = dual.parameters[0].device
        with refusing_on_all(dual.ranks, dual.parameters):
            if self._draws is None:
                self._draws = chain.from_iterable(repeat(self.sampler))  # epoch after epoch
            index = next(self._draws)
            batch = to_device(self._fetch(index), device)
            self.optimizer.zero_grad()
            potentials = apply_head(self.head, batch)
            self.loss.propose(potentials, batch.y, batch.index).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return len(index)

    def certify(self) -> Certificate:
        """An exact pass; see :func:`torchssvm.certify`."""
        return certify(self.head, self.dual, pass_over(self.dataset))

    def reseed(self, seed: int) -> None:
        """Begin the draws anew."""
        old, self._draws = self.sampler, None
        self.sampler = GapBatchSampler(self.dual, batch_size=old.batch_size, order=old.order, seed=seed)

    def _nested(self) -> dict[str, Stateful]:
        return {"optimizer": self.optimizer, "sampler": self.sampler}

    def _entries(self) -> dict[str, Any]:
        return {}

    def _check_own(self, state: dict[str, Any]) -> None:
        check_entries(state, dict.fromkeys(self._nested(), dict), "loop")
        for name, each in self._nested().items():
            each.check_state(state[name])

    def _restore_own(self, state: dict[str, Any]) -> None:
        self._draws = None
        for name, each in self._nested().items():
            each.restore(state[name])

    def __repr__(self) -> str:
        return f"TorchLoop({self.dual}, direction={self.loss.direction}, order={self.sampler.order})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_draws": None}  # a copy begins a new epoch
