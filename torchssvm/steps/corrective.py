"""Re-optimisation over a block's active set."""

from __future__ import annotations

from torch import Tensor

from torchssvm.core.arguments import as_number, check_whole
from torchssvm.steps.direction import Atoms
from torchssvm.steps.numba import CORRECTIVE


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
    rule = CORRECTIVE

    def __init__(self, steps: int = 30, tolerance: float = 0.01) -> None:
        self.steps = check_whole(steps, "steps")
        self.tolerance = as_number(tolerance, "tolerance")
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"tolerance={tolerance} must be at least 0 and less than 1")

    def __call__(self, atoms: Atoms) -> Tensor:
        """The new distributions less the old ones."""
        return atoms.choose(CORRECTIVE, self.steps, self.tolerance)

    def __repr__(self) -> str:
        return f"Corrective(steps={self.steps}, tolerance={self.tolerance:g})"
