"""Models of PyEPO as oracles."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.core.arguments import check_choice, check_flags, check_whole, row_name
from torchssvm.structures.decisions.oracle import Array, DecisionOracle, Solved, costs_of, refuse_given

_WHOLE = 1e-4  # largest error of solvers on whole numbers
_SLACK = 1e-3  # largest gap of solvers, relative to the costs


class OptModel(DecisionOracle):
    """The problem of a model of PyEPO, which decides by ``setObj(costs)`` and ``solve()``.

    Any object with ``setObj``, ``solve``, ``num_cost`` and ``modelSense`` (1 minimises, -1 maximises) will do; PyEPO is
    not imported. The model must solve to optimality, for costs of any sign: training solves with ``c_hat - c / 2``.
    Solvers stop at a gap by default, Gurobi at 1e-4: set it to 0.

    Args:
        model: Such as ``pyepo.model.ort.shortestPathModel((5, 5))``.
        whole: Whether decisions are whole numbers; what solvers err on them is rounded away.

    Raises:
        TypeError: ``model`` has no such method, or predicts a part of its costs only.
        ValueError: ``modelSense`` is neither 1 nor -1, or the model does the opposite: it is asked twice.

    Example:
        >>> import numpy as np
        >>> class Cheapest:  # as a subclass of pyepo.model.opt.optModel
        ...     modelSense, num_cost = 1, 3
        ...     def setObj(self, c):
        ...         self.c = c
        ...     def solve(self):
        ...         return np.eye(3)[self.c.argmin()], self.c.min()
        >>> Decisions(OptModel(Cheapest())).decode(torch.tensor([[2.0, 1.0, 3.0]]))
        tensor([[0, 1, 0]])
    """

    def __init__(self, model: Any, *, whole: bool = True) -> None:
        check_flags(whole=whole)
        needed = "setObj", "solve", "num_cost", "modelSense"
        if isinstance(model, type) or not all(hasattr(model, name) for name in needed):
            raise TypeError(f"model={model!r} must have {needed}, as models of PyEPO do")
        if getattr(model, "c_pred_index", None) is not None:
            raise TypeError(f"model={model!r} must predict all costs: give known ones as Situations(x, fixed=...)")
        check_choice(model.modelSense, "modelSense", 1, -1)
        self.model = model
        self.whole = whole
        self.num_costs = check_whole(model.num_cost, "num_cost")
        self.maximize = model.modelSense == -1
        self._check_sense()

    def _check_sense(self) -> None:
        """The decision for costs c is no worse under c than the decision for -c."""
        costs = np.random.default_rng(0).standard_normal(self.num_costs)
        values = self.solve(np.stack([costs, -costs]))[0] @ costs
        better = values[0] - values[1] if self.maximize else values[1] - values[0]
        if better < -_SLACK * np.abs(costs).sum():
            sense, does = self.model.modelSense, "minimises" if self.maximize else "maximises"
            raise ValueError(f"modelSense={sense} must be {-sense}: the model {does}")

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """One problem after another, by the model.

        Raises:
            ValueError: Something is given for every example; a solution has another size, or is not whole.
        """
        refuse_given(self, given)
        y = np.empty(costs.shape)
        for row, cost in enumerate(costs):
            self.model.setObj(cost)
            decision = np.asarray(self.model.solve()[0], np.float64)
            if decision.shape != cost.shape:
                raise ValueError(f"model.solve() must return {len(cost)} numbers, num_cost, got {list(decision.shape)}")
            y[row] = decision
        if self.whole:
            rounded = np.rint(y)
            broken = np.flatnonzero((np.abs(y - rounded) > _WHOLE).any(1))
            if len(broken):
                row = int(broken[0])
                raise ValueError(f"the decision of {row_name(row)} is not whole: give OptModel(model, whole=False)")
            y = rounded.astype(np.int64)
        return y, costs_of(y, costs), None

    def __repr__(self) -> str:
        return f"OptModel({self.model!r}, whole={self.whole})"
