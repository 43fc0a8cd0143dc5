"""Following the regularisation path: [G16] Algorithm 7."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from torch import nn

from torchssvm.core.arguments import check_dataset, check_number, check_object, check_seed, check_whole
from torchssvm.core.schema import Maybe, Open, Schema, Stateful, damaged
from torchssvm.dual.state import DualState
from torchssvm.path.initial import MakeOptimizer, begin, plain_optimizer, start_at_largest_lam
from torchssvm.path.result import Breakpoint, RegularizationPath
from torchssvm.path.rules import Accuracy, Certified, PathRule, Training
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.solve import Collate, Schedule, WhenEstimated
from torchssvm.steps.orders import Order

MakeDual = Callable[[float], DualState]
"""A new dual of the head, at a given lambda."""

MakeLoss = Callable[[DualState], BlockGap]
"""The block gap of a dual: here the direction and the oracle are chosen."""


class PathRun(Stateful):
    """A regularisation path being followed, one breakpoint at a time, from the largest lambda to the smallest.

    :func:`regularization_path` calls ``advance`` until it says no. Between two calls ``state_dict`` holds all that the
    rest of the run depends on.

    Args:
        head: The head; its weights are replaced.
        dataset: Map-style, n examples; an item's index is its place.
        epsilon: The gap that no lambda may exceed.
        lam_min: Stop where this lambda is served.
        rule: ``Certified()`` (the default) or ``Heuristic()``.
        make_dual: None is ``lambda lam: DualState.for_head(head, len(dataset), lam)``.
        make_loss: The block gap for a dual.
        make_optimizer: The optimizer of a dual, for weights within bounds; each bound is 0 or infinite.
        schedule: Makes the schedule of exact passes of one breakpoint.
        batch_size: Blocks of a step.
        order: In which order blocks are visited; None is gap sampling.
        max_passes: Stop at this many effective passes in all.
        seed: Of the samplers.
        collate_fn: Makes a ``Batch`` of items; None is ``dataset.collate``.

    Attributes:
        dual: The dual, as the last breakpoint left it.
        loss: What ``make_loss`` made for it.

    Raises:
        ValueError: An argument is out of range.
    """

    state_name = "run"

    def __init__(
        self,
        head: nn.Module,
        dataset: Any,
        *,
        epsilon: float,
        lam_min: float,
        rule: PathRule | None = None,
        make_dual: MakeDual | None = None,
        make_loss: MakeLoss = BlockGap,
        make_optimizer: MakeOptimizer = plain_optimizer,
        schedule: Callable[[], Schedule] = WhenEstimated,
        batch_size: int = 16,
        order: Order | None = None,
        max_passes: float = math.inf,
        seed: int = 0,
        collate_fn: Collate | None = None,
    ) -> None:
        self.epsilon = check_number(epsilon, "epsilon", above=0.0)
        self.lam_min = check_number(lam_min, "lam_min", 0.0)
        max_passes = check_number(max_passes, "max_passes", above=0.0, finite=False)
        batch_size, seed = check_whole(batch_size, "batch_size"), check_seed(seed)
        check_dataset(dataset)
        if rule is not None:
            check_object(rule, "rule", "next", "Certified()")
        self.rule: PathRule = rule if rule is not None else Certified()
        self.dual = make_dual(1.0) if make_dual is not None else DualState.for_head(head, len(dataset), 1.0)
        if self.dual.num_examples != len(dataset):
            raise ValueError(
                f"dataset has {len(dataset)} examples, and make_dual made a dual for {self.dual.num_examples}"
            )
        self.loss = make_loss(self.dual)
        if self.loss.dual is not self.dual:
            raise ValueError("make_loss(dual) returned the block gap of another dual")
        if not self.dual.steps:
            begin(self.dual, make_optimizer)
        self._training = Training(
            head, self.loss, dataset, collate_fn, batch_size, order, schedule, seed, max_passes, make_optimizer
        )
        self._seed = seed
        self._names = [name for name, _ in head.named_parameters()]
        self._points: list[Breakpoint] = []
        self._lowest = math.inf
        self._stopped = False
        self._seconds = 0.0

    @property
    def path(self) -> RegularizationPath:
        """The path as far as it goes now.

        Raises:
            RuntimeError: There is no breakpoint yet.
        """
        if not self._points:
            raise RuntimeError("the path has no breakpoint yet: call advance()")
        return RegularizationPath(self.epsilon, self.rule.kappa, self.rule.certified, self._points, self._lowest)

    def advance(self) -> bool:
        """Find the next breakpoint.

        Returns:
            Whether there was one to find; if not, the run is over.

        Raises:
            ValueError: No weights change any score.
            RuntimeError: The oracle is not exact where the path starts, at zero weights.
        """
        if self._stopped or self._lowest <= self.lam_min:
            return False
        start, dual, training = time.perf_counter(), self.dual, self._training
        tolerance = self.rule.kappa * self.epsilon
        bound = 0.0
        if not self._points:
            bound = start_at_largest_lam(
                training.head,
                dual,
                training.dataset,
                tolerance=tolerance,
                collate_fn=training.collate_fn,
                make_optimizer=training.make_optimizer,
            )
            accuracy = self.rule.first(training, bound)
        else:
            dual.rescale(self._lowest / dual.lam)  # 1 where an interrupted call has done so before
            training = training._replace(seed=self._seed + len(self._points))
            accuracy = self.rule.next(training, tolerance)
        self._seconds += time.perf_counter() - start
        if not accuracy.gap <= self.epsilon:  # out of passes: the last breakpoint serves down to here
            if not self._points:
                raise RuntimeError(
                    f"the gap at the largest lambda is {accuracy.gap:.6g}, more than its bound {bound:.6g}: is the "
                    "oracle exact when all weights are zero? The path starts from there"
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
        )
        self._points.append(point)
        self._lowest = self._factor() * point.lam
        self._stopped = self.dual.passes >= self._training.max_passes

    def _factor(self) -> float:
        """Step from the last breakpoint, rho of [G16] eq. 13; 0 if its weights serve all smaller lambda."""
        room, slope = self.epsilon - self._points[-1].gap, self._points[-1].slope
        return 0.0 if slope <= room else 1.0 - room / slope

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as tensors, numbers and strings."""
        path = self.path.state_dict() if self._points else None
        return {"path": path, "dual": self.dual.state_dict(), "rule": repr(self.rule)}

    def _schema(self) -> Schema:
        return {"path": Maybe(dict), "dual": Open({"lam": float}), "rule": str}

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        path: RegularizationPath | None = None
        here: dict[str, tuple[Any, Any]] = {"rule": (repr(self.rule), state["rule"])}
        lam, held = state["dual"]["lam"], self.dual.lam
        if state["path"] is not None:
            path = RegularizationPath.from_state_dict(state["path"])
            here["epsilon"] = (self.epsilon, path.epsilon)
            here["weights"] = (self._names, list(path.points[0].weights))
        for name, (mine, there) in here.items():
            if mine != there:
                raise ValueError(f"the checkpoint is of another run: {name} is {there} there and {mine} here")
        if path is not None and not any(
            math.isclose(lam, at, rel_tol=1e-9) for at in (path.points[-1].lam, path.lowest)
        ):
            raise damaged(f"its dual is at lambda {lam}, beside the path")
        self.dual._lam = lam  # the lambda of a dual belongs to its problem; here it is part of the state
        try:
            self.dual.check_state(state["dual"])
        finally:
            self.dual._lam = held

    def restore(self, state: dict[str, Any]) -> None:
        """Continue, to the same bits, from a state that :meth:`check_state` has let pass."""
        path = None if state["path"] is None else RegularizationPath.from_state_dict(state["path"])
        self.dual._lam = self.dual.storage.lam = state["dual"]["lam"]
        self.dual.restore(state["dual"])
        self._points = [] if path is None else list(path.points)
        self._lowest = math.inf if path is None else path.lowest
        self._seconds = self._points[-1].seconds if self._points else 0.0
        self._stopped = self.dual.passes >= self._training.max_passes


def regularization_path(
    head: nn.Module,
    dataset: Any,
    *,
    epsilon: float,
    lam_min: float,
    rule: PathRule | None = None,
    make_dual: MakeDual | None = None,
    make_loss: MakeLoss = BlockGap,
    make_optimizer: MakeOptimizer = plain_optimizer,
    schedule: Callable[[], Schedule] = WhenEstimated,
    batch_size: int = 16,
    order: Order | None = None,
    max_passes: float = math.inf,
    seed: int = 0,
    collate_fn: Collate | None = None,
    on_breakpoint: Callable[[PathRun], None] | None = None,
    resume: dict[str, Any] | None = None,
) -> RegularizationPath:
    """Weights for every lambda at once, each with a gap of at most ``epsilon`` ([G16] section 4, Algorithms 6 and 7).

    Starts at a lambda that is large enough for a solution in closed form, and goes down in steps as long as the gap
    allows without training (Proposition 1); after each step it trains from there to ``kappa epsilon``. Where the
    training set can be separated the path ends by itself: the last weights then serve every smaller lambda.

    Args:
        head: The head; its weights are replaced.
        dataset: Map-style, n examples; an item's index is its place.
        epsilon: The gap that no lambda may exceed.
        lam_min: Stop where this lambda is served. 0 goes to the end of the path, which a training set that cannot be
            separated does not have.
        rule: ``Certified()`` (the default): every breakpoint ends with an exact pass. ``Heuristic()``: estimates only.
        make_dual: Makes the dual, at a lambda that does not matter; None is
            ``lambda lam: DualState.for_head(head, len(dataset), lam)``.
        make_loss: Makes the block gap of the dual, where direction and oracle are chosen.
        make_optimizer: Makes the optimizer of the dual, where bounds on the weights are chosen, each 0 or infinite:
            ``lambda dual: BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)``.
        schedule: Makes the schedule of exact passes, anew for each breakpoint.
        batch_size: Blocks of a step.
        order: In which order blocks are visited; None is gap sampling.
        max_passes: Stop at this many effective passes in all; the path then goes as far as it goes.
        seed: Of the samplers.
        collate_fn: Makes a ``Batch`` of items; None is ``dataset.collate``.
        on_breakpoint: Called after each breakpoint; ``run.path`` is the path so far, ``run.state_dict()`` a checkpoint.
        resume: What ``run.state_dict()`` gave, to continue to the same bits with the same arguments.

    Raises:
        ValueError: An argument is out of range, ``resume`` does not fit, or no weights change any score.
        RuntimeError: The oracle is not exact where the path starts, at zero weights.
    """
    run = PathRun(
        head,
        dataset,
        epsilon=epsilon,
        lam_min=lam_min,
        rule=rule,
        make_dual=make_dual,
        make_loss=make_loss,
        make_optimizer=make_optimizer,
        schedule=schedule,
        batch_size=batch_size,
        order=order,
        max_passes=max_passes,
        seed=seed,
        collate_fn=collate_fn,
    )
    if resume is not None:
        run.load_state_dict(resume)
    while run.advance():
        if on_breakpoint is not None:
            on_breakpoint(run)
    return run.path
