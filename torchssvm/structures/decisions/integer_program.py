"""Linear programs with integer variables as oracles of decisions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from torchssvm.core.arguments import check_flags, check_number, check_readable, needs, row_name
from torchssvm.core.structure import digest
from torchssvm.structures.decisions.oracle import Array, DecisionOracle, Solved

_MOST_LISTED = 4096
_PROVEN = 1e-9  # a gap relative to the costs at stake that is rounding
_SIZE = 10  # the largest cost is between 2^9 and 2^10, far above the absolute tolerances of solvers


Limits = tuple[Array, Array]
"""The lowest and the highest value of every row, ``[M]`` float64 each."""


class Answer(NamedTuple):
    """The solver's answer."""

    status: str  # "optimal" (within ``rel_gap``), "limit" (time), or the solver's message for anything else
    y: Array | None = None  # ``[D]``, the best decision, or None
    bound: float = -np.inf  # no decision costs less; -inf if unknown


class IntegerProgram(DecisionOracle):
    """Minimise (or maximise) ``c'y`` subject to ``A_ub y <= b_ub``, ``A_eq y = b_eq`` and bounds, in part integer.

    Right-hand sides may differ from example to example: ``Situations(x, given=sides)`` with ``sides``
    ``[B, M]``, first for ``A_ub`` and then for ``A_eq``. Known costs are ``Situations(x, fixed=costs)``.

    The solver is ``scipy.optimize.milp``, which is HiGHS (``torchssvm[scipy]``); other solvers
    subclass :class:`DecisionOracle`. It is exact up to its tolerances: 1e-6 for rows and integrality, about 1e-9 of
    the largest cost. Costs are scaled for it, by a power of 2. A decision's integers are rounded, and its value is
    computed from them.

    Args:
        A_ub: ``[M, D]``, an array or a sparse matrix of SciPy; None for no such row.
        b_ub: ``[M]``.
        A_eq: ``[K, D]``; None for no such row.
        b_eq: ``[K]``.
        bounds: The lowest and the highest value of the variables, numbers or ``[D]`` each; infinite for none.
        integrality: 1 where a variable is an integer and 0 where it is continuous, a number or ``[D]``.
        maximize: Whether the costs are values, to be maximised.
        rel_gap: The solver may stop at this gap, relative to the value; the bound is returned with the decision.
        time_limit: Seconds for each solution. At the end the best decision so far counts (in training, the target if it
            is better), with the bound; without any, it is an error. None is no limit.

    Raises:
        ValueError: ``solve`` raises it for an example whose program has no feasible decision, or is unbounded.

    Example:
        >>> knapsack = IntegerProgram([[3, 2, 2], [1, 4, 1]], [5, 5], maximize=True)
        >>> Decisions(knapsack).decode(torch.tensor([[5.0, 4.0, 3.0]]))
        tensor([[1, 1, 0]])
    """

    def __init__(
        self,
        A_ub: Any = None,
        b_ub: Any = None,
        A_eq: Any = None,
        b_eq: Any = None,
        *,
        bounds: tuple[Any, Any] = (0.0, 1.0),
        integrality: Any = 1,
        maximize: bool = False,
        rel_gap: float = 0.0,
        time_limit: float | None = None,
    ) -> None:
        check_flags(maximize=maximize)
        with needs("integer programs need SciPy: pip install 'torchssvm[scipy]'", "scipy"):
            from scipy.sparse import csr_matrix, vstack
        sides = [_rows(A_ub, b_ub, "ub", csr_matrix), _rows(A_eq, b_eq, "eq", csr_matrix)]
        rows = [matrix for matrix, _ in sides if matrix is not None]
        if not rows or len({matrix.shape[1] for matrix in rows}) > 1:
            shapes = [list(matrix.shape) for matrix in rows]
            raise ValueError(f"A_ub and A_eq must be [M, D] and [K, D], one or both; got {shapes}")
        self.num_costs = rows[0].shape[1]
        self.maximize = maximize
        (_, upper), (_, equal) = sides
        low, high, integer = (self._each(value, name) for value, name in (
            (bounds[0], "bounds[0]"), (bounds[1], "bounds[1]"), (integrality, "integrality")
        ))  # fmt: skip
        if not np.isin(integer, (0, 1)).all():
            raise ValueError(f"integrality={integrality!r} must be 1 (integer) or 0 (continuous)")
        self.rows = vstack(rows).tocsr()  # A, [M, D]
        self.limits: Limits = np.concatenate([np.full(len(upper), -np.inf), equal]), np.concatenate([upper, equal])
        self.low, self.high, self.integer = low, high, integer == 1
        self.rel_gap = check_number(rel_gap, "rel_gap", 0.0)
        self.time_limit = None if time_limit is None else check_number(time_limit, "time_limit", above=0.0)
        self._num_upper = len(upper)

    def constructor_arguments(self) -> dict[str, Any]:
        """Constructor arguments that are not attributes of the same name, to rebuild an equal oracle."""
        cut = self._num_upper
        rows, sides = (torch.from_numpy(array) for array in (self.rows.toarray(), self.limits[1]))
        ends, integer = (torch.from_numpy(array) for array in (np.stack([self.low, self.high]), self.integer))
        return {
            **{"A_ub": rows[:cut], "b_ub": sides[:cut], "A_eq": rows[cut:], "b_eq": sides[cut:]},
            **{"bounds": (ends[0], ends[1]), "integrality": integer.double()},
        }

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """The solver's decisions; their bounds where a gap or a time limit left some of them unproven."""
        expected = len(costs), self.rows.shape[0]
        if given is not None and (given.shape != expected or np.isnan(given).any()):
            raise ValueError(f"given={given.tolist()} must be right-hand sides of A_ub and A_eq, {[*expected]} numbers")
        y = np.empty(costs.shape)
        value, bound = np.empty(len(costs)), np.empty(len(costs))
        sign = -1.0 if self.maximize else 1.0
        for k, cost in enumerate(sign * costs):
            limits = self.limits if given is None else self._limits(given[k])
            unit = 2.0 ** (_SIZE - np.frexp(np.abs(cost).max())[1]) if cost.any() else 1.0
            answer = self._ask(unit * cost, limits)
            if answer.status not in ("optimal", "limit"):
                raise ValueError(f"the integer program of {row_name(k)} has no best decision: {answer.status}")
            best = None if start is None else start[k].astype(np.float64)
            if answer.y is not None:
                best = np.where(self.integer, np.rint(answer.y), answer.y)
            if best is None:
                raise ValueError(f"time_limit={self.time_limit} ended without a decision for {row_name(k)}: raise it")
            y[k], value[k] = best, cost @ best
            lowest = answer.bound / unit - _PROVEN * len(cost) * np.abs(cost).max()
            bound[k] = min(value[k], max(lowest, self._lowest(cost)))
            proven = answer.status == "optimal" and self.rel_gap == 0.0
            if proven or value[k] - bound[k] <= _PROVEN * (np.abs(cost) @ np.abs(best)):
                bound[k] = value[k]
        y = y.astype(np.int64) if self.integer.all() else y
        return y, sign * value, None if (bound == value).all() else sign * bound

    def decisions(self, given: Array | None = None) -> Array | None:
        """All decisions, if all variables are integers and their bounds allow for few."""
        lowest = np.ceil(self.low)
        sizes = np.floor(self.high) - lowest + 1.0
        if not self.integer.all() or not np.prod(sizes) <= _MOST_LISTED:
            return None
        every = np.indices(sizes.astype(int).tolist()).reshape(self.num_costs, -1).T + lowest.astype(int)
        low, high = self._limits(given)
        reached, slack = every @ self.rows.T, 1e-6
        return every[((reached >= low - slack) & (reached <= high + slack)).all(1)]

    def _ask(self, costs: Array, limits: Limits) -> Answer:
        """The answer of SciPy's solver to costs ``[D]``, which are minimised, within these limits of the rows."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        options: dict[str, Any] = {"mip_rel_gap": self.rel_gap}
        if self.time_limit is not None:
            options["time_limit"] = self.time_limit
        constraints = [LinearConstraint(self.rows, *limits)] if self.rows.shape[0] else []
        bounds = Bounds(self.low, self.high)
        result = milp(costs, integrality=self.integer, bounds=bounds, constraints=constraints, options=options)
        if result.status not in (0, 1):
            return Answer(result.message)
        bound = result.fun if result.status == 0 and not self.integer.any() else result.mip_dual_bound
        return Answer(("optimal", "limit")[result.status], result.x, -np.inf if bound is None else bound)

    def _limits(self, given: Array | None) -> Limits:
        """The limits of the rows with these right-hand sides ``[M]``."""
        if given is None:
            return self.limits
        sides = given.astype(np.float64)
        return np.where(np.arange(len(sides)) < self._num_upper, -np.inf, sides), sides

    def _lowest(self, costs: Array) -> float:
        used = costs != 0.0
        ends = (costs[used] * end[used] for end in (self.low, self.high))
        return float(np.minimum(*ends).sum())

    def _each(self, value: Any, name: str) -> Array:
        check_readable(value, name)
        array = np.asarray(value, dtype=np.float64)
        if array.shape not in ((), (self.num_costs,)) or np.isnan(array).any():
            raise ValueError(f"{name} must be a number, or {self.num_costs} of them, got {value!r}")
        return np.ascontiguousarray(np.broadcast_to(array, (self.num_costs,)))

    def __repr__(self) -> str:
        numbers = [self.rows.toarray().ravel(), *self.limits, self.low, self.high, self.integer]
        size = sum(map(len, numbers))
        known = digest(torch.from_numpy(np.concatenate(numbers))).replace(f"[{size}]", str([*self.rows.shape]))
        return (
            f"IntegerProgram({known}, maximize={self.maximize}, rel_gap={self.rel_gap}, time_limit={self.time_limit})"
        )


def _rows(matrix: Any, sides: Any, name: str, make: Any) -> tuple[Any, Array]:
    """Constraints as a sparse matrix of SciPy, and their right-hand sides; None and ``[0]`` where there are none."""
    if matrix is None and sides is None:
        return None, np.empty(0)
    check_readable(matrix, f"A_{name}")
    check_readable(sides, f"b_{name}")
    right = np.asarray(sides, dtype=np.float64)
    rows = make(matrix, dtype=np.float64) if np.ndim(matrix) == 2 else None
    if rows is None or right.shape != rows.shape[:1] or np.isnan(right).any() or not np.isfinite(rows.data).all():
        shapes = f"{[*np.shape(matrix)]} and {[*right.shape]}"
        raise ValueError(f"A_{name} must be [M, D] and b_{name} [M], finite numbers; got {shapes}")
    return rows, right
