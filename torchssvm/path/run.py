"""Following the regularisation path: [G16] Algorithm 7."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from torchssvm.core.arguments import check_number, check_object, or_default
from torchssvm.core.batch import device_of
from torchssvm.core.jit import clock
from torchssvm.core.moved import moved
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.schema import Maybe, Open, Schema, Stateful, damaged
from torchssvm.core.structure import Structure
from torchssvm.dual.state import DualState
from torchssvm.path.initial import check_cone, start_at_largest_lam
from torchssvm.path.result import Breakpoint, RegularizationPath
from torchssvm.path.rules import Accuracy, Certified, Heuristic
from torchssvm.path.walk import walk
from torchssvm.solvers.solver import Relative, Solver, Tolerance, check_tolerance, is_within, largest_gap, times
from torchssvm.solvers.trainer import ProgressLine, shown
from torchssvm.solvers.training import make_trainer, on_device


class PathRun(Stateful):
    """Follows a regularisation path, one breakpoint at a time, from the largest lambda to the smallest.

    :func:`regularization_path`, which has the same arguments (``epsilon`` is a number or ``Relative(0.1)``), calls
    ``advance`` until it returns False. Between two calls ``state_dict`` holds everything that the rest of the run
    depends on.

    Attributes:
        trainer: That of all breakpoints, by the solver that was chosen.
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

    @moved("recipe", "options")
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
        """The path found so far.

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
            Whether a breakpoint was found; if not, the run is over.

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
            aim = (self._lowest, self.max_passes - self.dual.passes)
            walked = walk([(self.trainer, 1.0)], [aim], tolerance, line=self.progress, train=self.rule.next)
            accuracy = next(walked)[0].result
        self._seconds += clock() - start
        if not is_within(accuracy.gap, self.epsilon, accuracy.primal):
            # Out of passes: the last breakpoint covers lambdas down to here.
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

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect the blocks of all ranks for the next ``state_dict()`` of the rank ``to``; all ranks call it."""
        self.dual.consolidate_state_dict(to)

    def _saved(self, how: str) -> dict[str, Any]:
        path = self.path.state_dict() if self._points else None
        return {"path": path, "dual": getattr(self.dual, how)(), "rule": repr(self.rule)}

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
            raise damaged(f"its dual is at lambda {lam}, which is not on the path")
        self.dual._lam = lam  # a dual's state excludes lambda, which a path changes
        try:
            self.dual.check_state(state["dual"])
        finally:
            self.dual._lam = held

    def restore(self, state: dict[str, Any]) -> None:
        """Continue bit for bit from a state that :meth:`check_state` accepted."""
        path = None if state["path"] is None else RegularizationPath.from_state_dict(state["path"])
        self.dual._lam = self.dual.storage.lam = state["dual"]["lam"]
        self.dual.restore(state["dual"])
        self._points = [] if path is None else list(path.points)
        self._lowest = math.inf if path is None else path.lowest
        self._seconds = self._points[-1].seconds if self._points else 0.0
        self._stopped = self.dual.passes >= self.max_passes


@moved("recipe", "options")
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
