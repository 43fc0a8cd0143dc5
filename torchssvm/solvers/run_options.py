"""How a run of the torch loop visits the training set."""

from __future__ import annotations

from dataclasses import dataclass

from torchssvm.core.arguments import check_object, check_seed, check_whole
from torchssvm.core.batch import Collate
from torchssvm.solvers.schedules import Schedule
from torchssvm.steps.orders import Order


@dataclass(frozen=True)
class RunOptions:
    """How :func:`torchssvm.solve`, grids and paths visit the training set; may be shared by several runs.

    Attributes:
        batch_size: Blocks in a step of the torch loop; None is 16, and 64 for :func:`torchssvm.solve`.
        order: In which order blocks are visited; None is ``Proportional()``, gap sampling. ``ByLength(lengths)`` draws
            batches of similar length.
        schedule: When exact passes are made; None is ``WhenEstimated()``.
        seed: Seed of the sampler.
        collate_fn: Makes a ``Batch`` of a list of items; None is ``dataset.collate``.

    Raises:
        ValueError: ``batch_size`` or ``seed`` is out of range.
        TypeError: ``order``, ``schedule`` or ``collate_fn`` is of another kind.

    Example:
        >>> options = RunOptions(order=Uniform(), schedule=EveryPasses(5), seed=1)
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, options=options).exact
        True
    """

    batch_size: int | None = None
    order: Order | None = None
    schedule: Schedule | None = None
    seed: int = 0
    collate_fn: Collate | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", check_whole(self.batch_size, "batch_size"))
        object.__setattr__(self, "seed", check_seed(self.seed))
        if self.order is not None:
            check_object(self.order, "order", "draw", "Permutation()")
        if self.schedule is not None:
            check_object(self.schedule, "schedule", "due", "WhenEstimated()")
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise TypeError(f"collate_fn={self.collate_fn!r} must make a Batch of a list of items")
