"""The 1-slack formulation: every pass adds one constraint, the mean of all examples' corners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_limit, needs
from torchssvm.core.decoding import OracleResult
from torchssvm.core.gradients import adjoint
from torchssvm.core.potentials import Potentials
from torchssvm.core.row_sparse import flat
from torchssvm.dual.storage import check_memory

from .slack import Restricted, Slack, check_keep

_INACTIVE = 1e-8  # share of the largest mass: an interior-point solver leaves some mass on every constraint


class OneSlack(Slack):
    """One slack for all examples (Joachims, Finley, Yu 2009, Algorithm 3).

    A pass gives one plane under the mean hinge: ``xi >= cost_c - <plane_c, w>`` with ``cost = (1/n) sum_i L_i(s_i)``
    and ``plane = (1/n) sum_i Phi_i^T (p(y_i) - p(s_i))``. The restricted dual, ``max_alpha <cost, alpha> - |sum alpha_c
    plane_c|^2 / (2 lam)`` with ``alpha >= 0`` and ``sum alpha <= 1`` (the rest stands for the targets), has one
    variable for each plane and goes to a QP solver of the package qpsolvers. A plane takes d float64 numbers of host
    memory.

    Args:
        keep: Iterations that a plane is kept after it was last active.
        solver: An installed solver of qpsolvers; the problem is dense and may be singular.
        memory_limit: Bytes that the planes may take; None is the host's available memory when a plane is added.

    Raises:
        ValueError: ``keep`` is less than 1, or ``solver`` is not installed.
        ImportError: The extra ``torchssvm[bench]`` is not installed.

    Example:
        >>> trainer = CuttingPlane(LinearMulticlass(4, 3), in_order(data), num_examples=30, lam=0.1, slack=OneSlack())
        >>> trainer.solve(tolerance=0.01).gap <= 0.01
        True
    """

    def __init__(self, keep: int = 50, *, solver: str = "clarabel", memory_limit: int | None = None) -> None:
        self.keep = check_keep(keep)
        available = _qpsolvers().available_solvers
        if not isinstance(solver, str) or solver not in available:
            advice = " (clarabel comes with the extra torchssvm[bench])" if solver == "clarabel" else ""
            raise ValueError(f"solver={solver!r} is not installed{advice}; qpsolvers finds {available}")
        self.solver = solver
        self.memory_limit = check_limit(memory_limit)

    def bind(self, num_examples: int, lam: float, parameters: Sequence[nn.Parameter]) -> None:
        """Set the problem of the slack."""
        super().bind(num_examples, lam, parameters)
        self.planes = torch.zeros(0, self.size, dtype=torch.float64)
        self.costs = torch.zeros(0, dtype=torch.float64)
        self.alpha = torch.zeros(0, dtype=torch.float64)
        self.idle = torch.zeros(0, dtype=torch.int64)  # iterations since the plane was last active
        self.gram = torch.zeros(0, 0, dtype=torch.float64)
        self.discard()

    @property
    def num_constraints(self) -> int:
        """Size of the working set."""
        return len(self.costs)

    def collect(self, index: Tensor, potentials: Potentials, corner: OracleResult) -> None:
        """Add the batch's corners to the plane of the pass: one backward pass of the head."""
        self._plane -= flat(adjoint(potentials, corner.parts, self.parameters)).cpu() / self.num_examples
        self._cost += float(corner.loss.sum()) / self.num_examples

    def discard(self) -> None:
        """Forget the plane of the pass."""
        self._plane = torch.zeros(self.size, dtype=torch.float64)
        self._cost = 0.0

    def solve(self, gap: float) -> Restricted:
        """Add the plane, and solve to the solver's accuracy; never worse than without the plane.

        Raises:
            RuntimeError: The solver returned no solution; the working set is unchanged.
            MemoryError: The planes would not fit.
        """
        needed = 8 * self.size * (2 * self.num_constraints + 1)  # the planes, and a copy with the new one
        advice = f"keep={self.keep} could be smaller"
        check_memory(needed, self.planes.device, self.memory_limit, "slack=OneSlack()", advice)
        products = self.planes @ self._plane
        corner = torch.cat([products, (self._plane @ self._plane).view(1)])
        gram = torch.cat([torch.cat([self.gram, products.view(1, -1)]), corner.view(-1, 1)], 1)
        costs = torch.cat([self.costs, torch.tensor([self._cost], dtype=torch.float64)])
        padded = torch.cat([self.alpha, torch.zeros(1, dtype=torch.float64)])
        results = self._solve_qp(gram, costs)
        alpha = results if _value(results, gram, costs, self.lam) > _value(padded, gram, costs, self.lam) else padded
        idle = torch.where(alpha > 0.0, 0, torch.cat([self.idle, torch.zeros(1, dtype=torch.int64)]) + 1)
        rows = (idle < self.keep).nonzero().flatten()
        planes = torch.cat([self.planes, self._plane.view(1, -1)])
        self.planes = planes if len(rows) == len(planes) else planes[rows]
        self.costs, self.alpha, self.idle = costs[rows], alpha[rows], idle[rows]
        self.gram = gram[rows][:, rows]
        self.discard()
        weights = self.alpha @ self.planes / self.lam
        return Restricted(weights, float(self.costs @ self.alpha) - self.lam / 2 * float(weights @ weights))

    def _solve_qp(self, gram: Tensor, costs: Tensor) -> Tensor:
        """The alpha of the restricted dual, feasible: ``[C]``."""
        size = len(costs)
        matrix, linear = gram.numpy() / self.lam, costs.numpy()
        # Solvers stop at absolute accuracies. So alpha and the objective are scaled to about 1, whatever lam and the
        # features are, by the best single plane: unit * e_c, of value `value`.
        units = np.minimum(1.0, linear / np.maximum(matrix.diagonal(), 1e-300))
        values = units * linear - units**2 * matrix.diagonal() / 2
        unit, value = float(units[values.argmax()]), float(values.max())
        if value <= 0.0:  # no output costs anything
            return torch.zeros(size, dtype=torch.float64)
        constraints = np.concatenate([np.ones((1, size)), -np.eye(size)])
        package = _qpsolvers()
        if self.solver not in package.dense_solvers:
            from scipy.sparse import csc_matrix as convert  # SciPy comes with qpsolvers
        else:
            convert = np.asarray
        results = package.solve_qp(
            P=convert(matrix * (unit**2 / value)),
            q=-linear * (unit / value),
            G=convert(constraints),
            h=np.concatenate([[1.0 / unit], np.zeros(size)]),
            solver=self.solver,
        )
        if results is None or not np.isfinite(results).all():
            raise RuntimeError(f"solver={self.solver!r} gave no solution of a QP with {size} planes: try another one")
        alpha = torch.from_numpy(np.array(results, dtype=np.float64)) * unit
        alpha = torch.where(alpha > _INACTIVE * float(alpha.max()), alpha, 0.0)
        return alpha / max(1.0, float(alpha.sum()))


def _value(alpha: Tensor, gram: Tensor, costs: Tensor, lam: float) -> float:
    return float(costs @ alpha - alpha @ gram @ alpha / (2 * lam))


def _qpsolvers() -> Any:
    with needs("OneSlack needs a QP solver: pip install 'torchssvm[bench]'", "qpsolvers"):
        import qpsolvers
    return qpsolvers
