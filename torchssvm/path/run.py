"""Following the regularisation path: [G16] Algorithm 7."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.compiler.jit import clock
from torchssvm.core.arguments import check_number, check_object, check_share, or_default
from torchssvm.core.batch import Batch, apply_head, device_of, fetcher, in_order, restrict, to_device
from torchssvm.core.precision import full_precision
from torchssvm.core.ranks import sum_in_order
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.states import Stateful, check_entries
from torchssvm.core.structure import Structure
from torchssvm.dual.checks import check_batch, check_dual
from torchssvm.dual.state import DualState
from torchssvm.path.result import Breakpoint, RegularizationPath
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.progress_line import ProgressLine, shown
from torchssvm.solvers.solver import Relative, Solver, Tolerance, check_tolerance, is_within, largest_gap, times
from torchssvm.solvers.training import make_trainer, on_device
from torchssvm.steps.box_qp import CommonStep


class Solved(NamedTuple):
    """The result of ``train`` at one lambda, and the passes and seconds that it took."""

    lam: float
    result: Any
    passes: float
    seconds: float


def train_at(
    lam: float,
    trainers: Sequence[tuple[Any, float]],
    tolerance: Tolerance,
    max_passes: float,
    *,
    line: ProgressLine | None,
    rule: Certified | Heuristic | None = None,
) -> list[Solved]:
    """Train at ``lam`` from the duals of the lambda before, by ``rule``, or else to a certificate.

    ``trainers`` has a trainer and the factor of its lambda for each fold; each takes at most ``max_passes``.
    """
    if line is not None:
        line.prefix = f"lam {lam:.3g}"
    solved = []
    for trainer, scale in trainers:
        dual, start, before = trainer.dual, clock(), trainer.dual.passes
        if not math.isclose(scale * lam, dual.lam, rel_tol=1e-12):
            if scale * lam < dual.lam:  # the weights stay ([G16] Prop. 1)
                dual.rescale(scale * lam / dual.lam)
            else:
                dual.change_lam(scale * lam)
        most, progress = before + max_passes, line or False
        if rule is None:
            result = trainer.solve(tolerance, max_passes=most, progress=progress)
        else:
            result = rule.next(trainer, tolerance, most, progress)
        solved.append(Solved(lam, result, dual.passes - before, clock() - start))
    if line is not None:
        line.clear()
    return solved


class Accuracy(NamedTuple):
    """The gap and the primal of the weights at one lambda, estimates where not certified, and how they change with it.

    At ``rho lam`` the gap of the same weights is ``gap + (1 - rho) slope`` (Delta of [G16] Proposition 1), and the
    primal ``primal - (1 - rho) lam/2 |w|^2``.
    """

    gap: float
    slope: float
    primal: float


class _Rule:
    kappa: float

    def __post_init__(self) -> None:
        check_share(self.kappa, "kappa")


@dataclass(frozen=True)
class Certified(_Rule):
    """The epsilon-approximate path of [G16] Algorithm 7: every breakpoint ends with an exact pass.

    Args:
        kappa: The share of epsilon that a breakpoint is solved to, in (0, 1); the step to the next uses the rest.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> regularization_path(head, data, epsilon=0.1, lam_min=0.1, rule=Certified(kappa=0.8)).certified
        True
    """

    kappa: float = 0.9
    certified = True

    def first(self, trainer: Any, bound: float) -> Accuracy:
        """Accuracy by one exact pass; the gap is usually much smaller than ``bound``."""
        return self._accuracy(trainer.dual, trainer.certify())

    def next(self, trainer: Any, tolerance: Tolerance, max_passes: float, progress: bool | ProgressLine) -> Accuracy:
        """Train by the trainer's ``solve``."""
        return self._accuracy(trainer.dual, trainer.solve(tolerance, max_passes=max_passes, progress=progress))

    def _accuracy(self, dual: DualState, certificate: Certificate) -> Accuracy:
        # P - D changes by (1 - rho)(sum_i l_i - lam/2 |w|^2 - lam/2 |w(alpha)|^2). This holds for the head's rounded
        # weights w, and for an upper bound in place of P. Under bounds the last term is lam (<v, w> - |w|^2/2), and
        # the formula is the same.
        slope = certificate.dual - dual.lam / 2 * squared_norm(dual.parameters)
        return Accuracy(certificate.gap, slope, certificate.dual + certificate.gap)


@dataclass(frozen=True)
class Heuristic(_Rule):
    """The heuristic path of [G16] appendix K: a breakpoint is done once the sum of stale gaps is within kappa epsilon.

    Faster where breakpoints are close together. Proves nothing: it makes no exact pass.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> regularization_path(head, data, epsilon=0.1, lam_min=0.1, rule=Heuristic()).certified
        False
    """

    kappa: float = 0.7
    certified = False

    def first(self, trainer: Any, bound: float) -> Accuracy:
        """The bound of Algorithm 6."""
        return self._accuracy(trainer.dual, bound)

    def next(self, trainer: Any, tolerance: Tolerance, max_passes: float, progress: bool | ProgressLine) -> Accuracy:
        """Take steps until the sum of the stale gaps is within the tolerance."""
        dual = trainer.dual
        trainer.advance(max_passes - dual.passes)
        while dual.passes < max_passes:
            gap = dual.gap_estimate
            if is_within(gap, tolerance, dual.value() + gap):
                break
            trainer.advance(max_passes - dual.passes)
            if isinstance(progress, ProgressLine):
                progress.update(dual.passes, dual.gap_estimate, dual.value)
        return self._accuracy(dual, dual.gap_estimate)

    def _accuracy(self, dual: DualState, gap: float) -> Accuracy:
        value = dual.value()
        return Accuracy(gap, value - dual.lam / 2 * squared_norm(dual.parameters), value + gap)


_BATCH = 256  # examples of a step, at most
_MARGIN = 1e9  # lam exceeds what a full step needs by this factor while the blocks move to their corners


def start_at_largest_lam(
    head: nn.Module, dual: DualState, dataset: Any, *, tolerance: Tolerance, optimizer: BCFW | None = None
) -> float:
    """Move every block of a new dual to the output with the largest loss, and choose ``lam`` to reach ``tolerance``.

    With ``y~_i = argmax_y L_i(y)`` and ``psi~ = (1/n) sum_i psi_i(y~_i)`` the weights are ``psi~ / lam``. Their gap is
    at most ``(|psi~|^2 + (1/n) sum_i theta_i) / lam`` with ``theta_i = max_y -<psi~, psi_i(y)>``, a decoding without
    loss at the weights psi~ ([G16] eq. 11). ``lam`` times the gap does not grow with ``lam``, so ``psi~ / lam`` has a
    smaller gap at every larger ``lam``. Takes two passes of oracle calls.

    Under bounds that are 0 or infinite, ``clip(psi~)`` replaces psi~: clipping commutes with the division by ``lam``,
    and ``<psi~, clip(psi~)> = |clip(psi~)|^2``.

    A share of the primal is taken of the dual ``(1/n) sum_i L_i(y~_i) - |psi~|^2 / (2 lam)``, which is below it. As
    ``lam`` grows the dual grows and the gap does not, so the share holds at every larger ``lam`` too.

    Args:
        dual: A dual without steps; its ``lam`` is replaced.
        tolerance: kappa epsilon; positive, or ``Relative(share)``.
        optimizer: The dual's optimizer, which may have bounds; None makes one without.

    Returns:
        An upper bound of the gap at ``dual.lam``, which is now lambda^infinity: ``tolerance``, up to rounding, where
        it is a number.

    Raises:
        ValueError: The dual has steps, a bound is neither 0 nor infinite, or no weights change any score.
    """
    tolerance = check_tolerance(tolerance, above=0.0)
    check_dual(dual)
    if dual.steps:
        raise ValueError(f"dual has taken {dual.steps} steps: give a new one")
    optimizer = optimizer if optimizer is not None else BCFW(dual.parameters, dual)
    check_cone(dual)
    for parameter in dual.parameters:
        nn.init.zeros_(parameter)
    dual.remember_weights()
    _to_largest_losses(head, dual, dataset, optimizer)
    n = dual.num_examples
    dual.change_lam(1.0)  # the weights are psi~ now
    thetas = torch.zeros_like(dual.loss)
    products = torch.zeros_like(dual.loss)

    @torch.no_grad()
    def decode() -> None:
        for batch in restrict(in_order(dataset), dual.own):
            batch = to_device(batch, dual.parameters[0].device)
            with full_precision(dual.loss.device):
                potentials = apply_head(head, batch)
                index = check_batch(dual, batch.index, potentials)
                target = dual.structure.check_target(batch.y, potentials)
                thetas[index] = dual.structure._largest_gain(potentials, target)
                products[index] = dual.storage.gather(index, potentials, target).inner(potentials)

    dual.ranks.run_on_all(decode)
    dual.oracle_calls += n
    square = squared_norm(dual.parameters)
    scale = square + float(sum_in_order(dual.ranks.gather(thetas.sum()))) / n
    if isinstance(tolerance, Relative):
        loss = dual.total_loss
        lam = (scale / tolerance.share + square / 2) / loss if loss > 0.0 else 0.0
    else:
        lam = scale / tolerance
    if not lam > 0.0:
        raise ValueError("no weights change any score of dataset: are all features zero?")
    dual.change_lam(lam)
    # Line 14. lam <w_i, w> equals <psi_i, theta_i>/n at the weights psi~, divided by lam.
    dual.gap_estimates = ((thetas / n + products) / lam).clamp(min=0.0)
    dual.sum_over_ranks()
    return scale / lam


def check_cone(dual: DualState) -> None:
    """Raise ValueError if a bound of the weights is neither 0 nor infinite."""
    if not dual.box.is_cone:
        raise ValueError("bounds limit weights by another number than 0: give (0.0, None) or (None, 0.0)")


def _to_largest_losses(head: nn.Module, dual: DualState, dataset: Any, optimizer: BCFW) -> None:
    """Take full Frank-Wolfe steps with every corner taken at w = 0; they work with any storage.

    ``lam`` is raised until the exact line search takes a full step. The dual's weights are kept in
    ``dual.recomputed``, where the next step starts, while the head holds zeros.
    """
    loss, fetch = BlockGap(dual, block_steps=CommonStep()), fetcher(dataset)
    ranks, examples = dual.ranks, dual.own
    steps = math.ceil(math.ceil(dual.num_examples / ranks.size) / _BATCH)  # as many in each process

    def batch_of(step: int) -> Batch:
        rows = examples[step * len(examples) // steps : (step + 1) * len(examples) // steps]
        return to_device(fetch(rows), dual.parameters[0].device)

    def propose(batch: Batch) -> Tensor:
        """The value of this process's direction, its squared norm, and examples decoded."""
        optimizer.zero_grad()
        value = loss.propose(apply_head(head, batch), batch.y, batch.index)
        value.backward()
        squared = squared_norm(p.grad for p in dual.parameters if p.grad is not None)
        return torch.tensor([float(value.detach()), squared, len(batch.index)], dtype=torch.float64)

    for step in range(steps):
        batch = ranks.run_on_all(partial(batch_of, step))
        values, squared, decoded = ranks.gather(ranks.run_on_all(partial(propose, batch))).unbind(1)
        if not bool((values > 0.0).any()):  # no output of these examples has a loss: they stay at their targets
            optimizer.zero_grad()
            dual.oracle_calls += int(decoded.sum())
            continue
        # No direction disturbs another one so much that it would not take a full step.
        needed = _MARGIN * ranks.size * float(squared.sum()) / float(values[values > 0.0].min())
        if needed > dual.lam:
            optimizer.zero_grad()
            dual.change_lam(needed)
            ranks.run_on_all(partial(propose, batch))
        optimizer.step()
        dual.recomputed = [v.detach().clone() for v in dual.unclipped]
        for parameter in dual.parameters:
            nn.init.zeros_(parameter)
    optimizer.zero_grad()
    dual.set_weights(dual.recomputed or dual.unclipped)


class PathRun(Stateful):
    """Follows a regularisation path, one breakpoint at a time, from the largest lambda to the smallest.

    :func:`regularization_path`, which has the same arguments (``epsilon`` is a number or ``Relative(0.1)``), calls
    ``advance`` until it returns False. Between two calls ``state_dict`` holds everything that the rest of the run
    depends on.

    Attributes:
        trainer: Trains the head at every breakpoint, by the chosen solver.
        dual: The dual at the last breakpoint.
        progress: The line that follows the run; None at first.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> run = PathRun(LinearMulticlass(4, 3), data, epsilon=0.1, lam_min=0.05)
        >>> while run.advance():
        ...     state = run.state_dict()  # to save: run.load_state_dict(state) goes on from it
        >>> run.path.lowest <= 0.05
        True
    """

    state_name = "run"
    progress: ProgressLine | None = None

    def __init__(
        self,
        head: nn.Module,
        dataset: Any,
        *,
        epsilon: Tolerance,
        lam_min: float,
        max_passes: float = math.inf,
        rule: Certified | Heuristic | None = None,
        solver: Solver | None = None,
        structure: Structure | None = None,
    ) -> None:
        self.epsilon = check_tolerance(epsilon, "epsilon", above=0.0)
        self.lam_min = check_number(lam_min, "lam_min", 0.0)
        self.max_passes = check_number(max_passes, "max_passes", above=0.0, finite=False)
        if rule is not None:
            check_object(rule, "rule", "next", "Certified()")
        self.rule = rule if rule is not None else Certified()
        solver = or_default(solver, Solver, "solver")
        self.trainer: Any = make_trainer(head, dataset, 1.0, solver=solver, structure=structure, progress=False)
        self.dual: DualState = self.trainer.dual
        check_cone(self.dual)
        self._dataset, self._seed = dataset, solver.seed
        self._names = [name for name, _ in head.named_parameters()]
        self._points: list[Breakpoint] = []
        self._lowest = math.inf
        self._stopped = False
        self._seconds = 0.0

    @property
    def path(self) -> RegularizationPath:
        """The path so far.

        Raises:
            RuntimeError: There is no breakpoint yet.
        """
        if not self._points:
            raise RuntimeError("the path has no breakpoint yet: call advance()")
        certified = self.rule.certified and not self.dual.relaxed  # the gap of a relaxation bounds nothing else
        return RegularizationPath(self.epsilon, self.rule.kappa, certified, self._points, self._lowest)

    def advance(self) -> bool:
        """Find the next breakpoint.

        Returns:
            Whether there is a new breakpoint; if not, the run is over.

        Raises:
            ValueError: No weights change any score.
            RuntimeError: The oracle is not exact at zero weights, where the path starts.
        """
        if self._stopped or self._lowest <= self.lam_min:
            return False
        start, tolerance, bound = clock(), times(self.epsilon, self.rule.kappa), 0.0
        if not self._points:
            trainer = self.trainer
            optimizer = getattr(trainer, "optimizer", None)  # the compiled loop has none
            bound = start_at_largest_lam(
                trainer.head, self.dual, self._dataset, tolerance=tolerance, optimizer=optimizer
            )
            accuracy = self.rule.first(trainer, bound)
        else:
            self.trainer.reseed(self._seed + len(self._points))
            left, trainers = self.max_passes - self.dual.passes, [(self.trainer, 1.0)]
            solved = train_at(self._lowest, trainers, tolerance, left, line=self.progress, rule=self.rule)
            accuracy = solved[0].result
        self._seconds += clock() - start
        if not is_within(accuracy.gap, self.epsilon, accuracy.primal):
            # Out of passes: the last breakpoint covers lambdas down to here.
            if not self._points:
                raise RuntimeError(
                    f"the gap at the largest lambda is {accuracy.gap:.6g}, more than its bound {bound:.6g}: is the "
                    "oracle exact at zero weights?"
                )
            self._stopped = True
            return False
        self._keep(accuracy)
        return True

    def _keep(self, accuracy: Accuracy) -> None:
        weights = (p.detach().to("cpu", copy=True) for p in self.dual.parameters)
        point = Breakpoint(
            self.dual.lam,
            dict(zip(self._names, weights, strict=True)),
            accuracy.gap,
            accuracy.slope,
            self.dual.passes,
            self._seconds,
            accuracy.primal,
        )
        self._points.append(point)
        self._lowest = self._factor() * point.lam
        self._stopped = self.dual.passes >= self.max_passes

    def _factor(self) -> float:
        """Step rho of [G16] eq. 13 from the last breakpoint; 0 if that breakpoint covers all smaller lambdas."""
        point = self._points[-1]
        room, fall = largest_gap(self.epsilon, point.primal) - point.gap, point.slope
        if isinstance(self.epsilon, Relative):  # the primal falls with lambda too
            fall += self.epsilon.share * point.lam / 2 * squared_norm(self.dual.parameters)
        return 0.0 if fall <= room else 1.0 - room / fall

    def _nested(self) -> dict[str, Stateful]:
        return {"dual": self.dual}

    def _entries(self) -> dict[str, Any]:
        return {"path": self.path.state_dict() if self._points else None, "rule": repr(self.rule)}

    def _check_own(self, state: dict[str, Any]) -> None:
        check_entries(state, {"path": object, "dual": dict, "rule": repr(self.rule)}, "run")
        lam, lam_before = state["dual"]["lam"], self.dual.lam
        if state["path"] is not None:
            path = RegularizationPath.from_state_dict(state["path"])
            saved = {"epsilon": path.epsilon, "weights": list(path.points[0].weights)}
            if saved != (expected := {"epsilon": self.epsilon, "weights": self._names}):
                raise ValueError(f"the checkpoint is of another run: it has {saved}, and this run {expected}")
        self.dual._lam = lam  # a dual refuses the state of another lambda, which a path changes
        try:
            self.dual.check_state(state["dual"])
        finally:
            self.dual._lam = lam_before

    def _restore_own(self, state: dict[str, Any]) -> None:
        path = None if state["path"] is None else RegularizationPath.from_state_dict(state["path"])
        self.dual._lam = self.dual.storage.lam = state["dual"]["lam"]
        self.dual.restore(state["dual"])
        self._points = [] if path is None else list(path.points)
        self._lowest = math.inf if path is None else path.lowest
        self._seconds = self._points[-1].seconds if self._points else 0.0
        self._stopped = self.dual.passes >= self.max_passes


def regularization_path(
    head: nn.Module,
    dataset: Any,
    *,
    epsilon: Tolerance,
    lam_min: float,
    max_passes: float = math.inf,
    rule: Certified | Heuristic | None = None,
    solver: Solver | None = None,
    structure: Structure | None = None,
    on_breakpoint: Callable[[PathRun], None] | None = None,
    resume: dict[str, Any] | None = None,
    progress: bool = True,
) -> RegularizationPath:
    """Weights for every lambda at once, each with a gap of at most ``epsilon`` ([G16] section 4, Algorithms 6 and 7).

    Starts at a lambda large enough for a closed-form solution. Each step lowers lambda until the gap is ``epsilon``
    (Proposition 1), then trains to ``kappa epsilon``. On a separable training set the path ends by itself: the last
    weights cover every smaller lambda.

    Args:
        head: The head; its weights are replaced.
        dataset: Map-style, n examples; an item's index is its place.
        epsilon: The largest gap allowed at any lambda: a positive number, or ``Relative(0.01)``, a share of the primal
            at that lambda.
        lam_min: Stop when this lambda is covered. 0 follows the path to its end, which exists only if the training set
            is separable.
        max_passes: Stop at this many effective passes in all; the path then ends early.
        rule: ``Certified()`` (the default): every breakpoint ends with an exact pass. ``Heuristic()``: estimates only.
        solver: As in :func:`torchssvm.solve`, like ``structure``; bounds are 0 or infinite. The draws begin anew at
            each breakpoint, by the next seed.
        on_breakpoint: Called with the run after each breakpoint: ``run.path`` is the path so far, ``run.state_dict()``
            a checkpoint.
        resume: A checkpoint, to continue bit for bit; all other arguments must be the same.
        progress: Whether one line on stderr shows lambda, gap, dual, passes and seconds.

    Raises:
        ValueError: An argument is out of range, ``resume`` does not fit, or no weights change any score.
        RuntimeError: The oracle is not exact at zero weights, where the path starts.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> path = regularization_path(head, data, epsilon=0.1, lam_min=0.05)
        >>> path.certified, path.lowest <= 0.05
        (True, True)
        >>> all(point.gap <= 0.1 for point in path.points)
        True
    """
    with on_device(head, device_of(head)), shown(progress) as line:
        following = PathRun(
            head,
            dataset,
            epsilon=epsilon,
            lam_min=lam_min,
            max_passes=max_passes,
            rule=rule,
            solver=solver,
            structure=structure,
        )
        if resume is not None:
            following.load_state_dict(resume)
        following.progress = line
        while following.advance():
            if on_breakpoint is not None:
                on_breakpoint(following)
    return following.path
