"""The pairwise direction."""

from __future__ import annotations

from torch import Tensor

from torchssvm.steps.direction import Blocks


class Pairwise:
    """From the away corner to the corner: ``alpha_a -= gamma alpha_a``, ``alpha_s += gamma alpha_a`` ([G16] Alg. 3).

    A step of 1 drops the away corner.
    """

    needs_labelings = True
    needs_curvature = False

    def __call__(self, blocks: Blocks) -> Tensor:
        """The mass of the worst active labeling to the corner."""
        away = blocks.away_corner()
        held = blocks.mass.gather(1, away.unsqueeze(1))
        return held * (blocks.towards(blocks.corner) - blocks.towards(away))

    def __repr__(self) -> str:
        return "Pairwise()"
