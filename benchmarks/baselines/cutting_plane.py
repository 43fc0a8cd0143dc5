"""The cutting-plane method: fully corrective, with a lower bound from the restricted problem at every iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from torchssvm.compiler.jit import clock
from torchssvm.core.batch import Batch, check_batches
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.packages import warn
from torchssvm.core.ranks import Ranks
from torchssvm.core.row_sparse import flat, squared_norm
from torchssvm.core.structure import Structure
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import Certificate, dual_exceeds_primal
from torchssvm.solvers.progress_line import ProgressLine
from torchssvm.solvers.solver import EveryPasses, Tolerance, counting_from
from torchssvm.solvers.trainer import run_until

from .cutting_pass import Pass, make_pass
from .one_slack import OneSlack
from .slack import Restricted, Slack


class CuttingPlane:
    """Cutting planes for ``lam/2 |w|^2 + (1/n) sum_i H_i(w)`` (Joachims, Finley, Yu 2009; [B13] section 6).

    An iteration is one pass of the max oracle over all examples and one restricted problem. The pass gives new
    constraints and the exact primal at the current weights (an upper bound of it, with an approximate oracle). The QP
    over all kept constraints gives the next weights, and its optimum is a lower bound. As the best primal is kept and
    the lower bound never falls, the gap never grows. This is fully corrective Frank-Wolfe ([B13] section 5).

    Between calls the head holds the best weights so far, which the certificate is about; the next pass uses the weights
    of the restricted problem.

    Args:
        head: An ``nn.Module`` linear in all its weights; its weights are set, never read.
        batches: Every training example exactly once, in any order; read in every pass, so a list, a DataLoader, or
            ``in_order(dataset)``.
        num_examples: n, the size of the training set.
        lam: Regularisation; positive.
        slack: ``OneSlack()`` (one constraint for each pass, for all examples together) or ``NSlack()`` (one for
            each example); None is ``OneSlack()``.
        structure: What an output is; None is ``head.structure``.

    Attributes:
        slack: The working set.
        primal: The best primal so far, infinite before the first pass.
        dual: The best lower bound so far; 0 before the first pass, as losses are not negative.
        exact: Whether the oracle was exact in the pass that gave ``primal``.
        iterations: Passes made.

    Raises:
        ValueError: As ``DualState.for_head``; or ``slack`` belongs to another CuttingPlane.
        TypeError: ``slack`` is not a Slack, or ``batches`` can be read only once.
        ImportError: ``OneSlack`` needs the extra ``torchssvm[bench]``.

    Example:
        >>> trainer = CuttingPlane(LinearMulticlass(4, 3), in_order(data), num_examples=30, lam=0.1, slack=NSlack())
        >>> trainer.solve(tolerance=0.01).gap <= 0.01
        True
    """

    def __init__(
        self,
        head: nn.Module,
        batches: Iterable[Batch],
        *,
        num_examples: int,
        lam: float,
        slack: Slack | None = None,
        structure: Structure | None = None,
    ) -> None:
        Ranks.here().refuse_several("CuttingPlane", "Train by solve(...), CompiledBCFW or BCFW instead")
        slack = OneSlack() if slack is None else slack
        if not isinstance(slack, Slack):
            raise TypeError(f"slack must be OneSlack() or NSlack(), not {slack!r}")
        self.head, self.batches = head, check_batches(batches, reread=True)
        # Holds n, lam, structure and parameters, and checks batches. Its blocks are not used.
        self._problem = DualState.for_head(head, num_examples, lam, structure=structure)
        slack.bind(num_examples, self._problem.lam, self._problem.parameters)
        self.slack = slack
        self.primal = math.inf
        self.dual = 0.0
        self.exact = False
        self.iterations = 0
        self._features = torch.zeros(0, dtype=torch.float64)  # the linear maps of all examples, probed; see Pass
        self._next = torch.zeros(slack.size, dtype=torch.float64)  # weights of the restricted problem
        self._best = torch.zeros_like(self._next)  # weights that the head holds between calls
        if any(bool(p.detach().any()) for p in self._problem.parameters):
            warn(
                "the head's weights were not zero, and cutting planes start from zero: they are now zero",
            )
        self._hold(self._best)
        self._seconds = 0.0  # of the last iteration

    @property
    def gap(self) -> float:
        """``primal - dual``: the head's weights are at most this far from the optimum."""
        return self.primal - self.dual

    @property
    def oracle_calls(self) -> int:
        """Examples decoded so far."""
        return self._problem.oracle_calls

    @property
    def num_examples(self) -> int:
        """The size of the training set."""
        return self._problem.num_examples

    @property
    def passes(self) -> float:
        """Effective passes: one for each iteration."""
        return self._problem.passes

    @property
    def gap_estimate(self) -> float:
        """The gap; nothing is estimated here."""
        return self.gap

    def step(self) -> Certificate:
        """One iteration: a pass over all examples, then the restricted problem.

        Returns:
            As :meth:`certify`.

        Raises:
            ValueError: An example is missing or duplicated, or a batch is not valid.
            RuntimeError: The primal is below the dual by more than rounding: examples or features have changed. Or
                the QP solver failed. After any error nothing has changed.
        """
        start = clock()
        try:
            self._hold(self._next)
            seen = make_pass(self.head, self._problem, self.batches, self.slack, self._features, self.dual)
            best = min(self.primal, seen.primal)
            with undisturbed():
                restricted = self.slack.solve(best - self.dual)
        except BaseException:
            with undisturbed():
                self.slack.discard()
                self._hold(self._best)
            raise
        if dual_exceeds_primal(best, restricted.dual, self._problem.parameters[0].dtype):
            self._hold(self._best)
            raise RuntimeError(
                f"the lower bound, {restricted.dual:.6g}, is above the best primal, {best:.6g}: costs or features have "
                "changed between the passes. Make a new CuttingPlane"
            )
        with undisturbed():
            self._accept(seen, restricted)
        self._seconds = clock() - start
        return self.certify()

    def _accept(self, seen: Pass, restricted: Restricted) -> None:
        primal, exact = seen.primal, seen.exact
        if primal < self.primal:
            self.primal, self.exact, self._best = max(primal, self.dual), exact, self._next  # below it is rounding
        self._next = restricted.weights
        self.dual = max(self.dual, min(restricted.dual, self.primal))  # a dual above the primal is rounding
        self.iterations += 1
        self._features, self._problem.targets = seen.features, seen.targets
        self._problem.relaxed |= seen.relaxed
        self._problem.oracle_calls += self._problem.num_examples
        self._hold(self._best)

    def solve(
        self,
        tolerance: Tolerance,
        *,
        max_passes: float = math.inf,
        on_check: Callable[[Certificate], None] | None = None,
        progress: bool | ProgressLine = True,
    ) -> Certificate:
        """Iterate until the gap is at most ``tolerance``.

        Args:
            tolerance: The gap to reach: a number of at least 0, or ``Relative(0.01)``.
            max_passes: Most iterations, those before this call included.
            on_check: Called with the certificate of every iteration.
            progress: Whether one line on stderr shows gap, dual, passes and seconds; it changes no bit of the run.

        Returns:
            The last certificate; its gap exceeds ``tolerance`` if ``max_passes`` was reached first.

        Raises:
            ValueError: An argument is out of range, or as :meth:`step`.
            RuntimeError: As :meth:`step`.
        """

        def steps() -> Iterator[int]:
            while True:
                self.step()
                yield self.num_examples

        return run_until(
            steps(),
            self,
            self.certify,
            tolerance=tolerance,
            max_passes=max_passes,
            schedule=counting_from(self, EveryPasses(1)),
            on_check=on_check,
            progress=progress,
        )

    @torch.no_grad()
    def _hold(self, weights: Tensor) -> None:
        parameters = self._problem.parameters
        for parameter, values in zip(parameters, weights.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(values.view(parameter.shape))

    def certify(self) -> Certificate:
        """The certificate that the iterations have proved for the weights that the head holds; decodes nothing.

        ``seconds`` is the duration of the last iteration; ``drift`` is the distance of the stored weights from those of
        the restricted problem. Before the first iteration the gap is infinite.
        """
        problem = self._problem
        norm = math.sqrt(squared_norm([self._next]))
        drift = math.sqrt(squared_norm([flat(problem.parameters).cpu() - self._next]))
        return Certificate(
            primal=self.primal,
            dual=self.dual,
            gap=self.gap,
            exact=self.exact and not problem.relaxed,
            drift=drift / norm if norm > 0.0 else drift,
            oracle_calls=problem.oracle_calls,
            passes=problem.passes,
            seconds=self._seconds,
            num_examples=problem.num_examples,
            lam=problem.lam,
            relaxed=problem.relaxed,
        )

    def __repr__(self) -> str:
        problem, slack = self._problem, type(self.slack).__name__
        return f"CuttingPlane(num_examples={problem.num_examples}, lam={problem.lam:g}, slack={slack}())"
