"""The interface of direction rules: the atoms of a batch's blocks, and the change of their masses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.on_host import read_together, upload
from torchssvm.steps.numba import CORRECTIVE, HYBRID, choose_each


class Atoms:
    """The blocks of a batch as distributions over a few atoms, scored at the current weights.

    Column 0 is the *rest*: the part of the block that is not kept as labelings, one point of the marginal polytope.
    Storages without labelings keep the whole block there. The next columns are the cached labelings, and the last one
    is the corner of the max oracle, unless that is cached.

    Attributes:
        mass: ``[B, M]`` float64, the dual distribution alpha_i over the atoms; rows sum to 1.
        scores: ``[B, M]`` float64, ``<p(y) - p(y_i), theta_i>`` of every atom.
        losses: ``[B, M]`` float64, L_i of every atom.
        valid: ``[B, M]`` bool, which columns are atoms of this block.
        hinges: ``[B, M]`` float64, ``scores + losses``; the dual grows fastest towards the largest.
        corner: ``[B]`` int64, the column of the corner.
        num_examples: n.
    """

    __slots__ = ("_curvature", "corner", "hinges", "losses", "mass", "num_examples", "scores", "valid")

    def __init__(
        self,
        mass: Tensor,
        scores: Tensor,
        losses: Tensor,
        valid: Tensor,
        corner: Tensor,
        num_examples: int,
        curvature: Callable[[], Tensor] | None = None,
    ) -> None:
        self.mass, self.scores, self.losses, self.valid = mass, scores, losses, valid
        self.hinges = scores + losses
        self.corner = corner
        self.num_examples = num_examples
        self._curvature = curvature

    def gaps(self) -> Tensor:
        """Block gaps g_i towards the corner, ``[B]`` float64 ([G16] eq. 6)."""
        best = self.hinges.gather(1, self.corner.unsqueeze(1)).squeeze(1)
        return (best - (self.mass * self.hinges).sum(1)) / self.num_examples

    def curvature(self) -> Tensor:
        """``[B, M, M]`` float64: ``<Phi_i^T p(y), Phi_i^T p(y')> / (lam n^2)``, p relative to the parts of the target.

        With r = hinges/n, changing the masses by c changes the dual by ``<c, r> - c^T G c / 2``.
        """
        assert self._curvature is not None, "the storage gives no inner products of labelings"
        return self._curvature()

    def towards(self, columns: Tensor) -> Tensor:
        """Indicators of one column for each block, ``[B, M]`` float64."""
        return torch.zeros_like(self.mass).scatter_(1, columns.unsqueeze(1), 1.0)

    def choose(self, rule: int, steps: int = 0, tolerance: float = 0.0) -> Tensor:
        """The change of the masses by a rule of ``torchssvm.steps.numba``, on the CPU: ``[B, M]`` float64.

        Args:
            rule: ``PAIRWISE``, ``AWAY``, ``HYBRID`` or ``CORRECTIVE``.
            steps: The argument of ``Corrective``.
            tolerance: The argument of ``Corrective``.
        """
        size, atoms = self.mass.shape
        curved = rule in (HYBRID, CORRECTIVE)
        gram = self.curvature() if curved else self.mass.new_zeros(size, 0, 0)
        rates = torch.where(self.valid, self.hinges / self.num_examples, -torch.inf)
        read = read_together(*(t.detach() for t in (self.corner, self.mass, rates, gram)))
        arrays = [t.contiguous().numpy() for t in read]
        change = np.zeros((size, atoms))
        choose_each(rule, *arrays, steps, tolerance, change, np.zeros(atoms))
        return upload(torch.from_numpy(change), self.mass.device)


class DirectionRule(Protocol):
    """Chooses the direction of every block of a batch."""

    needs_labelings: bool
    """Whether the rule moves mass between single labelings; it then needs ``storage=Labelings()``."""

    needs_curvature: bool
    """Whether the rule reads ``atoms.curvature()``."""

    def __call__(self, atoms: Atoms) -> Tensor:
        """The change of ``atoms.mass`` for a step of 1, ``[B, M]`` float64.

        Rows sum to zero, ``mass + change`` is non-negative, and only valid columns change.
        """
        ...
