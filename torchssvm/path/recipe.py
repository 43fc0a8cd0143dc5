"""How the dual, the block gap and the optimizer for a lambda are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from torchssvm.dual.state import DualState
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap

MakeDual = Callable[[float], DualState]
"""A new dual of the head, at a given lambda."""

MakeLoss = Callable[[DualState], BlockGap]
"""The block gap of a dual; chooses the direction and the oracle."""

MakeOptimizer = Callable[[DualState], BCFW]
"""The optimizer of a dual; chooses the bounds on the weights and the line search."""


def plain_optimizer(dual: DualState) -> BCFW:
    """BCFW without bounds."""
    return BCFW(dual.parameters, dual)


@dataclass(frozen=True)
class Recipe:
    """What is trained at every lambda of a grid or a path.

    Attributes:
        make_dual: The dual at a lambda; None is ``lambda lam: DualState.for_head(head, len(dataset), lam)``.
        make_loss: The block gap of a dual, where direction and oracle are chosen.
        make_optimizer: The optimizer of a dual, where bounds on the weights are chosen, each 0 or infinite on a path:
            ``lambda dual: BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)``.

    Raises:
        TypeError: An attribute is not callable.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> recipe = Recipe(make_dual=lambda lam: DualState.for_head(head, 30, lam, storage=Labelings()))
        >>> len(grid_search(head, data, [1.0, 0.1], tolerance=Relative(0.1), recipe=recipe))
        2
    """

    make_dual: MakeDual | None = None
    make_loss: MakeLoss = BlockGap
    make_optimizer: MakeOptimizer = plain_optimizer

    def __post_init__(self) -> None:
        for name in ("make_dual", "make_loss", "make_optimizer"):
            made = getattr(self, name)
            if not callable(made) and not (name == "make_dual" and made is None):
                raise TypeError(f"{name}={made!r} must be a function")

    def loss(self, head: nn.Module, num_examples: int, lam: float) -> BlockGap:
        """The block gap of a new dual.

        Raises:
            ValueError: ``make_dual`` made a dual of another size, or ``make_loss`` used another dual.
        """
        dual = self.make_dual(lam) if self.make_dual is not None else DualState.for_head(head, num_examples, lam)
        if dual.num_examples != num_examples:
            raise ValueError(f"dataset has {num_examples} examples, but make_dual made a dual for {dual.num_examples}")
        loss = self.make_loss(dual)
        if loss.dual is not dual:
            raise ValueError("make_loss(dual) returned the block gap of another dual")
        return loss
