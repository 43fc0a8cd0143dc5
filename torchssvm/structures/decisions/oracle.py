"""Oracles that solve decision problems; a function can serve as one."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_readable, check_whole

Array = NDArray[Any]
Solved = tuple[Array, Array, Array | None]


def _checked(solve: Callable[..., Solved]) -> Callable[..., Solved]:
    """``solve`` behind checks of its arguments: kernels do not look whether an index lies within an array."""

    @functools.wraps(solve)
    def call(self: DecisionOracle, costs: Any, given: Any = None, start: Any = None, **options: Any) -> Solved:
        costs = as_numbers(costs, "costs")
        if costs.ndim != 2 or costs.shape[1] != self.num_costs or not np.isfinite(costs).all():
            raise ValueError(f"costs must be [B, {self.num_costs}], finite, got {[*costs.shape]}")
        if given is not None:
            given = as_numbers(given, "given")
            if given.shape[:1] != costs.shape[:1]:
                raise ValueError(f"given must be [{len(costs)}, ...] for these costs, got {[*given.shape]}")
        if start is not None:
            start = as_numbers(start, "start")
            if start.shape != costs.shape:
                raise ValueError(f"start must be {[*costs.shape]} for these costs, got {[*start.shape]}")
        return solve(self, np.ascontiguousarray(costs, dtype=np.float64), given, start, **options)

    return call


class DecisionOracle(ABC):
    """A problem with linear costs: the feasible decisions and the solver.

    Arguments of ``solve`` are checked and made arrays before a subclass sees them.

    Attributes:
        num_costs: D, the number of variables of a decision.
        maximize: Whether the costs are values, to be maximised.
        quick: Whether a solution takes no longer than a step of training, so that to reuse decisions does not pay.

    Example:
        >>> import numpy as np
        >>> class Cheapest(DecisionOracle):  # choose one of D things
        ...     def __init__(self, num_costs):
        ...         self.num_costs = num_costs
        ...     def solve(self, costs, given=None, start=None):
        ...         return np.eye(self.num_costs, dtype=np.int64)[costs.argmin(1)], costs.min(1), None
        >>> Decisions(Cheapest(3)).decode(torch.tensor([[2.0, 1.0, 3.0]]))
        tensor([[0, 1, 0]])
    """

    num_costs: int
    maximize: bool = False
    quick: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "solve" in vars(cls):
            cls.solve = _checked(cls.solve)  # type: ignore[method-assign]

    @abstractmethod
    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """The best decision of every example.

        Args:
            costs: ``[B, D]``, finite, of any sign; an array or a tensor, which arrives as a float64 array.
            given: ``[B, ...]``, what else differs between the examples' problems, as :class:`Situations` carries it;
                None where nothing does.
            start: ``[B, D]``, a feasible decision of every example, from which a solver may start; None where none is
                known. An oracle that finds nothing better in its time returns it.

        Returns:
            The decisions ``[B, D]``, integers or floats; their costs ``[B]`` float64; and ``[B]`` float64, a lower
            bound of all decisions' costs (an upper one, if ``maximize``), or None where all decisions are optimal.

        Raises:
            ValueError: Shapes do not fit, or costs are not finite.
            TypeError: An argument does not hold real numbers.
        """

    def decisions(self, given: Array | None = None) -> Array | None:
        """All feasible decisions of one example, ``[K, D]``; None where they are not listed.

        Args:
            given: ``[...]``, as in :meth:`solve`, of one example.
        """
        return None


class FunctionOracle(DecisionOracle):
    """A function ``costs -> (y, value, bound)`` as an oracle."""

    def __init__(self, function: Callable[..., Solved], num_costs: int, maximize: bool) -> None:
        check_flags(maximize=maximize)
        self.num_costs = check_whole(num_costs, "num_costs")
        self.function = function
        self.maximize = maximize

    @override
    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        return self.function(costs) if given is None else self.function(costs, given)

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{name}, num_costs={self.num_costs}, maximize={self.maximize}"


def refuse_given(oracle: DecisionOracle, given: Array | None) -> None:
    """Raise ValueError where something is given for every example and the oracle takes costs alone."""
    if given is not None:
        raise ValueError(f"given is not used by {oracle!r}: leave it out of Situations")


def as_numbers(value: Any, name: str) -> Array:
    """An array of real numbers, from an array, a tensor or nested lists; TypeError names the argument."""
    check_readable(value, name)
    try:
        array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):  # a sparse or meta tensor, bfloat16, ragged lists
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be an array of real numbers, not a {type(value).__name__}")
    return array


def costs_of(decisions: Array, costs: Array) -> Array:
    """``costs @ y`` of every example, ``[B]`` float64."""
    return np.einsum("bd,bd->b", decisions.astype(np.float64, copy=False), costs)


def node_pairs(value: Any, name: str) -> Array:
    """``[D, 2]`` int64, whole numbers of at least 0; ValueError names the argument."""
    check_readable(value, name)
    given = np.asarray(value)
    fits = given.ndim == 2 and given.shape[1:] == (2,) and len(given) and given.dtype.kind in "iuf"
    if not fits or not ((given >= 0) & (given % 1 == 0) & (given < 2**31)).all():
        raise ValueError(f"{name}={value!r} must be [D, 2], pairs of nodes, whole numbers from 0")
    return np.ascontiguousarray(given, dtype=np.int64)
