"""The other solvers at work: optimizers on the structured hinge, cutting planes, exponentiated gradient."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from compare.runs import Bounds, DualRun, Run, Settings
from compare.tasks import Task
from torchssvm import Average, Batch, CuttingPlane, ExponentiatedGradient, StructuredHinge, Uniform, in_order
from torchssvm.core.batch import apply_head, fetcher


class HingeRun(Run):
    """A torch optimizer on the structured hinge, examples drawn uniformly. Its dual is 0: it proves nothing.

    Args:
        task: What to train.
        settings: Lambda and so on.
        optimizer: Makes the optimizer of a head.
        average: The average to offer; None offers the last iterate.
    """

    def __init__(
        self,
        task: Task,
        settings: Settings,
        optimizer: Callable[[nn.Module, Settings], torch.optim.Optimizer],
        average: type[Average] | None = None,
    ) -> None:
        super().__init__(task, settings)
        self.optimizer = optimizer(self.head, settings)
        self.average = None if average is None else average(self.head.parameters())
        self._decoded = 0

    @property
    def passes(self) -> float:
        """Examples decoded over n."""
        return self._decoded / self.n

    def steps(self) -> Generator[int]:
        """Endless."""
        loss = StructuredHinge(self.head.structure)
        for batch in uniform_batches(self.task, self.settings):
            self.optimizer.zero_grad()
            loss(apply_head(self.head, batch), batch.y).backward()
            self.optimizer.step()
            if self.average is not None:
                self.average.update()
            self._decoded += len(batch.index)
            yield len(batch.index)

    def bounds(self) -> Bounds:
        """Losses are not negative, so 0 is a lower bound; no other is known."""
        return Bounds(self._primal(), 0.0)

    def offered(self) -> AbstractContextManager[None]:
        """The average, if there is one."""
        return nullcontext() if self.average is None else self.average.apply()


class CuttingPlaneRun(Run):
    """Cutting planes: every iteration brings primal and dual with it.

    Args:
        task: What to train.
        settings: Lambda and so on.
        slack: Makes the working set.
    """

    def __init__(self, task: Task, settings: Settings, slack: Callable[[], Any]) -> None:
        super().__init__(task, settings)
        self.method = CuttingPlane(
            self.head, in_order(task.train), num_examples=self.n, lam=settings.lam, slack=slack()
        )

    @property
    def passes(self) -> float:
        """Iterations."""
        return self.method.oracle_calls / self.n

    def steps(self) -> Generator[int]:
        """Endless."""
        while True:
            self.method.step()
            yield self.n

    def bounds(self) -> Bounds:
        """Known already."""
        return Bounds(self.method.primal, self.method.dual)


class ExponentiatedRun(DualRun):
    """Online exponentiated gradient; its first pass is the start from uniform distributions."""

    def __init__(self, task: Task, settings: Settings) -> None:
        super().__init__(task, settings)
        self.method = ExponentiatedGradient(self.head, in_order(task.train), num_examples=self.n, lam=settings.lam)
        self.dual = self.method.dual

    def steps(self) -> Generator[int]:
        """Endless."""
        for batch in uniform_batches(self.task, self.settings):
            self.method.visit(batch)
            yield len(batch.index)


def uniform_batches(task: Task, settings: Settings) -> Iterator[Batch]:
    """Batches of distinct examples, each drawn uniformly, without end."""
    fetch, n = fetcher(task.train), len(task.train)
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        (index,) = Uniform().draw(torch.zeros(n), 1, settings.batch_size, generator)
        yield fetch(index.tolist())
