"""The n-slack formulation: every example has constraints and a block of the restricted dual."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import as_number, check_limit, check_whole
from torchssvm.core.decoding import OracleResult
from torchssvm.core.gradients import per_example_adjoint
from torchssvm.core.potentials import Potentials
from torchssvm.dual.storage import check_memory

from .block_qp import PlaneBlocks
from .slack import Restricted, Slack, check_keep, flat_rows


class NSlack(Slack):
    """One slack for each example (Tsochantaridis et al. 2005), with one oracle call for each before every solution.

    A pass adds, for every example, the most violated constraint, if any: ``xi_i >= L_i(y) - <plane, w>`` with
    ``plane = Phi_i^T (p(y_i) - p(y))``. The restricted dual is a QP over a product of n simplices: too large for a
    dense solver, too dense for a sparse one. It is solved by warm-started block-coordinate ascent: each block's QP over
    its simplex by exact steps between pairs, until the restricted duality gap is at most ``accuracy`` times the gap of
    the whole problem. Every iterate is a valid lower bound, and the bound never falls.

    A plane takes d numbers of the weights' dtype of host memory: several times n d numbers in all.

    Args:
        keep: Iterations that a constraint is kept after it was last active.
        accuracy: Gap of the restricted problem as a share of the gap of the whole problem, in (0, 1).
        max_sweeps: Most sweeps over the blocks for one solution.
        memory_limit: Bytes that the planes may take; None is the host's available memory when a batch comes.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> slack = NSlack(keep=5)
        >>> trainer = CuttingPlane(LinearMulticlass(4, 3), in_order(data), num_examples=30, lam=0.1, slack=slack)
        >>> trainer.solve(tolerance=0.01).gap <= 0.01
        True
    """

    def __init__(
        self, keep: int = 10, *, accuracy: float = 0.1, max_sweeps: int = 1000, memory_limit: int | None = None
    ) -> None:
        self.keep = check_keep(keep)
        self.accuracy = as_number(accuracy, "accuracy")
        if not 0.0 < self.accuracy < 1.0:
            raise ValueError(f"accuracy={accuracy} must lie between 0 and 1, both excluded")
        self.max_sweeps = check_whole(max_sweeps, "max_sweeps")
        self.memory_limit = check_limit(memory_limit)

    def bind(self, num_examples: int, lam: float, parameters: Sequence[nn.Parameter]) -> None:
        """Set the problem of the slack."""
        super().bind(num_examples, lam, parameters)
        self.planes = torch.zeros(0, self.size, dtype=self.parameters[0].dtype)
        self.costs = torch.zeros(0, dtype=torch.float64)
        self.owner = torch.zeros(0, dtype=torch.int64)  # the example of each plane, ascending
        self.alpha = torch.zeros(0, dtype=torch.float64)
        self.idle = torch.zeros(0, dtype=torch.int64)  # iterations since the plane was last active
        self.hinges = torch.zeros(num_examples, dtype=torch.float64)  # xi_i of the restricted problem
        self.discard()

    @property
    def num_constraints(self) -> int:
        """Size of the working set."""
        return len(self.costs)

    def collect(self, index: Tensor, potentials: Potentials, corner: OracleResult) -> None:
        """Keep the planes of the examples whose corner violates their constraints by more than rounding."""
        index = index.cpu()
        hinge, score = corner.hinge.cpu(), corner.score.cpu()
        rounding = 100 * torch.finfo(self.planes.dtype).eps * (corner.loss.cpu().abs() + score.abs() + hinge.abs())
        rows = (hinge > self.hinges[index] + rounding).nonzero().flatten()
        if not len(rows):
            return
        count = self.num_constraints + sum(map(len, self._owners)) + len(rows)
        needed = 2 * count * self.size * self.planes.element_size()  # the planes, and a copy while they are sorted
        advice = "slack=OneSlack() keeps one plane for each pass"
        check_memory(needed, self.planes.device, self.memory_limit, "slack=NSlack()", advice)
        gradients = per_example_adjoint(potentials, corner.parts, self.parameters)
        self._planes.append(-flat_rows([g.detach()[rows.to(g.device)] for g in gradients]).cpu())
        self._costs.append(corner.loss.cpu()[rows])
        self._owners.append(index[rows])

    def discard(self) -> None:
        """Forget the planes of the pass."""
        self._planes: list[Tensor] = []
        self._costs: list[Tensor] = []
        self._owners: list[Tensor] = []

    def solve(self, gap: float) -> Restricted:
        """Add the planes and ascend the restricted dual, block by block."""
        n = self.num_examples
        owner, order = torch.cat([self.owner, *self._owners]).sort(stable=True)
        new = len(order) - self.num_constraints
        planes = torch.cat([self.planes, *self._planes])[order]
        costs = torch.cat([self.costs, *self._costs])[order]
        alpha = torch.cat([self.alpha, torch.zeros(new, dtype=torch.float64)])[order]
        idle = torch.cat([self.idle, torch.zeros(new, dtype=torch.int64)])[order]
        blocks = PlaneBlocks(planes.numpy(), costs.numpy(), owner.numpy(), self.lam, n)
        # Gaps below the rounding of the planes' products mean nothing.
        rounding = 10 * torch.finfo(planes.dtype).eps * float(costs.max()) if len(costs) else 0.0
        weights = blocks.ascend(alpha.numpy(), max(self.accuracy * gap, rounding) * n, self.max_sweeps)
        dual = float(costs @ alpha) / n - self.lam / 2 * float(weights @ weights)
        self.hinges = torch.from_numpy(blocks.hinges(weights))
        idle = torch.where(alpha > 0.0, 0, idle + 1)
        if bool((idle >= self.keep).any()):
            rows = (idle < self.keep).nonzero().flatten()
            planes, costs, owner, alpha, idle = planes[rows], costs[rows], owner[rows], alpha[rows], idle[rows]
        self.planes, self.costs, self.owner, self.alpha, self.idle = planes, costs, owner, alpha, idle
        self.discard()
        return Restricted(torch.from_numpy(weights), dual)
