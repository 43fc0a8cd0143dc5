"""The Frank-Wolfe direction."""

from __future__ import annotations

from torchssvm.directions.base import Direction
from torchssvm.structures import Corner


class FrankWolfe:
    """Towards the corner: ``Delta_i = p(s_i) - mu_i``, ``Delta l_i = L_i(s_i)/n - l_i`` ([B13] Algorithm 4)."""

    def __call__(self, corner: Corner, num_examples: int) -> Direction:
        """The directions, given what the max oracle found."""
        return Direction(corner.parts, corner.score / num_examples, corner.loss / num_examples)

    def __repr__(self) -> str:
        return "FrankWolfe()"
