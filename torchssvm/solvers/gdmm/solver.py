"""The greedy direction method of multipliers, as a torch optimizer, and the heads that it trains."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.compiler.jit import clock
from torchssvm.core.arguments import check_number, check_seed
from torchssvm.core.batch import Batch, device_of
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.linearity import is_check
from torchssvm.core.packages import warn
from torchssvm.core.random_state import check_random_state
from torchssvm.core.ranks import Ranks
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.states import Numbers, StatefulOptimizer, check_entries, check_seal, with_seal
from torchssvm.core.threads import torch_threads
from torchssvm.dual.checks import check_visits
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import Storage
from torchssvm.solvers.certificate import dual_exceeds_primal, write
from torchssvm.solvers.gdmm.problem import Problem
from torchssvm.solvers.gdmm.reports import FactorwiseCertificate, PassReport
from torchssvm.solvers.gdmm.rules import (
    AwayStep,
    BlockGreedy,
    BlockRule,
    BruteForce,
    FullyCorrective,
    Penalty,
    Residuals,
    SortedOracle,
)
from torchssvm.solvers.gdmm.training_set import digest_features, with_fixed_features
from torchssvm.solvers.progress_line import ProgressLine
from torchssvm.solvers.solver import EveryPasses, Schedule, Tolerance, counting_from, is_within
from torchssvm.solvers.trainer import run_until

_FORMAT = 3

_NUMBERS = {
    **dict.fromkeys(("passes", "oracle_calls"), Numbers(int, low=0)),
    "rho": Numbers(float, low=sys.float_info.min),
    **dict.fromkeys(("violation", "worst_violation", "best_dual", "best_relaxed_dual"), Numbers(float, low=0.0)),
}
"""Attributes that are saved as they are."""


class GDMM(StatefulOptimizer):
    """Training without decoding, for outputs too large to decode: factors train apart, coupled by multipliers [Y16].

    Every factor keeps a distribution over its configurations, with a small active set. A pass visits the factors of all
    examples: the factorwise oracle adds one configuration to the active set, the block is minimised over that set, and
    weights and messages are updated. Then the multipliers take a step towards agreement of factors and variables.
    Features are fixed, and kept without padding. Compiled, for the CPU.

    GDMM minimises the relaxation P' of the problem P, with maxima over the local polytope instead of outputs. On chains
    P' is P. On label sets P' and its optimum may be above P: a :class:`FactorwiseCertificate` bounds both, and the gap
    of P' goes to 0 and stops :meth:`solve`.

    The head holds ``w(pi)`` after a step, and predicts as usual; :meth:`dual_state` lets BCFW continue.

    Args:
        head: :class:`LinearChain` with shared transitions or :class:`SparseLinearChain`, for chains of many labels;
            :class:`LinearMultilabel` or :class:`SparseLinearMultilabel`, for label sets with interactions.
        batches: Every training example exactly once, as :class:`torchssvm.Batch`; read once.
        num_examples: n, the number of examples.
        rule: How blocks move: None is :class:`FullyCorrective`.
        penalty: rho and eta; None is :class:`Penalty` on chains, with a constant rho of the size of the losses, and
            :class:`ResidualBalancing` on label sets, which chooses rho.
        oracle: :class:`SortedOracle` or :class:`BruteForce`; None is ``BruteForce()`` up to 4096 configurations of a
            factor.

    Attributes:
        passes: Passes made.
        violation: Mean total variation between factors and variables, after the last pass; 0 before.
        worst_violation: The largest total variation.
        rho: Penalty of the next pass, times n.
        best_dual: The best certified lower bound of min P; 0 at first.
        best_relaxed_dual: The best certified lower bound of min P'; 0 at first.
        gap_estimate: The ``relaxed_gap`` of the last certificate; infinite before it and after each pass.

    Raises:
        TypeError: The head has no compiled form, or an argument is of another kind.
        ValueError: The batches do not hold every example once, or are not valid, or an argument is out of range.

    Example:
        >>> trainer = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1)
        >>> certificate = trainer.solve(tolerance=0.05)
        >>> certificate.relaxed_gap <= 0.05
        True
    """

    state_name = "GDMM"

    _versions: list[int] | None  # None in a state for copies: as the weights that come with it have

    def __init__(
        self,
        head: nn.Module,
        batches: Iterable[Batch],
        *,
        num_examples: int,
        lam: float,
        rule: BlockRule | None = None,
        penalty: Penalty | None = None,
        oracle: SortedOracle | BruteForce | None = None,
        seed: int = 0,
    ) -> None:
        Ranks.here().refuse_several("GDMM", "Train by solve(...), CompiledBCFW or BCFW instead")
        kinds = (
            ("rule", rule, FullyCorrective | AwayStep | BlockGreedy, "FullyCorrective(), AwayStep() or BlockGreedy()"),
            ("penalty", penalty, Penalty, "Penalty(rho) or ResidualBalancing(rho)"),
            ("oracle", oracle, SortedOracle | BruteForce, "SortedOracle() or BruteForce()"),
        )
        for name, value, kind, wanted in kinds:
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name}={value!r} must be {wanted}")
        seed = check_seed(seed)
        self.rule = rule if rule is not None else FullyCorrective()
        check_head(head)
        dual = DualState.for_head(head, num_examples, lam)
        self.problem = Problem.of_head[type(head)](head, dual, with_fixed_features(batches), oracle)
        self._features = digest_features(self.problem.data)
        self.penalty = penalty if penalty is not None else self.problem.default_rule()
        self.head = head
        self.num_examples, self.lam = dual.num_examples, dual.lam
        super().__init__(head.parameters(), {"lr": self.penalty.step})  # for callbacks that show lr
        self.rho = self._first_rho = self.penalty.first(self.problem.default_penalty)
        self.passes = self.oracle_calls = 0
        self.violation = self.worst_violation = 0.0
        self.best_dual = self.best_relaxed_dual = 0.0  # the dual with all mass on the targets
        self.gap_estimate = math.inf
        self._visits, self._visited = np.zeros(3), torch.zeros(dual.num_examples, dtype=torch.bool)
        self._generator = torch.Generator().manual_seed(seed)
        self._handed_over = False
        if any(bool(p.any()) for p in dual.parameters):
            warn("the head's weights were not zero; GDMM has set them to zero, the weights of its initial duals")
        self._publish()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> PassReport:  # type: ignore[override]
        """One pass: visit the remaining examples of the pass in random order, then move the multipliers.

        Raises:
            RuntimeError: The weights were changed by others, or have overflowed.
        """
        start = clock()
        if closure is not None:
            closure()
        self._check_weights()  # before the order is drawn
        order = torch.randperm(self.num_examples, generator=self._generator)
        self.visit(order[~self._visited[order]])
        return self.end_pass(seconds=clock() - start)

    @torch.no_grad()
    def visit(self, index: Tensor) -> None:
        """Visit the blocks of some examples, without moving the multipliers; :meth:`step` completes the pass.

        Args:
            index: ``[V]`` int64, examples.

        Raises:
            ValueError: ``index`` is not valid.
            RuntimeError: The weights were changed by others.
        """
        index = check_visits(index, self.num_examples)
        with self._changing():
            self._visits += self.problem.visit(index.numpy(), self.rule, self.rho, self.passes)
            self._visited[index] = True

    @torch.no_grad()
    def end_pass(self, *, seconds: float = math.nan) -> PassReport:
        """Move the multipliers and the penalty after any visits, and write the weights to the head.

        Raises:
            RuntimeError: The weights have overflowed, or were changed by others.
        """
        start = clock()
        with self._changing():
            rho, visits = self.rho, self._visits
            squared, total, worst, size, force = self.problem.update_multipliers(self.penalty.step * rho).tolist()
            if not math.isfinite(squared):
                raise RuntimeError("the duals are not finite: scale the features, or choose a larger lam")
            self.passes += 1
            self.gap_estimate = math.inf
            self.violation, self.worst_violation = total / max(self.problem.num_sides, 1), worst
            roots = squared**0.5, float(visits[0]) ** 0.5, size**0.5, force**0.5
            residuals = Residuals(*roots, passes=self.passes, first=self._first_rho)
            self.rho = self.penalty.next(rho, residuals)
            self._visits = np.zeros(3)
            self._visited[:] = False
            self._publish()
        seconds += clock() - start
        return PassReport(self.passes, self.violation, worst, rho, int(visits[1]), int(visits[2]), seconds)

    @torch.no_grad()
    @torch_threads()
    def certify(self) -> FactorwiseCertificate:
        """Bounds of P and P': the primal of the current weights, and duals of consistent points near the iterate.

        Chains are decoded exactly, by Viterbi. Label sets are decoded by message passing, which bounds P'. Examples
        that this leaves open go to the decoder of the head's structure (:class:`BranchAndBound`, unless another was
        chosen), with bounded effort for each example: ``exact`` says whether all were solved. The dual of P belongs to
        a mean of outputs, which on label sets keeps the marginals of single labels; choosing its pairs takes about as
        long as two passes.

        First recomputes the weights of features, and of pairs of label sets, in float64. Later passes use these
        weights, so two runs have the same bits only if their certificates are made after the same passes.

        Raises:
            RuntimeError: The weights were changed by others, the primal is not finite, or a gap is negative by more
                than rounding.
        """
        start = clock()
        with self._changing():
            drift = self.problem.refresh()
            self._publish()
        n, lam, parameters = self.num_examples, self.lam, [p.detach() for p in self.head.parameters()]
        hinges, length = self.problem.hinges(parameters), squared_norm(parameters)
        primal, relaxed_primal = (lam / 2 * length + float(h.sum()) / n for h in (hinges.value, hinges.relaxed))
        if not math.isfinite(relaxed_primal):
            raise RuntimeError("the primal is not finite: scale the features, or choose a larger lam")
        mean, relaxed = (point.value(lam) for point in self.problem.rounded())
        dual = max(self.best_dual, mean)
        relaxed_dual = max(self.best_relaxed_dual, relaxed, dual)  # a mean of outputs is in the local polytope
        for above, below in ((primal, dual), (relaxed_primal, relaxed_dual)):
            if dual_exceeds_primal(above, below, parameters[0].dtype):
                raise RuntimeError(f"the gap is negative, {above - below:.6g}: please report this defect")
        self.best_dual, self.best_relaxed_dual = dual, relaxed_dual
        self.oracle_calls += n
        self.gap_estimate = max(relaxed_primal - relaxed_dual, 0.0)  # rounding may make it negative
        return FactorwiseCertificate(
            primal=primal,
            dual=dual,
            gap=max(primal - dual, 0.0),
            exact=hinges.exact,
            relaxed_primal=relaxed_primal,
            relaxed_dual=relaxed_dual,
            relaxed_gap=self.gap_estimate,
            has_relaxation=self.problem.has_relaxation,
            drift=drift / length**0.5 if length > 0.0 else drift,
            oracle_calls=self.oracle_calls,
            passes=float(self.passes),
            seconds=clock() - start,
            num_examples=n,
            lam=lam,
            violation=self.violation,
            worst_violation=self.worst_violation,
        )

    def solve(
        self,
        tolerance: Tolerance,
        *,
        max_passes: float = math.inf,
        schedule: Schedule | None = None,
        violation: float = 0.01,
        on_check: Callable[[FactorwiseCertificate], None] | None = None,
        progress: bool | ProgressLine = True,
    ) -> FactorwiseCertificate:
        """Make passes until a certificate is within ``tolerance`` and within ``violation``.

        Args:
            tolerance: The ``relaxed_gap`` to reach: a number of at least 0, or ``Relative(0.01)``. On chains it equals
                ``gap``. On label sets it is the gap of the relaxation, and goes to 0, while ``gap`` may stay positive.
            max_passes: Stop at this many passes of this optimizer, those before this call included.
            schedule: When certificates are made, each of which decodes all examples; None is ``EveryPasses(10)``.
            violation: The mean total variation to reach; at least 0.
            on_check: Called with every certificate.
            progress: Whether one line on stderr shows gap, dual, passes and seconds; it changes no bit of the run.

        Returns:
            The last certificate, of the current weights.

        Raises:
            ValueError: An argument is out of range.
        """
        violation = check_number(violation, "violation", 0.0)

        def passes() -> Iterator[int]:
            while True:
                self.step()
                yield self.num_examples

        return run_until(
            passes(),
            self,
            self.certify,
            tolerance=tolerance,
            max_passes=max_passes,
            schedule=counting_from(self, schedule if schedule is not None else EveryPasses(10)),
            on_check=on_check,
            progress=progress,
            reached=lambda c: is_within(c.relaxed_gap, tolerance, c.relaxed_primal) and c.violation <= violation,
        )

    @torch.no_grad()
    def dual_state(self, batches: Iterable[Batch], *, storage: Storage | None = None) -> DualState:
        """The dual of a consistent point near the iterate, from which BCFW and its certificates can continue.

        The head gets the weights of that dual. This optimizer then refuses to continue until a state is loaded: one
        saved before, or ``load_state_dict(optim.state_dict())``, which takes the weights back.

        The point is a mean of outputs, like the blocks of BCFW, and its dual value is the ``dual`` of a certificate
        made now. Its weights differ from GDMM's, so their primal needs some passes to recover. Warns if an earlier
        certificate had a better dual.

        Args:
            batches: Every training example once, with the targets given to the constructor. The weights are summed from
                these batches, so the features may be new.
            storage: A storage that can be written to in parts: ``MeanParts()``, the default. Its blocks have the size
                of the potentials.

        Raises:
            ValueError: The batches or the storage do not fit, or features are not finite.
            MemoryError: The blocks would not fit.
            RuntimeError: The weights, or targets, were changed by others.
        """
        storage = storage if storage is not None else MeanParts()
        if not isinstance(storage, MeanParts):
            raise ValueError(f"storage={type(storage).__name__}() cannot store means of outputs: use MeanParts()")
        with self._changing():
            dual = self.problem.hand_over(with_fixed_features(batches), storage, certified=self.best_dual)
            self._handed_over = True
        return dual

    def _entries(self) -> dict[str, Any]:
        state = {
            "format": _FORMAT,
            **{name: getattr(self, name) for name in _NUMBERS},
            "lam": self.lam,
            "num_examples": self.num_examples,
            "features": self._features,  # what the duals were trained on
            "visits": torch.from_numpy(self._visits.copy()),  # totals of the current pass
            "visited": self._visited.clone(),
            "generator": self._generator.get_state(),  # draws the order of the next pass
            "problem": self.problem.state_dict(),
        }
        return {**super()._entries(), "gdmm": with_seal(state)}

    def _check_own(self, state: dict[str, Any]) -> None:
        super()._check_own(state)
        check_seal(state["gdmm"], _FORMAT, "gdmm")
        wanted = {
            "format": _FORMAT,
            **_NUMBERS,
            "lam": self.lam,
            "num_examples": self.num_examples,
            "features": int,
            "visits": Numbers(torch.float64, (3,), 0.0),
            "visited": Numbers(torch.bool, (self.num_examples,)),
            "generator": Tensor,
            "problem": dict,
            "seal": int,
        }
        check_entries(state["gdmm"], wanted, "gdmm")
        check_random_state(state["gdmm"]["generator"], "gdmm['generator']")
        self.problem.check_state(state["gdmm"]["problem"])

    def _restore_own(self, state: dict[str, Any]) -> None:
        """Continue bit for bit.

        A state with the same targets but other features is accepted, with a warning. The head gets the current weights
        of the state; in an uninterrupted run it keeps the weights from the start of a pass until the pass ends.
        """
        saved = state["gdmm"]
        same_features = saved["features"] == self._features
        if not same_features:
            warn(
                "the state was trained on other features: GDMM keeps its duals, recomputes the weights and drops the "
                "certified bounds"
            )
        super()._restore_own(state)
        for name in _NUMBERS:
            setattr(self, name, saved[name])
        self._visits, self._visited = saved["visits"].numpy().copy(), saved["visited"].to("cpu", copy=True)
        self._generator.set_state(saved["generator"].cpu())
        self.problem.restore(saved["problem"])
        if not same_features:
            self.best_dual = self.best_relaxed_dual = 0.0
            self.problem.refresh()
        self._handed_over, self.gap_estimate = False, math.inf
        self._publish()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but hooks, which belong to this object; copies notice later writes to their own weights."""
        state = {name: value for name, value in vars(self).items() if not name.startswith("_optimizer_")}
        return {**state, "_versions": None if self._as_written() else []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._versions is None:
            self._versions = [p._version for p in self.head.parameters()]

    def _publish(self) -> None:
        """Write the weights to the head."""
        write(self.problem.current_weights(), self.head.parameters())
        self._versions = [p._version for p in self.head.parameters()]

    def _as_written(self) -> bool:
        return [p._version for p in self.head.parameters()] == self._versions

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A change of duals or weights, done or not when an interrupt is let in."""
        with undisturbed(), torch_threads():
            self._check_weights()
            yield

    def _check_weights(self) -> None:
        reset = "optim.load_state_dict(optim.state_dict()) restores GDMM's weights"
        if self._handed_over:
            raise RuntimeError(f"the head's weights belong to the dual that dual_state() returned: {reset}")
        if not self._as_written():
            raise RuntimeError(f"the head's weights were changed outside GDMM: {reset}")


def check_head(head: Any) -> None:
    """Raise TypeError unless GDMM supports the head, and it is on the CPU."""
    check_kind(head)
    device = device_of(head)
    if device.type != "cpu":
        raise TypeError(f"head is on {device}, but GDMM runs on the CPU: call head.to('cpu')")


def check_kind(head: Any) -> None:
    """Raise TypeError unless GDMM supports the head, on any device."""
    problem = Problem.of_head.get(type(head))
    if problem is None or type(getattr(head, "structure", None)) is not problem.structure:
        kinds = [f"a {head.__name__} with a {kind.structure.__name__}" for head, kind in Problem.of_head.items()]
        raise TypeError(f"head={head} must be {', or '.join(kinds)}: train other heads with BCFW")
    problem.check_head(head)
    if head._forward_pre_hooks or not all(is_check(hook) for hook in head._forward_hooks.values()):
        raise TypeError("head has forward hooks, which GDMM does not run: use BCFW")
