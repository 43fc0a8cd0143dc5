"""How a head is trained, as one object: what a user gives, checked where it is given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchssvm.core.arguments import check_limit, check_object, check_seed, check_whole
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.storage import MeanParts, Storage
from torchssvm.solvers.parameter_groups import NamedBounds
from torchssvm.solvers.schedules import Schedule
from torchssvm.steps.block_steps import BlockSteps, check_block_steps
from torchssvm.steps.box_qp import BoxQP
from torchssvm.steps.cache import MaxOracle, OracleRule
from torchssvm.steps.directions import DirectionRule, FrankWolfe, check_rules
from torchssvm.steps.line_search import LineSearch
from torchssvm.steps.orders import Order

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
        block_steps: The steps of a batch's blocks, such as ``Sequential()``: the torch loop is then chosen.
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
        if self.compiled is not None and not isinstance(self.compiled, bool):
            raise TypeError(f"compiled={self.compiled!r} must be True, False or None")
        for name in ("batch_size", "round_visits"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_whole(value, name))
        for loop, name, other in ((True, "batch_size", "torch"), (False, "round_visits", "compiled")):
            if self.compiled is loop and (value := getattr(self, name)) is not None:
                raise ValueError(f"{name}={value} is for the {other} loop, and compiled={loop}: leave one of them out")
        object.__setattr__(self, "memory_limit", check_limit(self.memory_limit))
        object.__setattr__(self, "seed", check_seed(self.seed))
        if self.order is not None:
            check_object(self.order, "order", "draw", "Permutation()")
        if self.line_search is not None and (isinstance(self.line_search, type) or not callable(self.line_search)):
            raise TypeError(f"line_search={self.line_search!r} must be an object such as ExactSearch()")
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
        if not isinstance(storage, Storage):
            raise TypeError(f"storage={storage} must be an object such as MeanParts(), Labelings() or Weights()")
        check_rules(direction, oracle, storage, whole=True)  # that of the head is asked where there is one
        if hasattr(storage, "num_examples"):
            raise ValueError(
                f"storage={type(storage).__name__}() already belongs to a DualState: give a new one, which every run "
                "copies"
            )
        block_steps = check_block_steps(self.block_steps if self.block_steps is not None else BoxQP())
        block_steps.check(direction, oracle, storage)
        return self.with_rules(direction=direction, oracle=oracle, storage=storage, block_steps=block_steps)

    def with_rules(self, **rules: Any) -> Solver:
        """A copy with rules that are known to fit."""
        found = copy.copy(self)
        vars(found).update(rules)
        return found
