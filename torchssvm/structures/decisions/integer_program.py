"""Linear programs with integer variables as oracles of decisions."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch

from torchssvm.core.arguments import check_flags, check_number, check_object, check_whole
from torchssvm.core.extras import needs
from torchssvm.core.naming import row_name
from torchssvm.core.structure import digest
from torchssvm.structures.decisions.backends import Answer, Backend, Limits, Model, Program, SciPyMilp
from torchssvm.structures.decisions.oracle import Array, DecisionOracle, Solved

_MOST_LISTED = 4096
_PROVEN = 1e-9  # a gap relative to the costs at stake that is rounding
_SIZE = 10  # the largest cost is between 2^9 and 2^10, far above the absolute tolerances of solvers


class IntegerProgram(DecisionOracle):
    """Minimise (or maximise) ``c'y`` subject to ``A_ub y <= b_ub``, ``A_eq y = b_eq`` and bounds, in part integer.

    Right-hand sides may differ from example to example: ``Situations(x, given=sides)`` with ``sides``
    ``[B, M]``, those of ``A_ub`` and then those of ``A_eq``. Known costs are ``Situations(x, fixed=costs)``.

    Solvers are exact up to their tolerances: 1e-6 for rows and integrality, about 1e-9 of the largest cost. Costs are
    scaled for them, by a power of 2. A decision's integers are rounded, and its value is computed from them.

    Args:
        A_ub: ``[M, D]``, an array or a sparse matrix of SciPy; None for no such row.
        b_ub: ``[M]``.
        A_eq: ``[K, D]``; None for no such row.
        b_eq: ``[K]``.
        bounds: The lowest and the highest value of the variables, numbers or ``[D]`` each; infinite for none.
        integrality: 1 where a variable is an integer and 0 where it is continuous, a number or ``[D]``.
        maximize: Whether the costs are values, to be maximised.
        backend: ``SciPyMilp()``, ``HiGHS()``, ``SCIP()`` or ``CPSAT()``; None is ``SciPyMilp()``.
        rel_gap: Solvers may stop at this gap, relative to the value; the bound is returned with the decision.
        time_limit: Seconds for each solution. At the end the best decision found counts (in training, the target if it
            is better), with the bound; without any, it is an error. None is no limit.
        processes: With more than 1, batches are solved in as many processes, which hold a model each. A script that
            asks for it needs ``if __name__ == "__main__":``, as new processes import it.

    Raises:
        ValueError: Sizes do not fit, a number is NaN, or a lower bound is above an upper one. ``solve`` raises it for
            an example whose program has no decision, or decisions that are better without end.
        ImportError: SciPy, or the package of the backend, is missing; or the backend excludes one that is loaded.

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
        backend: Backend | None = None,
        rel_gap: float = 0.0,
        time_limit: float | None = None,
        processes: int = 1,
    ) -> None:
        check_flags(maximize=maximize)
        extras = "'torchssvm[scipy]', or with another solver 'torchssvm[highs]' or 'torchssvm[ortools]'"
        with needs(f"integer programs need SciPy: pip install {extras}", "scipy"):
            from scipy.sparse import csr_matrix, vstack
        sides = [_rows(A_ub, b_ub, "ub", csr_matrix), _rows(A_eq, b_eq, "eq", csr_matrix)]
        rows = [matrix for matrix, _ in sides if matrix is not None]
        if not rows or len({matrix.shape[1] for matrix in rows}) > 1:
            shapes = [list(matrix.shape) for matrix in rows]
            raise ValueError(f"A_ub and A_eq must be [M, D] and [K, D], one of them or both; got {shapes}")
        self.num_costs = rows[0].shape[1]
        self.maximize = maximize
        self.backend = SciPyMilp() if backend is None else backend
        check_object(self.backend, "backend", "load", "SciPyMilp()")
        self.processes = check_whole(processes, "processes")
        (_, upper), (_, equal) = sides
        low, high, integer = (self._each(value, name) for value, name in (
            (bounds[0], "bounds[0]"), (bounds[1], "bounds[1]"), (integrality, "integrality")
        ))  # fmt: skip
        if (low > high).any():
            variable = int((low > high).nonzero()[0][0])
            raise ValueError(f"bounds of variable {variable}: {low[variable]:g} is above {high[variable]:g}")
        if not np.isin(integer, (0, 1)).all():
            raise ValueError("integrality must be 1 (integer) or 0 (continuous) for every variable")
        self.program = Program(
            vstack(rows).tocsr(),
            (np.concatenate([np.full(len(upper), -np.inf), equal]), np.concatenate([upper, equal])),
            low,
            high,
            integer == 1,
            check_number(rel_gap, "rel_gap", 0.0),
            None if time_limit is None else check_number(time_limit, "time_limit", above=0.0),
        )
        self._num_upper = len(upper)
        self._model: Model | None = None
        self._pool: ProcessPoolExecutor | None = None

    def constructor_arguments(self) -> dict[str, Any]:
        """Constructor arguments that are not attributes of the same name, to rebuild an equal oracle."""
        program, cut = self.program, self._num_upper
        rows, sides = (torch.from_numpy(array) for array in (program.rows.toarray(), program.limits[1]))
        ends, integer = (torch.from_numpy(array) for array in (np.stack([program.low, program.high]), program.integer))
        return {
            **{"A_ub": rows[:cut], "b_ub": sides[:cut], "A_eq": rows[cut:], "b_eq": sides[cut:]},
            **{"bounds": (ends[0], ends[1]), "integrality": integer.double()},
            **{"rel_gap": program.rel_gap, "time_limit": program.time_limit},
        }

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """The backend's decisions; their bounds where a gap or a time limit left some of them unproven."""
        expected = len(costs), self.program.rows.shape[0]
        if given is not None and given.shape != expected:
            raise ValueError(
                f"given must be {[*expected]}, the right-hand sides of A_ub and A_eq, got {list(given.shape)}"
            )
        if given is not None and np.isnan(given).any():
            raise ValueError(
                f"given: the right-hand sides of {row_name(int(np.isnan(given).any(1).argmax()))} hold NaN"
            )
        if self.processes == 1 or len(costs) <= 1:
            found = [self._solve_rows(0, costs, given, start)]
        else:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
                self._pool = ProcessPoolExecutor(self.processes, context, _receive, (self,))
            pieces = np.array_split(np.arange(len(costs)), min(len(costs), 4 * self.processes))
            parts = [[None if array is None else array[piece] for array in (costs, given, start)] for piece in pieces]
            found = list(self._pool.map(_work, [int(piece[0]) for piece in pieces], *zip(*parts, strict=True)))
        y, value, bound = (np.concatenate(each) for each in zip(*found, strict=True))
        return y, value, None if (bound == value).all() else bound

    def decisions(self, given: Array | None = None) -> Array | None:
        """All decisions, if all variables are integers and their bounds allow for few."""
        program = self.program
        lowest = np.ceil(program.low)
        sizes = np.floor(program.high) - lowest + 1.0
        if not program.integer.all() or not np.prod(sizes) <= _MOST_LISTED:
            return None
        every = np.indices(sizes.astype(int).tolist()).reshape(self.num_costs, -1).T + lowest.astype(int)
        low, high = self._limits(given)
        reached, slack = every @ program.rows.T, 1e-6
        return every[((reached >= low - slack) & (reached <= high + slack)).all(1)]

    def _solve_rows(
        self, first: int, costs: Array, given: Array | None, start: Array | None
    ) -> tuple[Array, Array, Array]:
        """Decisions, values and bounds of some examples, of which ``first`` is the first one's row in the batch."""
        if self._model is None:
            self._model = self.backend.load(self.program)
        y = np.empty(costs.shape)
        value, bound = np.empty(len(costs)), np.empty(len(costs))
        sign = -1.0 if self.maximize else 1.0
        for k, own in enumerate(sign * costs):
            limits = self.program.limits if given is None else self._limits(given[k])
            begin = None if start is None else start[k].astype(np.float64)
            unit = 2.0 ** (_SIZE - np.frexp(np.abs(own).max())[1]) if own.any() else 1.0
            answer = self._model(unit * own, limits, begin if self.program.time_limit is not None else None)
            if answer.status not in ("optimal", "limit"):
                raise ValueError(self._refusal(first + k, answer, limits))
            found = begin if answer.y is None else np.where(self.program.integer, np.rint(answer.y), answer.y)
            if found is None:
                raise ValueError(
                    f"time_limit={self.program.time_limit} ended before any decision was found in "
                    f"{row_name(first + k)}: give more time"
                )
            y[k], value[k] = found, own @ found
            told = answer.bound / unit - _PROVEN * len(own) * np.abs(own).max()
            bound[k] = min(value[k], max(told, self._lowest(own)))
            proven = answer.status == "optimal" and self.program.rel_gap == 0.0
            if proven or value[k] - bound[k] <= _PROVEN * (np.abs(own) @ np.abs(found)):
                bound[k] = value[k]
        return y.astype(np.int64) if self.program.integer.all() else y, sign * value, sign * bound

    def _limits(self, given: Array | None) -> Limits:
        """The limits of the rows with these right-hand sides ``[M]``."""
        if given is None:
            return self.program.limits
        sides = given.astype(np.float64)
        return np.where(np.arange(len(sides)) < self._num_upper, -np.inf, sides), sides

    def _lowest(self, costs: Array) -> float:
        """What the bounds of the variables alone say."""
        used = costs != 0.0
        ends = (costs[used] * end[used] for end in (self.program.low, self.program.high))
        return float(np.minimum(*ends).sum())

    def _refusal(self, row: int, answer: Answer, limits: Limits) -> str:
        """The error of a program without a best decision, as far as the solver says why."""
        assert self._model is not None
        program, words = self.program, answer.status.lower()
        told = [word for word in ("infeasible", "unbounded") if word in words]
        if len(told) == 2:  # it leaves open which: without costs nothing is unbounded
            known = self._model(np.zeros(self.num_costs), limits, None).y is not None
            told = ["unbounded" if known else "infeasible"]
        if not told:
            return f"the solver gave up on the integer program of row {row} of the batch: {answer.status}"
        if told[0] == "unbounded":
            return (
                f"the integer program of {row_name(row)} is unbounded: decisions become better without end "
                f"({answer.status}). Training tries costs of any sign: give all variables two finite bounds"
            )
        up, down = program.rows.maximum(0.0), program.rows.minimum(0.0)
        least, most = up @ program.low + down @ program.high, up @ program.high + down @ program.low
        alone = ((least > limits[1] + 1e-6) | (most < limits[0] - 1e-6)).nonzero()[0].tolist()
        names = [f"A_ub[{k}]" if k < self._num_upper else f"A_eq[{k - self._num_upper}]" for k in alone]
        why = f"{', '.join(names[:4])} cannot be met within the bounds" if names else "no row alone is at fault"
        return f"the integer program of {row_name(row)} is infeasible ({answer.status}): {why}"

    def _each(self, value: Any, name: str) -> Array:
        array = np.asarray(value, dtype=np.float64)
        if array.shape not in ((), (self.num_costs,)) or np.isnan(array).any():
            raise ValueError(f"{name} must be a number, or {self.num_costs} of them, got {value!r}")
        return np.ascontiguousarray(np.broadcast_to(array, (self.num_costs,)))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_model": None, "_pool": None}

    def __repr__(self) -> str:
        p = self.program
        numbers = [p.rows.toarray().ravel(), *p.limits, p.low, p.high, p.integer]
        size = sum(map(len, numbers))
        known = digest(torch.from_numpy(np.concatenate(numbers))).replace(f"[{size}]", str([*p.rows.shape]))
        return (
            f"IntegerProgram({known}, maximize={self.maximize}, backend={self.backend}, rel_gap={p.rel_gap}, "
            f"time_limit={p.time_limit})"
        )


def _rows(matrix: Any, sides: Any, name: str, make: Any) -> tuple[Any, Array]:
    """The rows of a kind in SciPy's sparse format and their right-hand sides; None and ``[0]`` where there are none."""
    if (matrix is None) != (sides is None):
        raise ValueError(f"A_{name} and b_{name} go together: give both or none")
    if matrix is None:
        return None, np.empty(0)
    if np.ndim(matrix) != 2:
        raise ValueError(f"A_{name} must be [M, D], a row for each constraint, got {[*np.shape(matrix)]}")
    rows, right = make(matrix, dtype=np.float64), np.asarray(sides, dtype=np.float64)
    if right.shape != rows.shape[:1] or np.isnan(right).any() or not np.isfinite(rows.data).all():
        raise ValueError(
            f"A_{name} must be [M, D] and b_{name} [M], finite, got {list(rows.shape)} and {list(right.shape)}"
        )
    return rows, right


_held: Sequence[IntegerProgram] = ()  # in a process of a pool: its program


def _receive(program: IntegerProgram) -> None:
    global _held
    _held = (program,)


def _work(first: int, costs: Array, given: Array | None, start: Array | None) -> tuple[Array, Array, Array]:
    return _held[0]._solve_rows(first, costs, given, start)
