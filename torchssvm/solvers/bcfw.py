"""Block-coordinate Frank-Wolfe as a torch optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_parameters
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.operators import full_precision
from torchssvm.core.packages import warn
from torchssvm.core.problem import Box
from torchssvm.core.schema import Declaration, Entry, Schema, StatefulOptimizer, damaged, groups_like
from torchssvm.distributed.exchange import Exchange, Figures, refusing_on_all
from torchssvm.dual.checks import check_dual
from torchssvm.dual.state import DualState
from torchssvm.solvers.proposal import GradientProducts, Move, Proposal, check_move, record
from torchssvm.steps.line_search import ExactSearch, Line, LineSearch

_OPTIONS = {"params", "param_names", "lr", "lower", "upper"}  # of a parameter group
_ALLOWED = _OPTIONS | {"initial_lr", "max_lr", "min_lr"}  # schedulers note these in a group whose lr they write


class BCFW(StatefulOptimizer):
    """Block-coordinate Frank-Wolfe ([B13] Algorithm 4, with the minibatches and orders of [G16]): no learning rate.

    A step is the one that the backward pass of ``BlockGap`` proposed: ``w -= (gamma/lam) d``, with ``d = grad`` and the
    gamma of the line search; the blocks move along. ``gamma/lam`` is published as ``group["lr"]``. Gradients of several
    batches may be accumulated before a step. If the head gives per-example gradients, the box QP is then solved for all
    batches together, as for one batch.

    The weights are a function of the dual, and those of a new dual are zero: non-zero weights are set to zero, with a
    warning. ``state_dict`` contains the dual state and the weights, exactly.

    Weights may have bounds ([G16] Algorithm 9), as options of their group: ``{"params": [head.transition], "lower":
    0.0}``, also ``upper``; a number, or a tensor that broadcasts to each parameter of the group. The optimizer then
    moves ``v = A alpha``, kept in ``dual.unclipped`` and initially zero, and the head holds
    ``w = clip(v, lower, upper)``. Bounds are copied and cannot be changed later.

    Args:
        params: Exactly the parameters of the head, or groups of them.
        line_search: Chooses gamma; None is :class:`ExactSearch`, which maximises the dual.

    Raises:
        ValueError: The parameters are not those of the dual, a group has an unknown option, bounds are empty, do not
            fit the weights or differ from those that the dual was trained with.
        TypeError: ``dual`` is not a DualState, ``params`` are not parameters, a bound is neither a number nor a tensor,
            or ``line_search`` cannot be called.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> dual = DualState.for_head(head, num_examples=30, lam=0.1)
        >>> loss, optimizer = BlockGap(dual), BCFW(head.parameters(), dual)
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     loss(head(points), classes, torch.arange(30)).backward()
        ...     optimizer.step()
        >>> certify(head, dual, in_order(data)).relative_gap < 0.1
        True
    """

    state_name = "BCFW"

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        dual: DualState,
        *,
        line_search: LineSearch | None = None,
    ) -> None:
        if line_search is not None and (isinstance(line_search, type) or not callable(line_search)):
            raise TypeError(f"line_search={line_search} must be an object such as ExactSearch()")
        check_dual(dual)
        check_parameters(params, " or groups of them, and then the dual")
        super().__init__(params, {"lr": 0.0})
        for group in self.param_groups:
            if unknown := group.keys() - _OPTIONS:
                raise ValueError(f"params has a group with unknown options {sorted(unknown)}")
            if group["lr"] != 0.0:
                raise ValueError(
                    f"params has a group with lr={group['lr']}: BCFW has no learning rate, it finds the step"
                )
        given = {id(p) for group in self.param_groups for p in group["params"]}
        owned = {id(p) for p in dual.parameters}
        if given != owned:
            missing = [list(p.shape) for p in dual.parameters if id(p) not in given]
            raise ValueError(
                f"params must be the head's {len(owned)} parameters, those that the dual was made for: pass "
                f"head.parameters(). {len(missing)} of them are missing, of shapes {missing}, and "
                f"{len(given - owned)} others are given"
            )
        self._bounds = [(group.get("lower"), group.get("upper")) for group in self.param_groups]
        self._rate = 0.0
        of = {id(p): own for group, own in zip(self.param_groups, self._bounds, strict=True) for p in group["params"]}
        overwritten = dual.begin(Box(dual.parameters, [of[id(p)] for p in dual.parameters]))
        self.dual = dual
        self._exchange = Exchange(dual.ranks, dual.parameters) if dual.ranks else None
        self.line_search: LineSearch = line_search if line_search is not None else ExactSearch()
        if overwritten:
            warn(
                "the head's weights were not zero, and BCFW starts from those of its dual: they are now "
                + ("zero" if not dual.box.has_bounds else "those nearest to zero within their bounds")
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients and discard the proposed steps."""
        if set_to_none:
            for parameter in self.dual.parameters:
                parameter.grad = None
        else:
            super().zero_grad(set_to_none)
        self.dual.discard()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the proposed step, with the step size of the line search.

        Args:
            closure: Called first, if given, to compute the loss and its gradient.

        Returns:
            The result of ``closure``, or None.

        Raises:
            TypeError: The weights have another dtype than when the dual was made.
            RuntimeError: A parameter group was given options or a learning rate; nothing was proposed since the last
                step; accumulated batches come from losses with different ``block_steps``; or the gradient is not the
                one from the backward pass: clipped, rescaled, of low precision, mixed with others. The proposal is
                then discarded, and nothing else changes. Of several processes, the others raise RankError.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        steps = self.dual.mailbox.take()
        with refusing_on_all(self.dual.ranks, self.dual.parameters):
            if not steps:
                raise RuntimeError(
                    "step() has no proposal: call BlockGap(dual)(head(x), y, index).backward() before every step "
                    "(zero_grad() after backward() drops it, and a step takes it only once)"
                )
            if len(set(map(type, steps))) > 1:
                raise RuntimeError(
                    "the proposals are of two kinds: call zero_grad() between a compiled loop and BlockGap"
                )
            self._check_unchanged()
        with full_precision(self.dual.parameters[0].device):
            batches: list[Proposal] = [step for step in steps if isinstance(step, Proposal)]
            if batches:
                self._take_batches(batches)
            else:
                steps[0].take(self, steps)
        return result

    def _take_batches(self, proposals: list[Proposal]) -> None:
        """Check the gradient, and move weights and blocks as ``BlockGap`` proposed."""
        dual = self.dual
        # An exchange with other processes may wait for long, and can be interrupted.
        with undisturbed() if self._exchange is None else nullcontext():
            try:
                if self._exchange is None:
                    move = check_move(dual, proposals)
                    gamma = self._move_weights(move.value, move.gradients, move.largest, move.seen)
                    move.take(dual, gamma)
                    dual.count(*move.counts())
                    dual.visits += len(proposals)
                else:
                    self._take_together(self._exchange, proposals)
            finally:
                dual.mailbox.notify()

    def _take_together(self, exchange: Exchange, proposals: list[Proposal]) -> None:
        """The step of all ranks, along ``sum_p beta_p d_p``: the blocks of rank p move by gamma beta_p."""
        dual, moves = self.dual, list[Move]()

        def propose() -> tuple[list[Tensor], Figures]:
            moves.append(check_move(dual, proposals))
            return moves[0].gradients, moves[0].figures(dual)

        found = exchange(propose, dual.lam, farthest=dual.box.has_bounds)
        figures = found.figures
        with undisturbed():
            gamma = self._move_weights(figures.value, found.gradients, figures.largest, squared_norm=found.squared_norm)
            moves[0].take(dual, gamma * found.beta)
            record(dual, found, gamma)
            dual.visits += len(proposals)

    def _move_weights(
        self,
        value: float,
        gradients: list[Tensor],
        largest: float,
        seen: GradientProducts | None = None,
        squared_norm: float | None = None,
    ) -> float:
        """``v -= (gamma/lam) d`` and ``w = clip(v)``, from ``dual.recomputed`` if that is not None; returns gamma.

        ``value`` is the derivative of the dual along ``gradients``, d, at the start; ``largest`` the largest feasible
        gamma. ``seen`` has the products of weights and d, if they are still the same, and ``squared_norm`` is
        ``|d|^2``, if known.
        """
        dual = self.dual
        start = dual.unclipped if dual.recomputed is None else dual.recomputed
        squared = squared_norm if seen is None else seen.squared_norm
        lam = dual.lam
        line = Line(value, gradients, lam, largest, start, dual.box, dual.moved, dual.num_examples, squared)
        gamma = float(self.line_search(line))
        if not 0.0 <= gamma <= largest:
            raise ValueError(f"{self.line_search} gave the step {gamma}: it must lie between 0 and {largest}")
        rate = gamma / lam
        known = None if seen is None else (seen.size**2, seen.inner, seen.squared_norm)
        dual.move_weights(gradients, -rate, known)
        self.show_rate(rate)
        return gamma

    def show_rate(self, rate: float) -> None:
        """Publish ``gamma/lam`` as the ``lr`` of all groups, for callbacks that log it."""
        self._rate = rate
        for group in self.param_groups:
            group["lr"] = rate

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse further groups: the parameters are those of the dual.

        Raises:
            ValueError: Always, after the constructor.
        """
        if hasattr(self, "dual"):
            raise ValueError("params cannot be added to BCFW: they are the parameters of the head that the dual is for")
        super().add_param_group(param_group)

    def _check_unchanged(self) -> None:
        """Raise RuntimeError if options of groups were changed since they were given; ``lr`` is only published."""
        for group, bounds in zip(self.param_groups, self._bounds, strict=True):
            if not group.keys() <= _ALLOWED:
                raise RuntimeError(
                    f"a parameter group was given {sorted(group.keys() - _ALLOWED)} after BCFW was made, and BCFW has "
                    "no such options: the regularisation is the dual's lam, and the step size is found. Delete them "
                    "from the group"
                )
            if group["lr"] != self._rate and "initial_lr" not in group:
                raise RuntimeError(
                    f"a parameter group was given lr={group['lr']} after BCFW was made: BCFW has no learning rate, it "
                    f"finds the step, and lr only shows the last one, {self._rate}. Leave lr as it is"
                )
            for now, given in zip((group.get("lower"), group.get("upper")), bounds, strict=True):
                if now is not given and (isinstance(now, Tensor) or isinstance(given, Tensor) or now != given):
                    raise RuntimeError(
                        "the bounds of a parameter group were changed after BCFW was made, and the dual value depends "
                        "on them: make a new DualState and BCFW"
                    )

    def __getstate__(self) -> dict[str, Any]:
        own = ("dual", "line_search", "_exchange", "_bounds", "_rate")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def _own_schema(self) -> Schema:
        return {"dual": self.dual}

    def _groups(self) -> Declaration:
        return groups_like(self.param_groups, lr=Entry(float, low=0.0))

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        groups = state["param_groups"]
        if unknown := sorted({name for group in groups for name in group} - _ALLOWED):
            raise ValueError(f"the checkpoint is of another optimizer: a parameter group has the options {unknown}")
        if len({group["lr"] for group in groups}) != 1:
            raise damaged(f"{where}['param_groups'] do not show one step")

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the same bits of dual and weights from a state that passed :meth:`check_state`."""
        super().restore(state)
        self._rate = state["param_groups"][0]["lr"]
        for group, bounds in zip(self.param_groups, self._bounds, strict=True):
            # The bounds are equal weight by weight, but groups may have another order.
            for name, bound in zip(("lower", "upper"), bounds, strict=True):
                group.pop(name, None)
                if bound is not None:
                    group[name] = bound
