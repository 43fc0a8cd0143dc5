"""The best of the three classical directions, block by block."""

from __future__ import annotations

from torch import Tensor

from torchssvm.steps.direction import Atoms
from torchssvm.steps.numba import HYBRID


class Hybrid:
    """Frank-Wolfe, pairwise or away: for every block the one whose exact step raises the dual most.

    With slope v and curvature q along a direction, the exact step in [0, 1] gains ``v gamma - q gamma^2 / 2``; both
    follow from the block's own inner products, so that the best of the three is known before the step.
    """

    needs_labelings = True
    needs_curvature = True
    rule = HYBRID

    def __call__(self, atoms: Atoms) -> Tensor:
        """The direction with the largest gain."""
        return atoms.choose(HYBRID)

    def __repr__(self) -> str:
        return "Hybrid()"
