"""The best of the Frank-Wolfe, pairwise and away directions for each block."""

from __future__ import annotations

from torch import Tensor

from torchssvm.steps.direction import Atoms
from torchssvm.steps.numba import HYBRID


class Hybrid:
    """Frank-Wolfe, pairwise or away: for every block the direction whose exact step raises the dual most.

    With slope v and curvature q along a direction, the exact step gamma in [0, 1] gains ``v gamma - q gamma^2 / 2``.
    v and q follow from the block's inner products, so the gains are known before the step.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> dual = DualState.for_head(head, num_examples=30, lam=0.1, storage=Labelings())
        >>> CompiledBCFW(head, dual, in_order(data), direction=Hybrid()).solve(tolerance=0.01).gap <= 0.01
        True
    """

    needs_labelings = True
    needs_curvature = True
    rule = HYBRID

    def __call__(self, atoms: Atoms) -> Tensor:
        """The direction with the largest gain."""
        return atoms.choose(HYBRID)

    def __repr__(self) -> str:
        return "Hybrid()"
