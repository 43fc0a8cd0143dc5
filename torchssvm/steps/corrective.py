"""Re-optimisation over a block's active set."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import as_number, check_whole
from torchssvm.core.jit import njit
from torchssvm.steps.direction import Blocks


class Corrective:
    """To the best distribution over the block's cached labelings, the corner among them (fully corrective).

    The dual restricted to one block is a small quadratic on a simplex. It is climbed by exact pairwise steps, each from
    the active labeling with the smallest hinge to the labeling with the largest, until these differ by less than
    ``tolerance`` of what they differed by at the start, or ``steps`` have been made. Every step costs O(M): no decoding
    and no weights. The line search over the batch then starts from a direction whose exact step is 1 for a block alone.

    Args:
        steps: Most pairwise steps for each block.
        tolerance: Fraction of the first difference at which a block counts as solved.

    Raises:
        ValueError: ``steps`` is less than 1, or ``tolerance`` is not in [0, 1).
    """

    needs_labelings = True
    needs_curvature = True

    def __init__(self, steps: int = 30, tolerance: float = 0.01) -> None:
        self.steps = check_whole(steps, "steps")
        self.tolerance = as_number(tolerance, "tolerance")
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"tolerance={tolerance} must be at least 0 and less than 1")

    def __call__(self, blocks: Blocks) -> Tensor:
        """The new distributions less the old ones."""
        rates = torch.where(blocks.valid, blocks.hinges / blocks.num_examples, -math.inf)
        arrays = [t.detach().cpu().contiguous().numpy() for t in (blocks.curvature(), rates, blocks.mass)]
        mass = arrays[2].copy()
        climb(arrays[0], arrays[1].copy(), mass, self.steps, self.tolerance)
        return torch.from_numpy(mass).to(blocks.mass.device) - blocks.mass

    def __repr__(self) -> str:
        return f"Corrective(steps={self.steps}, tolerance={self.tolerance:g})"


@njit
def climb(curvature: Any, rates: Any, mass: Any, steps: int, tolerance: float) -> None:
    """Exact pairwise steps in every block, which change ``mass``.

    ``rates`` stay the derivatives of the dual, -inf where there is no atom.
    """
    blocks, atoms = mass.shape
    for b in range(blocks):
        first = -1.0
        for _ in range(steps):
            best, worst = 0, -1
            for c in range(atoms):
                if rates[b, c] > rates[b, best]:
                    best = c
                if mass[b, c] > 0.0 and (worst < 0 or rates[b, c] < rates[b, worst]):
                    worst = c
            slope = rates[b, best] - rates[b, worst]
            if first < 0.0:
                first = slope
            if slope <= tolerance * first:
                break
            bend = curvature[b, best, best] + curvature[b, worst, worst] - 2.0 * curvature[b, best, worst]
            move = mass[b, worst]
            if bend > 0.0 and slope < bend * move:
                move = slope / bend
                mass[b, worst] -= move
            else:
                mass[b, worst] = 0.0
            mass[b, best] += move
            for c in range(atoms):
                rates[b, c] += move * (curvature[b, worst, c] - curvature[b, best, c])
