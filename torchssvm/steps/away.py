"""The away direction."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.steps.direction import Blocks
from torchssvm.steps.frank_wolfe import FrankWolfe


class Away:
    """Away from the worst active labeling, or towards the corner, whichever promises more ([G16] Algorithm 4).

    Away: ``alpha <- alpha + gamma c (alpha - e_a)`` with ``c = alpha_a / (1 - alpha_a)``; a step of 1 drops the away
    corner. A block whose whole mass lies there has no away direction and takes the Frank-Wolfe one.
    """

    needs_labelings = True
    needs_curvature = False

    def __call__(self, blocks: Blocks) -> Tensor:
        """The direction with the larger slope, compared before they are scaled to a largest step of 1."""
        mean = (blocks.mass * blocks.hinges).sum(1)
        away = blocks.away_corner()
        forward = blocks.hinges.gather(1, blocks.corner.unsqueeze(1)).squeeze(1) - mean
        backward = mean - blocks.hinges.gather(1, away.unsqueeze(1)).squeeze(1)
        change, possible = away_change(blocks, away)
        takes_away = (possible & (backward > forward)).unsqueeze(1)
        return torch.where(takes_away, change, FrankWolfe()(blocks))

    def __repr__(self) -> str:
        return "Away()"


def away_change(blocks: Blocks, away: Tensor) -> tuple[Tensor, Tensor]:
    """The pure away direction ``[B, M]``, and where there is one ``[B]``."""
    held = blocks.mass.gather(1, away.unsqueeze(1))
    others = blocks.mass.scatter(1, away.unsqueeze(1), 0.0)
    total = others.sum(1, keepdim=True)  # rather than 1 - alpha_a: rounding must not grow where little is left
    possible = total > 0.0
    factor = torch.where(possible, held / total.clamp(min=1e-300), 0.0)
    change = (factor * others).scatter(1, away.unsqueeze(1), torch.where(possible, -held, 0.0))
    return change, possible.squeeze(1)
