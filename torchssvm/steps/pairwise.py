"""The pairwise direction."""

from __future__ import annotations

from torch import Tensor

from torchssvm.steps.direction import Atoms
from torchssvm.steps.numba import PAIRWISE


class Pairwise:
    """From the away corner to the corner: ``alpha_a -= gamma alpha_a``, ``alpha_s += gamma alpha_a`` ([G16] Alg. 3).

    The away corner is the atom with mass whose hinge is smallest; a step of 1 drops it.

    Example:
        >>> solver = Solver(direction=Pairwise(), storage=Labelings())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    needs_labelings = True
    needs_curvature = False
    rule = PAIRWISE

    def __call__(self, atoms: Atoms) -> Tensor:
        """Move the mass of the away corner to the corner."""
        return atoms.choose(PAIRWISE)

    def __repr__(self) -> str:
        return "Pairwise()"
