"""What solves the problem of a decision: an oracle, and the oracle made of a function."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchssvm.core.arguments import check_flags, check_readable, check_whole

Array = NDArray[Any]
Solved = tuple[Array, Array, Array | None]


def _checked(solve: Callable[..., Solved]) -> Callable[..., Solved]:
    """``solve`` behind the checks of its arguments: kernels do not look whether an index is within its array."""

    @functools.wraps(solve)
    def call(self: DecisionOracle, costs: Any, *args: Any, **kwargs: Any) -> Solved:
        costs = as_numbers(costs, "costs")
        if costs.ndim != 2 or costs.shape[1] != self.num_costs:
            raise ValueError(f"costs must be [B, {self.num_costs}], got {[*costs.shape]}")
        if not (finite := np.isfinite(costs).all(1)).all():
            raise ValueError(f"costs of row {int(finite.argmin())} are not finite")
        fit = [_fitting(value, name, costs) for value, name in zip(args, ("given", "start"), strict=False)]
        named = {name: _fitting(value, name, costs) for name, value in kwargs.items()}
        return solve(self, np.ascontiguousarray(costs, dtype=np.float64), *fit, *args[2:], **named)

    return call


def _fitting(value: Any, name: str, costs: Array) -> Any:
    """``given`` or ``start`` as an array that fits the costs; what an oracle of one's own takes besides, as it is."""
    if value is None or name not in ("given", "start"):
        return value
    value = as_numbers(value, name)
    if name == "given" and value.shape[:1] != costs.shape[:1]:
        raise ValueError(f"given has shape {[*value.shape]}; its first axis must be that of costs, {len(costs)}")
    if name == "start" and value.shape != costs.shape:
        raise ValueError(f"start must be {[*costs.shape]}, as costs, got {[*value.shape]}")
    return value


class DecisionOracle(ABC):
    """A problem with linear costs: the feasible decisions, and how the best of them is found.

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
            The decisions ``[B, D]``, integers or floats; their costs ``[B]`` float64; and ``[B]`` float64, what no
            decision's cost is below (above, if ``maximize``), or None where all decisions are optimal.

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
    """The oracle that a function ``costs -> (y, value, bound)`` is."""

    def __init__(self, function: Callable[..., Solved], num_costs: int, maximize: bool) -> None:
        check_flags(maximize=maximize)
        self.num_costs = check_whole(num_costs, "num_costs")
        self.function = function
        self.maximize = maximize

    def solve(self, costs: Array, given: Array | None = None, start: Array | None = None) -> Solved:
        """``function(costs)``, or ``function(costs, given)`` where something is given."""
        return self.function(costs) if given is None else self.function(costs, given)

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{name}, num_costs={self.num_costs}, maximize={self.maximize}"


def refuse_given(oracle: DecisionOracle, given: Array | None) -> None:
    """Raise ValueError where something is given for every example and the oracle takes costs alone."""
    if given is not None:
        raise ValueError(
            f"given has shape {list(np.shape(given))}, and {oracle!r} takes costs alone: leave given out of Situations"
        )


def as_numbers(value: Any, name: str) -> Array:
    """An array of real numbers, from an array, a tensor or nested lists; TypeError names the argument."""
    check_readable(value, name)
    try:
        found = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:  # a sparse or meta tensor, bfloat16, ragged lists
        raise TypeError(f"{name} must be an array of real numbers: {error}") from error
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be an array of real numbers, got {found.dtype} {list(found.shape)}")
    return found


def costs_of(decisions: Array, costs: Array) -> Array:
    """``costs @ y`` of every example, ``[B]`` float64."""
    return np.einsum("bd,bd->b", decisions.astype(np.float64, copy=False), costs)


def node_pairs(value: Any, name: str) -> Array:
    """``[D, 2]`` int64, whole numbers of at least 0; ValueError names the argument."""
    check_readable(value, name)
    given = np.asarray(value)
    if given.ndim != 2 or given.shape[1] != 2 or not len(given):
        raise ValueError(f"{name} must be [D, 2], pairs of nodes from 0, got {list(given.shape)}")
    if given.dtype.kind not in "iuf" or not ((given >= 0) & (given % 1 == 0) & (given < 2**31)).all():
        raise ValueError(f"{name} must hold numbers of nodes, whole and at least 0")
    return np.ascontiguousarray(given, dtype=np.int64)
