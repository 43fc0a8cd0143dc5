"""How a head is trained, what a user gives: tolerance, schedule of exact passes, and the solver as one object."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torchssvm.core.arguments import (
    as_number,
    check_flags,
    check_limit,
    check_number,
    check_object,
    check_seed,
    check_share,
    check_whole,
)
from torchssvm.core.problem import NamedBounds
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.storage import Storage
from torchssvm.solvers.certificate import Certificate
from torchssvm.steps.box_qp import BlockSteps, BoxQP, check_block_steps
from torchssvm.steps.directions import DirectionRule, FrankWolfe, MaxOracle, OracleRule, Order, check_rules
from torchssvm.steps.line_search import LineSearch


@dataclass(frozen=True)
class Relative:
    """A gap of at most ``share`` of the primal: the objective is then proved to be that close to its optimum.

    Args:
        share: Between 0 and 1, both excluded; 0.01 is one per cent.

    Raises:
        ValueError: ``share`` is out of range.
        TypeError: ``share`` is not a number.

    Example:
        >>> solve(LinearMulticlass(4, 3), data, lam=0.01, tolerance=Relative(0.1)).relative_gap <= 0.1
        True
    """

    share: float

    def __post_init__(self) -> None:
        check_share(self.share, "share")
        object.__setattr__(self, "share", as_number(self.share, "share"))  # a NumPy number cannot be saved safely

    def __format__(self, spec: str) -> str:
        return f"{100 * self.share:g} % of the primal"


Tolerance = float | Relative
"""The largest gap: a number, or a share of the primal."""


def largest_gap(tolerance: Tolerance, primal: float) -> float:
    """The largest gap that a tolerance allows at this primal."""
    return tolerance.share * primal if isinstance(tolerance, Relative) else tolerance


def is_within(gap: float, tolerance: Tolerance, primal: float) -> bool:
    """Whether a gap is within the tolerance, at this primal."""
    return gap <= largest_gap(tolerance, primal)


def percent(share: float) -> str:
    """A share to two digits, and 100 % as such."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def times(tolerance: Tolerance, factor: float) -> Tolerance:
    """A tolerance that allows ``factor`` times the gap; ``factor`` is at most 1."""
    return Relative(factor * tolerance.share) if isinstance(tolerance, Relative) else factor * tolerance


def expected(tolerance: Tolerance, last: Certificate | None) -> float:
    """The gap at which an exact pass is worth while.

    A share is taken of the dual, as the primal of the next pass will be lower than the last one: 0 before the first.
    """
    if not isinstance(tolerance, Relative):
        return tolerance
    return 0.0 if last is None else max(tolerance.share * last.dual, 0.0)


def check_tolerance(tolerance: Any, name: str = "tolerance", *, above: float = -math.inf) -> Tolerance:
    """``tolerance``: a finite number of at least 0, or ``above`` a bound, or a :class:`Relative`; else an error."""
    if isinstance(tolerance, Relative):
        return tolerance
    if above > -math.inf:
        return check_number(tolerance, name, above=above)
    return check_number(tolerance, name, 0.0)


class Progress(Protocol):
    """The progress of a trainer; :class:`torchssvm.DualState` implements it."""

    @property
    def num_examples(self) -> int:
        """n, the size of the training set."""

    @property
    def passes(self) -> float:
        """Effective passes since the start."""

    @property
    def gap_estimate(self) -> float:
        """An unproved estimate of the gap; infinite where nothing is known."""


def visited(progress: Progress) -> float:
    """Epochs of visits since the start: with and without an oracle call."""
    return progress.passes + getattr(progress, "cache_hits", 0) / progress.num_examples


class Schedule(Protocol):
    """Decides when an exact pass is worth its n oracle calls. Every run uses a copy."""

    def due(self, progress: Progress, tolerance: float) -> bool:
        """Whether an exact pass should be made now; asked after every step, so it must be cheap.

        Args:
            progress: The state after the step: the dual, where the trainer has one, with its ``oracle_calls``.
            tolerance: The ``gap_estimate`` at which the gap is probably reached, by how far the estimate was off at the
                last exact pass.
        """

    def after(self, certificate: Certificate) -> None:
        """Called after every exact pass."""


class EveryPasses:
    """An exact pass after every ``passes`` effective passes, 10 in [G16] section 3.

    Args:
        passes: Effective passes (n oracle calls each) between exact passes; positive.

    Raises:
        ValueError: ``passes`` is not positive.

    Example:
        >>> solver = Solver(schedule=EveryPasses(5))
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    def __init__(self, passes: float = 10.0) -> None:
        self.passes = check_number(passes, "passes", above=0.0, finite=False)
        self._last: float | None = None

    def due(self, progress: Progress, tolerance: float) -> bool:
        """Whether ``passes`` passes were made since the last exact pass, or since the first call."""
        if self._last is None or self._last > progress.passes:  # the count is larger if another dual made it
            self._last = progress.passes
        return progress.passes - self._last >= self.passes

    def after(self, certificate: Certificate) -> None:
        """Count from this pass."""
        self._last = certificate.passes


class WhenEstimated(EveryPasses):
    """An exact pass as soon as the stale gaps are within the tolerance, and at the latest after ``passes`` passes.

    Args:
        passes: As in :class:`EveryPasses`.
        at_least: Epochs of visits after an exact pass before estimates are trusted again; visits that the cache
            answers count too.

    Example:
        >>> solver = Solver(schedule=WhenEstimated(passes=20))
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    def __init__(self, passes: float = 10.0, at_least: float = 1.0) -> None:
        super().__init__(passes)
        self.at_least = self._wait = as_number(at_least, "at_least")
        self._hits: int | None = None  # of the cache, when asked first after an exact pass
        if not 0.0 < at_least <= passes:
            raise ValueError(f"at_least={at_least} must be positive and at most passes={passes}")

    def due(self, progress: Progress, tolerance: float) -> bool:
        """Whether the sum of the stale gaps is within the tolerance, or ``passes`` passes were made."""
        if super().due(progress, tolerance):
            return True
        assert self._last is not None
        hits = getattr(progress, "cache_hits", 0)
        if self._hits is None or self._hits > hits:
            self._hits = hits
        waited = progress.passes - self._last + (hits - self._hits) / progress.num_examples
        return waited >= self._wait and progress.gap_estimate <= tolerance

    def after(self, certificate: Certificate) -> None:
        """Count from this pass; wait longer each time where an approximate oracle leaves a gap that no step closes."""
        super().after(certificate)
        self._hits = None
        self._wait = self.at_least if certificate.exact else min(2 * self._wait, self.passes)


def counting_from(progress: Progress, schedule: Schedule) -> Schedule:
    """A copy of the schedule that counts passes from now on; TypeError for another object."""
    check_object(schedule, "schedule", "due", "EveryPasses()")
    schedule = copy.deepcopy(schedule)
    schedule.due(progress, -math.inf)
    return schedule


Direction = DirectionRule | Callable[..., Any]
"""A direction rule. The ``Callable`` is for configuration files: jsonargparse reads a protocol whose ``__call__``
returns a Tensor as a factory of Tensors, and would refuse ``class_path: torchssvm.Pairwise``. ``Solver`` refuses any
other callable."""


@dataclass(frozen=True, eq=False)
class Solver:
    """How a head is trained: the rules of a step, the storage of the dual's blocks, the loop and its draws.

    What is None is chosen, to fit what is given; ``Solver()`` leaves all of it to the library (see :func:`choose`). The
    same solver on the same data gives the same run where the same memory is free, however busy the machine. It may be
    used again: every run begins with a copy of its storage.

    Attributes:
        direction: The direction of a step, such as ``Pairwise()``.
        oracle: Whether to decode: ``MaxOracle()`` or ``CacheOracle()``.
        storage: How blocks are kept: ``MeanParts()``, ``Labelings()`` or ``Weights()``.
        block_steps: The steps of a batch's blocks, such as ``CommonStep()``: the torch loop is then chosen.
        line_search: Chooses the step size; None is ``ExactSearch()``.
        compiled: Whether :class:`torchssvm.CompiledBCFW` takes the steps; None is True where it can. False also suits a
            dataset that gives an example other features each time (augmentation).
        bounds: ``(lower, upper)`` by the name of a parameter of the head, None for no bound.
        memory_limit: Bytes that the dual's blocks may take; None is what the device has left.
        batch_size: Blocks in a step of the torch loop, of each process; None is 64, divided by the number of processes.
        order: In which order blocks are visited; None is ``Proportional()``, gap sampling; in the torch loop, where the
            dataset has an attribute ``lengths``, in batches of similar length: ``ByLength(lengths)``.
        seed: Seed of the order.
        schedule: When exact passes are made; None is ``WhenEstimated()``, and ``WhenEstimated(30.0)`` for classes whose
            blocks are solved whole.
        round_visits: Of several processes, the visits of each between two exchanges of the compiled loop; None chooses
            it by the sizes of weights and examples.

    Raises:
        TypeError: An attribute is not an object of its kind.
        ValueError: A number is out of range; attributes contradict each other, such as a direction that needs labelings
            and a storage that keeps none, or ``batch_size`` and ``compiled=True``; or the storage already belongs to a
            dual.

    Example:
        >>> solver = Solver(direction=Pairwise(), oracle=CacheOracle(), seed=1)
        >>> solve(LinearMulticlass(4, 3), data, lam=0.01, solver=solver).exact
        True
    """

    direction: Direction | None = None
    oracle: OracleRule | None = None
    storage: Storage | None = None
    block_steps: BlockSteps | None = None
    line_search: LineSearch | None = None
    compiled: bool | None = None
    bounds: NamedBounds | None = None
    memory_limit: int | None = None
    batch_size: int | None = None
    order: Order | None = None
    seed: int = 0
    schedule: Schedule | None = None
    round_visits: int | None = None

    def __post_init__(self) -> None:
        if self.compiled is not None:
            check_flags(compiled=self.compiled)
        for name in ("batch_size", "round_visits"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_whole(value, name))
        for loop, name, other in ((True, "batch_size", "torch"), (False, "round_visits", "compiled")):
            if self.compiled is loop and (value := getattr(self, name)) is not None:
                raise ValueError(f"{name}={value} is for the {other} loop, but compiled={loop}: leave one of them out")
        object.__setattr__(self, "memory_limit", check_limit(self.memory_limit))
        object.__setattr__(self, "seed", check_seed(self.seed))
        if self.order is not None:
            check_object(self.order, "order", "draw", "Permutation()")
        if self.line_search is not None:
            check_object(self.line_search, "line_search", "__call__", "ExactSearch()")
        if self.bounds is not None and not isinstance(self.bounds, Mapping):
            raise TypeError(f'bounds={self.bounds!r} must be a dictionary such as {{"pairwise": (0.0, None)}}')
        if self.schedule is not None:
            check_object(self.schedule, "schedule", "due", "WhenEstimated()")
        if any(rule is not None for rule in (self.direction, self.oracle, self.storage, self.block_steps)):
            self.with_defaults()

    def with_defaults(self) -> Solver:
        """The solver with the rules of ``BlockGap`` in the place of None.

        Raises:
            TypeError, ValueError: See the class.
        """
        direction: Any = self.direction if self.direction is not None else FrankWolfe()
        oracle = self.oracle if self.oracle is not None else MaxOracle()
        storage = self.storage
        if storage is None:
            needed = getattr(direction, "needs_labelings", False) or getattr(oracle, "needs_labelings", False)
            storage = Labelings() if needed else MeanParts()
        if not isinstance(storage, Storage) or hasattr(storage, "num_examples"):
            raise TypeError(f"storage={storage} must be a new object, such as MeanParts(), Labelings() or Weights()")
        check_rules(direction, oracle, storage, whole=True)  # the head is checked where it is given
        block_steps = check_block_steps(self.block_steps if self.block_steps is not None else BoxQP())
        return self.with_rules(direction=direction, oracle=oracle, storage=storage, block_steps=block_steps)

    def with_rules(self, **rules: Any) -> Solver:
        """A copy with rules that are known to fit."""
        solver = copy.copy(self)
        vars(solver).update(rules)
        return solver
