"""The best of the three classical directions, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.steps.away import away_change
from torchssvm.steps.direction import Blocks
from torchssvm.steps.frank_wolfe import FrankWolfe
from torchssvm.steps.pairwise import Pairwise


class Hybrid:
    """Frank-Wolfe, pairwise or away: for every block the one whose exact step raises the dual most.

    With slope v and curvature q along a direction, the exact step in [0, 1] gains ``v gamma - q gamma^2 / 2``; both
    follow from the block's own inner products, so that the best of the three is known before the step.
    """

    needs_labelings = True
    needs_curvature = True

    def __call__(self, blocks: Blocks) -> Tensor:
        """The direction with the largest gain."""
        changes = torch.stack(
            [FrankWolfe()(blocks), Pairwise()(blocks), away_change(blocks, blocks.away_corner())[0]], 1
        )  # [B, 3, M]
        slopes = (changes * blocks.hinges.unsqueeze(1)).sum(2) / blocks.num_examples
        bends = ((changes @ blocks.curvature()) * changes).sum(2)
        steps = torch.where(bends > 0.0, slopes / bends.clamp(min=1e-300), torch.inf).clamp(0.0, 1.0)
        gains = steps * (slopes - steps * bends / 2)
        best = gains.argmax(1)
        return changes[torch.arange(len(best), device=best.device), best]

    def __repr__(self) -> str:
        return "Hybrid()"
