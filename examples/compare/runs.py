"""Solvers at work: one protocol for all of them, and block-coordinate Frank-Wolfe in both loops."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import nn

from compare.tasks import Task
from torchssvm import Average, CompiledBCFW, DualState, EveryPasses, certify, in_order, primal
from torchssvm.solvers import Steps
from torchssvm.solvers.certificate import Certificate

_EPOCHS = 100  # of blocks visited, after which an exact pass is due even if the cache has answered all the time


class Settings(NamedTuple):
    """What a run is told.

    Attributes:
        lam: Lambda.
        batch_size: Blocks of a step, where the solver has a choice.
        learning_rate: Of Adam; no other solver has one.
        seed: Of the order of examples.
    """

    lam: float
    batch_size: int
    learning_rate: float
    seed: int


class Bounds(NamedTuple):
    """What is known of a run at a check: the objective of the weights it offers, and a lower bound of the optimum."""

    primal: float
    dual: float


class Run(ABC):
    """One solver at work on one task.

    ``steps`` trains; everything else leaves the run as it was, to the bit, so that checks do not change a run.

    Args:
        task: What to train.
        settings: Lambda and so on.
    """

    def __init__(self, task: Task, settings: Settings) -> None:
        self.task = task
        self.settings = settings
        self.head: Any = task.make_head()  # with a `structure`
        self.n = len(task.train)

    @property
    @abstractmethod
    def passes(self) -> float:
        """Effective passes: oracle calls of the solver (not of checks) over n."""

    @abstractmethod
    def steps(self) -> Generator[int]:
        """Train; after each step, how many examples it visited."""

    @abstractmethod
    def bounds(self) -> Bounds:
        """Primal of the weights offered, and dual, by exact passes that count for nothing."""

    def offered(self) -> AbstractContextManager[None]:
        """Within it the head holds the weights that the run would return now."""
        return nullcontext()

    def _primal(self) -> float:
        with self.offered():
            return primal(self.head, self.head.structure, in_order(self.task.train), self.settings.lam).bound


class DualRun(Run):
    """A run with a dual state: at every check the dual is recomputed from the blocks.

    Attributes:
        dual: Its state; subclasses make it.
        average: What is offered in place of the last iterate, if it is not None.
    """

    dual: DualState
    average: Average | None = None

    @property
    def passes(self) -> float:
        """As the dual counts them."""
        return self.dual.passes

    def bounds(self) -> Bounds:
        """An exact pass on a copy: gap estimates and caches of the run itself must not profit from it."""
        head, dual = copy.deepcopy((self.head, self.dual))
        certificate = certify(head, dual, in_order(self.task.train), refresh=False)
        return Bounds(certificate.primal if self.average is None else self._primal(), certificate.dual)

    def offered(self) -> AbstractContextManager[None]:
        """The average, if there is one."""
        return nullcontext() if self.average is None else self.average.apply()

    def _with_exact_passes(self, steps: Iterable[int], exact_pass: Callable[[], Certificate]) -> Generator[int]:
        """The solver's own exact passes, every 10 effective passes as in [G16] section 3; they count in full."""
        schedule, visits = EveryPasses(10), 0
        for visited in steps:
            visits += visited
            if schedule.due(self.dual, 0.0) or visits >= _EPOCHS * self.n:
                schedule.after(exact_pass())
                visits = 0
            yield visited


class TorchRun(DualRun):
    """Blocks in the torch loop: ``torchssvm.solve.Steps``.

    Args:
        task: What to train.
        settings: Lambda and so on.
        dual: Makes the dual state of a head.
        steps: Makes the steps.
        exact_passes: Whether the solver needs exact passes of its own.
        average: The average to offer; None offers the last iterate.
    """

    def __init__(
        self,
        task: Task,
        settings: Settings,
        dual: Callable[[nn.Module, int, float], DualState],
        steps: Callable[[TorchRun], Steps],
        exact_passes: bool,
        average: type[Average] | None,
    ) -> None:
        super().__init__(task, settings)
        self.dual = dual(self.head, self.n, settings.lam)
        self.exact_passes = exact_passes
        self.average = None if average is None else average.following(self.dual)
        self._make_steps = steps

    def steps(self) -> Generator[int]:
        """Endless."""
        with self._make_steps(self) as steps:
            if self.exact_passes:
                train = self.task.train
                yield from self._with_exact_passes(steps, lambda: certify(self.head, self.dual, in_order(train)))
            else:
                yield from steps


class CompiledRun(DualRun):
    """Blocks in the compiled loop, ``CompiledBCFW``, a quarter of an epoch at a time.

    Args:
        task: What to train, a chain.
        settings: Lambda and so on.
        dual: Makes the dual state of a head.
        exact_passes: Whether the solver needs exact passes of its own.
        options: Direction, oracle and order for ``CompiledBCFW``.
    """

    def __init__(
        self,
        task: Task,
        settings: Settings,
        dual: Callable[[nn.Module, int, float], DualState],
        exact_passes: bool,
        **options: Any,
    ) -> None:
        super().__init__(task, settings)
        self.dual = dual(self.head, self.n, settings.lam)
        self.chain = CompiledBCFW(self.head, self.dual, in_order(task.train), seed=settings.seed, **options)
        self.exact_passes = exact_passes

    def steps(self) -> Generator[int]:
        """Ends if an exact pass finds every block gap zero."""
        yield from self._with_exact_passes(self._visits(), self.chain.certify) if self.exact_passes else self._visits()

    def _visits(self) -> Generator[int]:
        chunk = math.ceil(self.n / 4)
        while True:
            made = self.chain.step(chunk)
            if made < chunk:
                self.chain.certify()
                if not bool(self.dual.gap_estimates.any()):
                    return
            yield made
