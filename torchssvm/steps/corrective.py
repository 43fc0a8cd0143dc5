"""The corrective direction: optimise over a block's active set."""

from __future__ import annotations

from torch import Tensor

from torchssvm.core.arguments import as_number, check_whole
from torchssvm.steps.direction import Atoms
from torchssvm.steps.numba import CORRECTIVE


class Corrective:
    """Towards the best distribution over the block's cached labelings and the corner (fully corrective).

    The dual restricted to one block is a small concave quadratic on a simplex. It is maximised by exact pairwise steps,
    each from the active labeling with the smallest hinge to the labeling with the largest, until the difference of
    these hinges is below ``tolerance`` times its first value, or after ``steps`` steps. A step costs O(M) for M
    labelings: no decoding and no weights. For a block alone, the exact step along the result is 1 once solved.

    Args:
        steps: Largest number of pairwise steps for each block.
        tolerance: Fraction of the first difference of hinges at which a block counts as solved.

    Raises:
        ValueError: ``steps`` is less than 1, or ``tolerance`` is not in [0, 1).

    Example:
        >>> solver = Solver(direction=Corrective(steps=10))
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
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
        """The new masses minus the old ones."""
        return atoms.choose(CORRECTIVE, self.steps, self.tolerance)

    def __repr__(self) -> str:
        return f"Corrective(steps={self.steps}, tolerance={self.tolerance:g})"
