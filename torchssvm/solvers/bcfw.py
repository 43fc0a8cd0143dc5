"""Block-coordinate Frank-Wolfe as a torch optimizer, which takes the steps of ``block_coordinate.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_object, check_parameters
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.packages import warn
from torchssvm.core.precision import full_precision, lowered_advice
from torchssvm.core.problem import Box
from torchssvm.core.row_sparse import dense, flat, products, squared_norm
from torchssvm.core.states import Numbers, Stateful, StatefulOptimizer, damaged
from torchssvm.distributed.exchange import Exchange, Figures, Round, refusing_on_all
from torchssvm.dual.checks import check_dual
from torchssvm.dual.state import DualState
from torchssvm.solvers.block_coordinate import Direction, Proposal, counts, find_gamma, join, move_blocks, take
from torchssvm.steps.line_search import ExactSearch, LineSearch

_OPTIONS = {"params", "param_names", "lr", "lower", "upper"}  # of a parameter group
_ALLOWED = _OPTIONS | {"initial_lr", "max_lr", "min_lr"}  # schedulers note these in a group whose lr they write


ADVICE = "do not clip, scale or add to what BlockGap's backward() left, and call zero_grad() before every forward pass"


class BCFW(StatefulOptimizer):
    """Block-coordinate Frank-Wolfe ([B13] Algorithm 4, with the minibatches and orders of [G16]): no learning rate.

    A step is the one that the backward pass of ``BlockGap`` proposed: ``w -= (gamma/lam) d``, with ``d = grad`` and the
    gamma of the line search; the blocks move along. ``gamma/lam`` is published as ``group["lr"]``. Gradients of several
    batches may be accumulated before a step. If the head gives per-example gradients, the box QP is then solved for all
    batches together, as for one batch.

    The weights are a function of the dual, and a new dual has zero weights: non-zero weights are set to zero, with a
    warning. ``state_dict`` contains the dual state and the weights, exactly.

    Weights may have bounds ([G16] Algorithm 9), as options of their group: ``{"params": [head.transition], "lower":
    0.0}``, also ``upper``; a number, or a tensor that broadcasts to each parameter of the group. The optimizer then
    moves ``v = A alpha``, kept in ``dual.unclipped`` and initially zero, and the head holds
    ``w = clip(v, lower, upper)``. Bounds are copied and cannot be changed later.

    Args:
        params: Exactly the parameters of the head, or groups of them.
        line_search: Chooses gamma; None is :class:`ExactSearch`, which maximises the dual.

    Raises:
        ValueError: The parameters are not the dual's, a group has an unknown option, bounds are empty, do not
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
        if line_search is not None:
            check_object(line_search, "line_search", "__call__", "ExactSearch()")
        check_dual(dual)
        check_parameters(params, " or groups of them, and then the dual")
        super().__init__(params, {"lr": 0.0})
        for group in self.param_groups:
            if unknown := (group.keys() - _OPTIONS) | ({"lr"} if group["lr"] != 0.0 else set()):
                raise ValueError(
                    f"params has a group with unknown options {sorted(unknown)}: give lower and upper alone"
                )
        given = {id(p) for group in self.param_groups for p in group["params"]}
        owned = {id(p) for p in dual.parameters}
        if given != owned:
            raise ValueError(
                f"params must be the {len(owned)} parameters of the dual, but {len(owned - given)} are missing and "
                f"{len(given - owned)} are others: pass head.parameters()"
            )
        self._bounds = [(group.get("lower"), group.get("upper")) for group in self.param_groups]
        self._rate = 0.0
        of = {
            id(p): bounds
            for group, bounds in zip(self.param_groups, self._bounds, strict=True)
            for p in group["params"]
        }
        overwritten = dual.begin(Box(dual.parameters, [of[id(p)] for p in dual.parameters]))
        self.dual = dual
        self._exchange = Exchange(dual.ranks, dual.parameters) if dual.ranks else None
        self.line_search: LineSearch = line_search if line_search is not None else ExactSearch()
        if overwritten:
            warn(
                "the head's weights were not zero; BCFW has set them to the dual's, which are "
                + ("zero" if not dual.box.has_bounds else "nearest to zero within their bounds")
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
                step; accumulated batches come from losses with different ``block_steps``; or the gradient differs from
                the backward pass: clipped, rescaled, of low precision, mixed with others. The proposal is then
                discarded, and nothing else changes. Of several processes, the others raise RankError.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        # A step is done or not when an interrupt is let in; an exchange with other processes may wait for long.
        with full_precision(self.dual.parameters[0].device), nullcontext() if self._exchange else undisturbed():
            steps = self.dual.mailbox.take()
            with refusing_on_all(self.dual.ranks, self.dual.parameters):
                if not steps:
                    raise RuntimeError("step() has no proposal: call backward() of BlockGap's loss before every step")
                if len(set(map(type, steps))) > 1:
                    raise RuntimeError("two kinds of proposals: call zero_grad() between a compiled loop and BlockGap")
                self._check_unchanged()
            batches: list[Proposal] = [step for step in steps if isinstance(step, Proposal)]
            if not batches:
                steps[0].take(self, steps)
            elif self._exchange is None:
                self._step(batches)
            else:
                self._step_together(self._exchange, batches)
        return result

    def _step(self, batches: list[Proposal]) -> None:
        """The step of this process alone."""
        try:
            self.show_rate(take(self.dual, batches, self._direction(batches), self.line_search) / self.dual.lam)
        finally:
            self.dual.mailbox.notify()

    def _step_together(self, exchange: Exchange, batches: list[Proposal]) -> None:
        """The step of all ranks, along ``sum_p beta_p d_p``: the blocks of rank p move by gamma beta_p."""
        dual, proposed = self.dual, list[Any]()

        def propose() -> tuple[list[Tensor], Figures]:
            d = self._direction(batches)
            proposed[:] = d.moves, d.rows
            change, gaps = 0.0, dual.gap_estimates.clone()
            for batch, move, rows in zip(batches, d.moves, d.rows, strict=True):
                change += float((move * batch.loss_changes)[rows].sum())
                gaps[batch.index[rows]] = batch.block_gaps.clamp(min=0.0)[rows]
            loss, gap = float(dual.loss.sum()), float(gaps.sum())
            return d.gradients, Figures(d.value, d.largest, loss, change, gap, *counts(batches, d.rows))

        try:
            # An exchange may wait for long, and can be interrupted.
            combined = exchange(propose, dual.lam, farthest=dual.box.has_bounds)
            figures = combined.figures
            with undisturbed():
                gamma = find_gamma(
                    dual, self.line_search, combined.gradients, figures.value, figures.largest, combined.squared_norm
                )
                self.show_rate(gamma / dual.lam)
                dual.move_weights(combined.gradients, -gamma / dual.lam)
                for batch, move, some in zip(batches, *proposed, strict=True):
                    move_blocks(dual, batch, gamma * combined.beta * move, some)
                record(dual, combined, gamma)
                dual.visits += len(batches)
        finally:
            dual.mailbox.notify()

    def _direction(self, batches: list[Proposal]) -> Direction:
        """The direction of the batches, whose gradient is checked; changes nothing."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.dual.parameters]
        gradients = [g.coalesce() if g.is_sparse else g for g in gradients]
        products, value = check_gradient(self.dual, batches, gradients)
        return join(self.dual, batches, gradients, value, products)

    def show_rate(self, rate: float) -> None:
        """Publish ``gamma/lam`` as the ``lr`` of all groups, for callbacks that log it."""
        self._rate = rate
        for group in self.param_groups:
            group["lr"] = rate

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse further groups.

        Raises:
            ValueError: Always, after the constructor.
        """
        if hasattr(self, "dual"):
            raise ValueError("params cannot be added: BCFW has exactly the parameters of its dual")
        super().add_param_group(param_group)

    def _check_unchanged(self) -> None:
        """Raise RuntimeError if options of groups have changed; ``lr`` is only published."""
        for group, bounds in zip(self.param_groups, self._bounds, strict=True):
            changed = group.keys() - _ALLOWED
            if group["lr"] != self._rate and "initial_lr" not in group:
                changed.add("lr")
            for name, given in zip(("lower", "upper"), bounds, strict=True):
                now = group.get(name)
                if now is not given and (isinstance(now, Tensor) or isinstance(given, Tensor) or now != given):
                    changed.add(name)
            if changed:
                raise RuntimeError(f"param_groups were given other {sorted(changed)}: leave groups as BCFW made them")

    def __getstate__(self) -> dict[str, Any]:
        names = ("dual", "line_search", "_exchange", "_bounds", "_rate")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}

    def _nested(self) -> dict[str, Stateful]:
        return {"dual": self.dual}

    def _check_own(self, state: dict[str, Any]) -> None:
        super()._check_own(state)
        groups = state["param_groups"]
        known = {name for group in groups for name in group} <= _ALLOWED
        if not known or len({group["lr"] for group in groups}) != 1 or not Numbers(float, low=0.0).fit(groups[0]["lr"]):
            raise damaged(f"{self.state_name}['param_groups']")

    def _restore_own(self, state: dict[str, Any]) -> None:
        super()._restore_own(state)
        self._rate = state["param_groups"][0]["lr"]
        for group, bounds in zip(self.param_groups, self._bounds, strict=True):
            # The bounds are equal weight by weight, but groups may have another order.
            for name, bound in zip(("lower", "upper"), bounds, strict=True):
                group.pop(name, None)
                if bound is not None:
                    group[name] = bound


def check_gradient(
    dual: DualState, batches: list[Proposal], gradients: list[Tensor]
) -> tuple[tuple[float, float, float], float]:
    """Raise an error unless the proposals gave this finite gradient and the weights are as after the last step.

    The backward pass gave ``reference`` times the upstream gradient: clipped, rescaled, foreign and imprecise gradients
    differ from it. Returns ``|w|^2``, ``<w, d>`` and ``|d|^2``, and the derivative of the dual along d.
    """
    for batch in batches:
        if batch.version != dual.version:
            raise RuntimeError("the dual has changed since the backward pass: call head and BlockGap after every step")
    dual.check_dtype()
    size, inner, square, distance, length, value = _read(dual, batches, gradients)
    for batch in batches:
        if not (math.isfinite(batch.scale) and batch.scale > 0.0):
            raise RuntimeError(f"the loss was multiplied by {batch.scale}: use a positive, finite factor")
    if dual.recomputed is None and dual.norm_changed(size):
        raise RuntimeError(f"the weights have changed (norm {size:.6g}, was {dual.held_norm:.6g}): load BCFW's state")
    rounding = 200 * torch.finfo(dual.dtype).eps * dual.lam * size * max(batch.scale for batch in batches)
    if not math.isfinite(square) or not distance <= 1e-4 * max(length, math.sqrt(square)) + rounding:
        advice = ADVICE + lowered_advice(dual.parameters[0].device)
        raise RuntimeError(f"the gradient differs by {distance:.3g} from the backward pass ({length:.3g}): {advice}")
    return (size**2, inner, square), value


def _read(
    dual: DualState, batches: list[Proposal], gradients: list[Tensor]
) -> tuple[float, float, float, float, float, float]:
    """``|w|``, ``<w, d>``, ``|d|^2``, the distance of d from the reference, whose length, and the derivative along d.

    For one batch with dense gradients all numbers come from a device in one copy, the upstream gradient too.
    """
    first = batches[0]
    if len(batches) == 1 and not any(t.is_sparse for t in (*gradients, *first.reference)):
        every = flat([*dual.parameters, *gradients, *first.reference]).view(3, -1)
        along = (first.values @ first.gammas).view(1), first.factor.to(torch.float64).view(1)
        numbers = torch.cat([(every @ every.t()).flatten(), *along]).tolist()
        squared_size, inner, _, _, square, shared, _, _, told, value, first.scale = numbers
        distance = math.sqrt(max(square - 2 * first.scale * shared + first.scale**2 * told, 0.0))
        return math.sqrt(squared_size), inner, square, distance, first.scale * math.sqrt(told), first.scale * value
    table = torch.stack([torch.stack([b.values @ b.gammas, b.factor.to(torch.float64)]) for b in batches]).tolist()
    for batch, (_, factor) in zip(batches, table, strict=True):
        batch.scale = factor
    value = sum(slope * scale for slope, scale in table)
    scaled = [[batch.scale * part for part in batch.reference] for batch in batches]
    expected = [sum(parts[1:], parts[0]) for parts in zip(*scaled, strict=True)]
    compared = gradients
    if any(a.is_sparse != b.is_sparse for a, b in zip(gradients, expected, strict=True)):  # sparse plus dense is dense
        compared, expected = [dense(g) for g in gradients], [dense(t) for t in expected]
    large = dual.is_large and not dual.written_to() and any(g.is_sparse for g in gradients)
    size = dual.held_norm if large else math.sqrt(squared_norm(dual.parameters))
    inner, square = products(dual.parameters, gradients)
    difference = [a - b for a, b in zip(compared, expected, strict=True)]
    return size, inner, square, math.sqrt(squared_norm(difference)), math.sqrt(squared_norm(expected)), value


def record(dual: DualState, combined: Round, step: float) -> None:
    """Count a step of all ranks, and keep the sums of their losses and gaps."""
    figures = combined.figures
    dual.count(figures.calls, figures.hits, figures.moved)
    dual.keep_sums(figures.loss + step * figures.loss_change, figures.gap)
    dual.rho = combined.rho
