"""The solvers of integer programs: SciPy's HiGHS, highspy, and OR-Tools with SCIP or CP-SAT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from torchssvm.core.arguments import check_whole
from torchssvm.core.extras import needs
from torchssvm.structures.decisions.oracle import Array

Limits = tuple[Array, Array]
"""The lowest and the highest value of every row, ``[M]`` float64 each."""


@dataclass(frozen=True)
class Program:
    """Minimise ``costs'y`` with ``limits[0] <= A y <= limits[1]`` and ``low <= y <= high``, in part integer."""

    rows: Any  # A, ``[M, D]``, a matrix of SciPy in rows (CSR), float64
    limits: Limits  # what holds where no example has its own
    low: Array  # ``[D]`` float64
    high: Array  # ``[D]`` float64
    integer: Array  # ``[D]`` bool
    rel_gap: float  # the gap at which a solver may stop, relative to the value
    time_limit: float | None  # seconds for each solution, or None


class Answer(NamedTuple):
    """What a solver found."""

    status: str  # "optimal" (within ``rel_gap``), "limit" (time), or the solver's own words for anything else
    y: Array | None = None  # ``[D]``, the best decision found, or None
    bound: float = -np.inf  # no decision costs less; -inf where nothing is known


Model = Callable[[Array, Limits, "Array | None"], Answer]
"""A loaded program: costs ``[D]``, limits of its rows and a feasible start ``[D]`` (or None) -> :class:`Answer`."""


class Backend(Protocol):
    """A solver of integer programs."""

    def load(self, program: Program) -> Model:
        """The program as a model of the solver, whose costs and right-hand sides may change from call to call."""


@dataclass(frozen=True)
class SciPyMilp:
    """``scipy.optimize.milp``, which is HiGHS; it takes no start. The default (``torchssvm[scipy]``).

    Example:
        >>> knapsack = IntegerProgram([[3, 2, 2]], [4], maximize=True, backend=SciPyMilp())
        >>> Decisions(knapsack).decode(torch.tensor([[5.0, 3.0, 3.0]]))
        tensor([[0, 1, 1]])
    """

    def load(self, program: Program) -> Model:
        """Nothing is kept between calls."""
        with needs("SciPyMilp() needs SciPy: pip install 'torchssvm[scipy]'", "scipy"):
            from scipy.optimize import Bounds, LinearConstraint, milp

        bounds = Bounds(program.low, program.high)
        options: dict[str, Any] = {"mip_rel_gap": program.rel_gap}
        if program.time_limit is not None:
            options["time_limit"] = program.time_limit

        def solve(costs: Array, limits: Limits, start: Array | None) -> Answer:
            rows = [LinearConstraint(program.rows, *limits)] if program.rows.shape[0] else []
            found = milp(costs, integrality=program.integer, bounds=bounds, constraints=rows, options=options)
            if found.status not in (0, 1):
                return Answer(found.message)
            bound = found.fun if found.status == 0 and not program.integer.any() else found.mip_dual_bound
            return Answer(("optimal", "limit")[found.status], found.x, -np.inf if bound is None else bound)

        return solve


@dataclass(frozen=True)
class HiGHS:
    """HiGHS with one model that is kept while costs change: ``highspy`` (``torchssvm[highs]``).

    Its own gaps at which it stops (0.01 % and 1e-6) are replaced by ``rel_gap``. Every solution starts anew from the
    given start, so that decisions do not depend on the order of examples. OR-Tools brings a HiGHS of its own: one
    process takes only one of the two.

    Example:
        >>> knapsack = IntegerProgram([[3, 2, 2]], [4], maximize=True, backend=HiGHS())
        >>> Decisions(knapsack).decode(torch.tensor([[5.0, 3.0, 3.0]]))
        tensor([[0, 1, 1]])
    """

    def load(self, program: Program) -> Model:
        """Pass the model once."""
        with (
            _one_highs("HiGHS()", "highspy", "ortools", "SCIP() or CPSAT()"),
            needs("HiGHS() needs highspy: pip install 'torchssvm[highs]'", "highspy"),
        ):
            import highspy

        model = highspy.HighsLp()
        model.num_row_, model.num_col_ = rows, columns = program.rows.shape
        model.col_cost_ = np.zeros(columns)
        model.col_lower_, model.col_upper_ = program.low, program.high
        model.row_lower_, model.row_upper_ = program.limits
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_, model.a_matrix_.index_ = program.rows.indptr, program.rows.indices
        model.a_matrix_.value_ = program.rows.data
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        mixed = bool(program.integer.any())
        if mixed:
            model.integrality_ = [kinds[int(integer)] for integer in program.integer]
        highs: Any = highspy.Highs()
        options = {"output_flag": False, "threads": 1, "mip_rel_gap": program.rel_gap, "mip_abs_gap": 0.0}
        if program.time_limit is not None:
            options["time_limit"] = program.time_limit
        for name, value in options.items():
            highs.setOptionValue(name, value)
        highs.passModel(model)
        every, each = np.arange(columns, dtype=np.int32), np.arange(rows, dtype=np.int32)
        loaded = program.limits

        def solve(costs: Array, limits: Limits, start: Array | None) -> Answer:
            nonlocal loaded
            highs.clearSolver()
            if program.time_limit is not None and not mixed:  # HiGHS counts it from the first linear program on
                highs.setOptionValue("time_limit", highs.getRunTime() + program.time_limit)
            if limits is not loaded and rows:
                highs.changeRowsBounds(rows, each, *limits)
                loaded = limits
            highs.changeColsCost(columns, every, costs)
            if start is not None and mixed:
                highs.setSolution(columns, every, start)
            highs.run()
            status, info = highs.getModelStatus(), highs.getInfo()
            known = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
            y = np.array(highs.getSolution().col_value) if known else None
            if status == highspy.HighsModelStatus.kOptimal:
                return Answer("optimal", y, info.mip_dual_bound if mixed else info.objective_function_value)
            if status == highspy.HighsModelStatus.kTimeLimit:
                return Answer("limit", y if mixed else None, info.mip_dual_bound if mixed else -np.inf)
            return Answer(highs.modelStatusToString(status))

        return solve


@dataclass(frozen=True)
class SCIP:
    """SCIP of OR-Tools (``torchssvm[ortools]``); see :class:`HiGHS` on both in one process.

    Example:
        >>> IntegerProgram([[3, 2, 2]], [4], maximize=True, backend=SCIP())
        IntegerProgram(<[1, 3] ...>, maximize=True, backend=SCIP(), rel_gap=0.0, time_limit=None)
    """

    def load(self, program: Program) -> Model:
        """Build the model once."""
        return _load_ortools("SCIP", program, "")


@dataclass(frozen=True)
class CPSAT:
    """CP-SAT of OR-Tools (``torchssvm[ortools]``), for integers with bounds; see :class:`HiGHS` on both in one process.

    Args:
        workers: Threads of one solution. With several, decisions of equal cost differ from run to run.

    Raises:
        ValueError: ``workers`` is less than 1; or a variable of the program is continuous or not bounded.

    Example:
        >>> IntegerProgram([[3, 2, 2]], [4], maximize=True, backend=CPSAT())
        IntegerProgram(<[1, 3] ...>, maximize=True, backend=CPSAT(workers=1), rel_gap=0.0, time_limit=None)
    """

    workers: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", check_whole(self.workers, "workers"))

    def load(self, program: Program) -> Model:
        """Build the model once."""
        if not program.integer.all() or not np.isfinite([program.low, program.high]).all():
            raise ValueError(
                "backend=CPSAT() takes integer variables with two finite bounds only: give them, or take SCIP()"
            )
        settings = f"num_workers: {self.workers}, relative_gap_limit: {program.rel_gap}, absolute_gap_limit: 0.0"
        return _load_ortools("SAT", program, settings)


def _load_ortools(name: str, program: Program, settings: str) -> Model:
    backend = {"SCIP": "SCIP()", "SAT": "CPSAT()"}[name]
    with (
        _one_highs(backend, "ortools", "highspy", "HiGHS()"),
        needs(f"{backend} needs OR-Tools: pip install 'torchssvm[ortools]'", "ortools"),
    ):
        from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver(name)
    kinds = zip(program.low.tolist(), program.high.tolist(), program.integer.tolist(), strict=True)
    variables = [solver.Var(low, high, integer, "") for low, high, integer in kinds]
    rows = [solver.Constraint(low, high) for low, high in zip(*(side.tolist() for side in program.limits), strict=True)]
    matrix = program.rows.tocoo()
    for row, column, value in zip(matrix.row.tolist(), matrix.col.tolist(), matrix.data.tolist(), strict=True):
        rows[row].SetCoefficient(variables[column], value)
    objective = solver.Objective()
    objective.SetMinimization()
    solver.SetNumThreads(1)
    if settings:
        solver.SetSolverSpecificParametersAsString(settings)
    if program.time_limit is not None:
        solver.SetTimeLimit(max(1, round(1000 * program.time_limit)))
    parameters = pywraplp.MPSolverParameters()
    if name == "SCIP":
        parameters.SetDoubleParam(parameters.RELATIVE_MIP_GAP, program.rel_gap)
    words = {solver.INFEASIBLE: "infeasible", solver.UNBOUNDED: "unbounded", solver.ABNORMAL: "abnormal"}

    def solve(costs: Array, limits: Limits, start: Array | None) -> Answer:
        for row, low, high in zip(rows, *(side.tolist() for side in limits), strict=True):
            row.SetBounds(low, high)
        for variable, cost in zip(variables, costs.tolist(), strict=True):
            objective.SetCoefficient(variable, cost)
        solver.SetHint(*(([], []) if start is None else (variables, start.tolist())))  # or that of the last one stays
        status = solver.Solve(parameters)
        if status in (solver.OPTIMAL, solver.FEASIBLE):
            y = np.array([variable.solution_value() for variable in variables])
            return Answer("optimal" if status == solver.OPTIMAL else "limit", y, objective.BestBound())
        if status == solver.NOT_SOLVED and program.time_limit is not None:
            return Answer("limit")
        return Answer(words.get(status, f"status {status}"))

    return solve


@contextmanager
def _one_highs(backend: str, wanted: str, loaded: str, instead: str) -> Iterator[None]:
    """Explain the linker's error where the two packages, which bring a HiGHS each, meet in one process."""
    try:
        yield
    except ImportError as error:
        if "undefined symbol" not in str(error):
            raise
        raise ImportError(
            f"backend={backend} needs {wanted}, and {loaded} is loaded in this process already: both bring HiGHS, in "
            f"versions that exclude each other. Use {instead} or SciPyMilp() here, or another process"
        ) from error
