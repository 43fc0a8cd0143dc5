"""The Frank-Wolfe direction."""

from __future__ import annotations

from torch import Tensor

from torchssvm.steps.direction import Blocks


class FrankWolfe:
    """Towards the corner: ``alpha <- (1 - gamma) alpha + gamma e_s`` ([B13] Algorithm 4)."""

    needs_labelings = False
    needs_curvature = False

    def __call__(self, blocks: Blocks) -> Tensor:
        """All mass to the corner."""
        return blocks.towards(blocks.corner) - blocks.mass

    def __repr__(self) -> str:
        return "FrankWolfe()"
