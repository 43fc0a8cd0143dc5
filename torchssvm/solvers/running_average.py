"""Running averages of the weights that an optimizer visits ([B13] appendix C, equations 14 and 15)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_parameters
from torchssvm.core.states import Numbers, Stateful, check_entries, check_seal, copied
from torchssvm.dual.checks import check_dual
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import (
    weights_kept,
    write,
)

if TYPE_CHECKING:
    from typing import Self

_FORMAT = 3


class Average(Stateful):
    """A running average of the weights that an optimizer visits.

    ``wbar <- (1 - c_k) wbar + c_k w`` after step k = 1, 2, ...; subclasses choose c_k. The average is kept in float64
    and rounded to the weights' dtype when it is copied to the head; the initial weights do not count. A step costs
    O(d), even where a step of BCFW costs less (``SparseLinearChain``).

    With any optimizer, make ``average = WeightedAverage(head.parameters())`` and call ``average.update()`` after every
    step. With BCFW, ``average = WeightedAverage.following(dual)`` updates itself. Inside ``with average.apply():``
    the head holds the average: ``primal(head, ...)`` is its objective, and ``certify(head, dual, batches,
    refresh=False)`` adds the dual of the run and the gap between them, and leaves the run as it is.

    Args:
        params: The weights to average, such as ``head.parameters()``.

    Attributes:
        count: Steps averaged, k.

    Raises:
        ValueError: There are no parameters, or they are not floating-point tensors.
        TypeError: ``params`` is a tensor, or a dual.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> optimizer = torch.optim.SGD(head.parameters(), lr=0.5, weight_decay=0.1)
        >>> average = WeightedAverage(head.parameters())
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     StructuredHinge(head.structure)(head(points), classes).backward()
        ...     optimizer.step()
        ...     average.update()
        >>> isinstance(average, Average), average.count
        (True, 20)
        >>> with average.apply():  # the weights are the average here, and restored afterwards
        ...     print(primal(head, head.structure, in_order(data), lam=0.1).value < 1.0)  # from 1, at weights of zero
        True
    """

    state_name = "average"

    def __init__(self, params: Iterable[Tensor]) -> None:
        check_parameters(params)
        self.parameters = list(params)
        if not self.parameters or not all(isinstance(p, Tensor) and p.is_floating_point() for p in self.parameters):
            raise ValueError("params must be floating-point tensors: pass head.parameters()")
        self._dual: DualState | None = None
        self._steps = 0  # of the dual, when the weights were last added
        self.reset()

    @classmethod
    def following(cls, dual: DualState) -> Self:
        """An average of the weights of ``dual``, which updates it after every step.

        The dual holds only a weak reference: keep the average alive. A solver that takes many steps in one call reports
        the last one only.
        """
        average = cls(check_dual(dual).parameters)
        average._dual, average._steps = dual, dual.steps
        dual.mailbox.observe(average)
        return average

    @abstractmethod
    def coefficient(self, k: int) -> float:
        """c_k in (0, 1], the weight of the k-th iterate in the update, k = 1, 2, ...; c_1 = 1."""

    def reset(self) -> None:
        """Forget all iterates: the average restarts with the next step. Call it when features have moved."""
        self.count, self._means = 0, list[Tensor]()

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average; call it after a step of the optimizer.

        Raises:
            ValueError: The weights are not finite; the average is as before.
        """
        if not all(bool(torch.isfinite(p).all()) for p in self.parameters):
            raise ValueError("the weights are not finite: the optimizer has diverged")
        count = self.count + 1
        values = [p.detach().to(torch.float64, copy=True) for p in self.parameters]
        if (share := self.coefficient(count)) < 1.0:
            means = [mean.to(value.device) for mean, value in zip(self._means, values, strict=True)]
            torch._foreach_lerp_(values, means, 1.0 - share)
        self.count, self._means = count, values

    def after_step(self) -> None:
        """Add the weights if a step was taken; the dual calls this, even when a step was discarded."""
        assert self._dual is not None
        if self._dual.steps != self._steps:
            self._steps = self._dual.steps
            self.update()

    @property
    def weights(self) -> list[Tensor]:
        """wbar, float64, in the order of the parameters.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        if not self.count:
            raise RuntimeError("the average is empty: take a step first")
        return [mean.to(p.device, copy=True) for mean, p in zip(self._means, self.parameters, strict=True)]

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Put the average into the parameters inside the ``with`` block; restore them bit for bit afterwards.

        Take no step of the optimizer inside.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        means = self.weights
        with weights_kept(self.parameters):
            write(means, self.parameters)
            yield

    def copy_to_parameters(self) -> None:
        """Copy the average to the parameters for good; BCFW refuses to train them further.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        write(self.weights, self.parameters)

    def _entries(self) -> dict[str, Any]:
        means = copied(self._means)
        return {"format": _FORMAT, "kind": type(self).__name__, "count": self.count, "weights": means}

    def _check_own(self, state: dict[str, Any]) -> None:
        check_seal(state, _FORMAT, "average")
        means: Any = [Numbers(torch.float64, tuple(p.shape)) for p in self.parameters] if state["count"] else []
        wanted = {"format": _FORMAT, "kind": type(self).__name__, "count": Numbers(int, low=0), "seal": int}
        check_entries(state, {**wanted, "weights": means}, "average")

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self._means = [mean.to(self.parameters[0].device, copy=True) for mean in state["weights"]]
        self._steps = 0 if self._dual is None else self._dual.steps

    def __repr__(self) -> str:
        return f"{type(self).__name__}(count={self.count})"


class WeightedAverage(Average):
    """``wbar <- k/(k+2) wbar + 2/(k+2) w`` after step k = 0, 1, ... ([B13] Algorithm 4, last line; equation 14).

    In closed form ``2/(K(K+1)) sum_t t w_t`` over t = 1 .. K: late iterates count more. [B13] recommends this average;
    with BCFW its expected gap is O(1/K) (Theorem C.3).

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> average = WeightedAverage([weight])
        >>> for step in (1.0, 2.0, 3.0):
        ...     weight.data = torch.tensor([step])
        ...     average.update()
        >>> with average.apply():
        ...     print(round(weight.item(), 4))  # (1 * 1 + 2 * 2 + 3 * 3) / 6
        2.3333
    """

    def coefficient(self, k: int) -> float:
        """``2/(k+1)``; the paper counts steps from 0."""
        return 2.0 / (k + 1)


class SuffixAverage(Average):
    """The 0.5-suffix average by doubling: uniform, restarted at each k that is a power of 2 ([B13] equation 15).

    It fluctuates: just before a restart it covers the last half of the iterates, just after only one.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> average = SuffixAverage([weight])
        >>> for step in (1.0, 2.0, 3.0):
        ...     weight.data = torch.tensor([step])
        ...     average.update()
        >>> with average.apply():
        ...     print(weight.item())  # of the steps 2 and 3
        2.5
    """

    def coefficient(self, k: int) -> float:
        """``1/(k - s + 1)`` with s the largest power of 2 up to k."""
        return 1.0 / (k - (1 << (k.bit_length() - 1)) + 1)


class UniformAverage(Average):
    """The plain average of all iterates, ``(1/K) sum_t w_t``: the slowest to forget a bad start.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> average = UniformAverage([weight])
        >>> for step in (1.0, 2.0, 3.0):
        ...     weight.data = torch.tensor([step])
        ...     average.update()
        >>> with average.apply():
        ...     print(weight.item())
        2.0
    """

    def coefficient(self, k: int) -> float:
        """``1/k``."""
        return 1.0 / k
