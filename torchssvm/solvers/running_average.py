"""Running averages of the iterates, with their certificates ([B13] appendix C, equations 14 and 15)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchssvm.compiler.jit import clock
from torchssvm.core.arguments import check_parameters
from torchssvm.core.batch import Batch
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.schema import Entry, Field, Maybe, Noted, Same, Schema, Stateful, damaged, seal, version
from torchssvm.dual.checks import check_dual
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import (
    Certificate,
    dual_exceeds_primal,
    features_moved,
    make_certificate,
    pass_of_all_ranks,
    write,
)
from torchssvm.solvers.exact_pass import exact_pass

if TYPE_CHECKING:
    from typing import Self

_FORMAT = 2


class Average(Stateful):
    """A running average of the weights that an optimizer visits.

    ``wbar <- (1 - c_k) wbar + c_k w`` after step k = 1, 2, ...; subclasses choose c_k. The average is kept in float64
    and rounded to the weights' dtype when it is copied to the head; the initial weights do not count. A step costs
    O(d), even where a step of BCFW costs less (``SparseLinearChain``).

    With any optimizer, make ``average = WeightedAverage(head.parameters())`` and call ``average.update()`` after every
    step. Only the primal of this average is available: ``with average.apply(): primal(head, ...)``.

    With BCFW, make ``average = WeightedAverage.following(dual)``; it updates itself, and averages ``l = sum_i l_i``
    too. The weights are linear in the dual variables, so wbar = w(alphabar), and lbar is the loss term of alphabar, the
    average of the dual variables with the same c_k. As alphabar is feasible, the average has its own certificate with
    ``D(alphabar) = lbar - lam/2 |wbar|^2``, up to the rounding of the trained weights, which every exact pass removes.
    Under bounds v is averaged, and ``wbar = clip(vbar)``. The average restarts when the weights are recomputed for
    moved features, ``lam`` changes, or a state is loaded: weights before and after belong to different duals.

    Args:
        params: The weights to average, such as ``head.parameters()``.
        dual: Average its ``sum_i l_i`` too, for a certificate. ``update()`` must still be called, unlike with
            :meth:`following`.

    Attributes:
        count: Steps averaged, k.
        loss: lbar; None without a dual.

    Raises:
        ValueError: There are no parameters, they are not floating-point tensors, or not those of ``dual``.
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
        >>> with average.apply():  # the weights are those of the average here, and as before behind it
        ...     print(primal(head, head.structure, in_order(data), lam=0.1).value < 1.0)  # from 1, at weights of zero
        True
    """

    state_name = "average"

    def __init__(self, params: Iterable[Tensor], dual: DualState | None = None) -> None:
        name = type(self).__name__
        if isinstance(params, Tensor | DualState):
            raise TypeError(
                f"params is a {type(params).__name__}: pass head.parameters(), or use {name}.following(dual)"
            )
        check_parameters(params)
        if dual is not None:
            check_dual(dual)
        self.parameters = list(params)
        if not self.parameters or not all(isinstance(p, Tensor) and p.is_floating_point() for p in self.parameters):
            raise ValueError("params must be one or more floating-point tensors: pass head.parameters()")
        if dual is not None and [id(p) for p in self.parameters] != [id(p) for p in dual.parameters]:
            raise ValueError("params must be the parameters that the dual was made for, in the order of the head")
        self.dual = dual
        self._told = False  # whether the dual reports its steps
        self.reset()

    @classmethod
    def following(cls, dual: DualState) -> Self:
        """An average of the weights and losses of ``dual``; the dual updates it after every step.

        The dual holds only a weak reference: keep the average alive. A solver that takes many steps in one call reports
        the last one only. For one that reports none, use ``cls(params, dual)`` and ``update()``.
        """
        check_dual(dual)
        average = cls(dual.parameters, dual)
        average._told = True
        dual.mailbox.observe(average)
        return average

    @abstractmethod
    def coefficient(self, k: int) -> float:
        """c_k in (0, 1], the weight of the k-th iterate in the update, k = 1, 2, ...; c_1 = 1."""

    @undisturbed()
    def reset(self) -> None:
        """Forget all iterates: the average restarts with the next step."""
        self.count = 0
        self.loss = None if self.dual is None else 0.0
        self._means: list[Tensor] = []
        self._remember()

    def update(self) -> None:
        """Add the current weights to the average; call it after a step of the optimizer.

        Raises:
            RuntimeError: The average follows a dual, which updates it.
            ValueError: The weights are not finite; the average is as before.
        """
        if self._told:
            raise RuntimeError(f"update() was called, and this {type(self).__name__} is told of every step by its dual")
        if not all(bool(torch.isfinite(p).all()) for p in self.parameters):
            raise ValueError("the weights are not finite, and are not averaged: the optimizer has diverged")
        self._check_followed()
        self._add()

    def after_step(self) -> None:
        """Add the weights if a step was taken; the dual calls this, even when a step was discarded."""
        assert self.dual is not None
        if self.dual.steps != self._steps:
            self._check_followed()
            self._add()

    @undisturbed()
    @torch.no_grad()
    def _add(self) -> None:
        self.count += 1
        share = self.coefficient(self.count)
        held = self.parameters if self.dual is None else self.dual.unclipped
        values = [p.detach().to(torch.float64) for p in held]
        if share == 1.0:
            self._means = [value.clone() for value in values]
        else:
            self._means = [mean.to(value.device) for mean, value in zip(self._means, values, strict=True)]
            torch._foreach_lerp_(self._means, values, share)
        if self.dual is not None:
            assert self.loss is not None
            self.loss = (1.0 - share) * self.loss + share * self.dual.total_loss
        self._remember()

    @property
    def weights(self) -> list[Tensor]:
        """wbar, float64, in the order of the parameters.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        self._check_followed()
        if not self.count:
            raise RuntimeError(
                "there is no average yet: no step has been taken since the start, or since the weights were recomputed "
                "or loaded"
            )
        means = [mean.to(p.device, copy=True) for mean, p in zip(self._means, self.parameters, strict=True)]
        return means if self.dual is None else self.dual.box.clip(means)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Put the average into the parameters inside the ``with`` block; restore them bit for bit afterwards.

        Raises:
            RuntimeError: Nothing has been averaged; or the dual's weights were changed inside the block by a step, by
                ``recompute_weights`` or by loading a state: the changed weights are then kept.
        """
        means, dual = self.weights, self.dual
        held = [p.detach().clone() for p in self.parameters]
        before = _stamp(dual)

        def restore() -> None:
            if _stamp(dual) == before:
                write(held, self.parameters)

        try:
            try:
                write(means, self.parameters)
                yield
            finally:
                restore()
        finally:  # again, as an interrupt may have come on the way there
            restore()
        if _stamp(dual) != before:
            raise RuntimeError(
                "the dual's weights were changed inside apply(), by a step, recompute_weights or a loaded state: they "
                "were left as they are. Train outside the `with` block"
            )

    def copy_to_parameters(self) -> None:
        """Copy the average to the parameters for good; BCFW refuses to train them further.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        write(self.weights, self.parameters)

    def certify(self, head: Callable[..., Any], dual: DualState, batches: Iterable[Batch]) -> Certificate:
        """Primal, dual and gap of the average by one exact pass; training is not affected.

        The oracle calls are counted; weights, blocks and gap estimates stay as they are. ``primal`` is that of the
        average rounded to the weights' dtype; ``drift`` is the size of this rounding. Every dual value bounds the same
        optimum. Usually the trained weights have the larger dual and the average the smaller primal, so the difference
        of the two is the tightest gap to report.

        Args:
            head: As in :func:`torchssvm.certify`.
            dual: The dual that the average was made with.
            batches: Every training example exactly once.

        Raises:
            ValueError: The average was made with another dual, an example is missing or duplicated, or a batch is not
                valid.
            RuntimeError: Nothing has been averaged; the average has no dual; or the features have moved: call
                ``recompute_weights``, and the average restarts.
        """
        start = clock()
        if self.dual is None:
            raise RuntimeError(
                f"this {type(self).__name__} has no dual, so only its primal is available: use `with average.apply(): "
                f"primal(head, structure, batches, lam)`, or make it by following(dual)"
            )
        if dual is not self.dual:
            raise ValueError("dual is not the DualState that this average was made with")
        means = self.weights
        with self.apply():
            found = pass_of_all_ranks(dual, lambda: exact_pass(head, dual, batches))
            primal = dual.lam / 2 * squared_norm(self.parameters) + found.hinges / dual.num_examples
            rounding = squared_norm(p - mean for p, mean in zip(self.parameters, means, strict=True))
        assert self.loss is not None
        length = squared_norm(means)
        value = dual.objective(self.loss, [mean.to(p.device) for mean, p in zip(self._means, means, strict=True)])
        wrong = dual_exceeds_primal(primal, value, self.parameters[0].dtype, dual.lam * length)
        if wrong or features_moved(dual, found.weights):
            raise RuntimeError(
                "the weights that were averaged are not those of the dual for these examples: if the features have "
                "moved, call recompute_weights and train on; the average restarts"
            )
        value = min(value, primal)  # a dual above the primal is rounding
        dual.oracle_calls += dual.num_examples
        drift = (rounding / length) ** 0.5 if length > 0.0 else rounding**0.5
        return make_certificate(dual, primal, value, drift, start, exact=found.exact, relaxed=found.relaxed)

    def _remember(self) -> None:
        """Note the step and restart counters of the dual."""
        self._steps, self._restarts = (0, 0) if self.dual is None else (self.dual.steps, self.dual.restarts)

    def _check_followed(self) -> None:
        """Restart if the dual's weights were recomputed or loaded since the last step."""
        if self.dual is not None and self.dual.restarts != self._restarts:
            self.reset()

    def _saved(self, how: str) -> dict[str, Any]:
        self._check_followed()
        return super()._saved(how)

    @property
    def _device(self) -> torch.device:
        return self.parameters[0].device

    def _schema(self) -> Schema:
        loss, number = Entry(float), Entry(int, low=0)
        means = [Entry(torch.float64, tuple(p.shape)) for p in self.parameters]
        return {
            "format": version(_FORMAT),
            "kind": Same(type(self).__name__),
            "count": number,
            "weights": Field(Maybe(means, nothing=[]), at="_means"),  # under bounds, v
            "loss": Maybe(loss) if self.dual is None else loss,
            "steps": Noted(Maybe(number), None) if self.dual is None else Noted(number, self.dual.steps),
            "of": Noted(Maybe(int), _name(self.dual)),
            "seal": int,
        }

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        if (state["count"] == 0) != (not state["weights"]):
            raise damaged(f"{where}['count'] is {state['count']}, with {len(state['weights'])} weights")
        if self.dual is None:
            if state["loss"] is not None:
                raise ValueError("the checkpoint's average is of a dual, and this one has none: use following(dual)")
        elif state["steps"] != self.dual.steps:
            raise ValueError(
                f"the checkpoint's average is of step {state['steps']}, and the dual is at step {self.dual.steps}: "
                "load the optimizer's state of the same checkpoint first"
            )
        elif None not in (name := _name(self.dual), state["of"]) and state["of"] != name:
            raise ValueError(
                "the checkpoint's average is of another dual: load the optimizer's state of the same checkpoint first"
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`check_state` accepted; with a dual, restore the optimizer first."""
        super().restore(state)
        self._remember()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(count={self.count})"


def _name(dual: DualState | None) -> int | None:
    """A checksum that identifies the dual: of the losses, because the weights change when features move.

    None where there is no dual, or where a process has some of its losses only.
    """
    return None if dual is None or dual.ranks else seal(dual.loss)


def _stamp(dual: DualState | None) -> tuple[int, float] | None:
    """Changes with a step, ``recompute_weights`` or a loaded state, but not with a certificate."""
    return None if dual is None else (dual.steps, dual.held_norm)


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
