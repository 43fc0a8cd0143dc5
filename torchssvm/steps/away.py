"""The away direction."""

from __future__ import annotations

from torch import Tensor

from torchssvm.steps.direction import Atoms
from torchssvm.steps.numba import AWAY


class Away:
    """Away from the worst active labeling or towards the corner, whichever has the larger slope ([G16] Algorithm 4).

    Away: ``alpha <- alpha + gamma c (alpha - e_a)`` with ``c = alpha_a / (1 - alpha_a)``; a step of 1 drops the away
    corner. A block with all its mass on the away corner takes the Frank-Wolfe direction. The slopes are compared before
    the directions are scaled to a largest step of 1.

    Example:
        >>> solver = Solver(direction=Away(), storage=Labelings())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    needs_labelings = True
    needs_curvature = False
    rule = AWAY

    def __call__(self, atoms: Atoms) -> Tensor:
        """The direction with the larger slope."""
        return atoms.choose(AWAY)

    def __repr__(self) -> str:
        return "Away()"
