"""The Frank-Wolfe direction."""

from __future__ import annotations

from torch import Tensor

from torchssvm.steps.direction import Atoms
from torchssvm.steps.numba import FRANK_WOLFE


class FrankWolfe:
    """Towards the corner: ``alpha <- (1 - gamma) alpha + gamma e_s`` ([B13] Algorithm 4).

    Example:
        >>> solver = Solver(direction=FrankWolfe())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    needs_labelings = False
    needs_curvature = False
    rule = FRANK_WOLFE

    def __call__(self, atoms: Atoms) -> Tensor:
        """Move all mass to the corner."""
        return atoms.towards(atoms.corner) - atoms.mass

    def __repr__(self) -> str:
        return "FrankWolfe()"
