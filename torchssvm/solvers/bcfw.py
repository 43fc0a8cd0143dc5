"""Block-coordinate Frank-Wolfe as a torch optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchssvm.core.arguments import check_parameters
from torchssvm.core.bounds import Box
from torchssvm.core.caller import warn
from torchssvm.core.ordered_sums import add_rows
from torchssvm.core.precision import full_precision
from torchssvm.core.row_sparse import dense, inner_product
from torchssvm.core.schema import Declaration, Entry, Open, Stateful, damaged, groups_like
from torchssvm.dual.state import DualState, check_dual
from torchssvm.solvers.gradient_check import Seen, check_gradient
from torchssvm.steps.line_search import ExactSearch, Line, LineSearch
from torchssvm.steps.proposal import Proposal

_OPTIONS = {"params", "param_names", "lr", "lower", "upper"}  # of a parameter group
_ALLOWED = _OPTIONS | {"initial_lr", "max_lr", "min_lr"}  # schedulers note these in a group whose lr they write


class BCFW(Stateful, Optimizer):
    """Block-coordinate Frank-Wolfe ([B13] Algorithm 4, minibatches and all orders of [G16]): no learning rate.

    A step takes what the backward pass of ``BlockGap`` proposed: ``w -= (gamma/lam) d`` with ``d = grad`` and the gamma
    of the line search; the blocks follow. ``gamma/lam`` is published as ``group["lr"]``. Gradients of several batches
    may be accumulated before a step; where the head gives per-example gradients, the box QP is then solved for all of
    them together, as if they had been one batch.

    The weights are a function of the dual, and a new dual stands for zero weights: weights that are not zero are set to
    zero, with a warning. ``state_dict`` carries the dual state and the weights, exactly.

    Weights may have bounds ([G16] Algorithm 9), as options of their group: ``{"params": [head.transition], "lower":
    0.0}``, also ``upper``; a number, or a tensor that broadcasts to each parameter of the group. The optimizer then
    moves ``v = A alpha``, kept in ``dual.unclipped``, and the head holds ``w = clip(v, lower, upper)``, which is also
    where it starts, at v = 0. Bounds are copied here, and cannot be changed later.

    Args:
        params: All parameters of the head, and nothing else; or groups of them.
        dual: The head's dual state.
        line_search: Chooses gamma; None is :class:`ExactSearch`, which maximises the dual.

    Raises:
        ValueError: The parameters are not those of the dual, a group has an option that BCFW does not know, bounds are
            empty or fit neither the weights nor what the dual was trained with, or the process group has more than one
            member.
        TypeError: ``dual`` is no DualState, ``params`` are no parameters, a bound is neither a number nor a tensor, or
            ``line_search`` cannot be called.
    """

    state_name = "BCFW"

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        dual: DualState,
        *,
        line_search: LineSearch | None = None,
    ) -> None:
        _refuse_distributed()
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
        self._bounds = _bounds(self.param_groups)
        self._rate = 0.0
        overwritten = dual.begin(_box(self.param_groups, dual))
        self.dual = dual
        self.line_search: LineSearch = line_search if line_search is not None else ExactSearch()
        if overwritten:
            warn(
                "the head's weights were not zero, and BCFW starts from those of its dual: they are now "
                + ("zero" if not dual.box.has_bounds else "those nearest to zero within their bounds"),
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the steps that they belong to."""
        if set_to_none:
            for parameter in self.dual.parameters:
                parameter.grad = None
        else:
            super().zero_grad(set_to_none)
        self.dual.discard()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the proposed step, with the exact step size.

        Args:
            closure: Optional; computes the loss and its gradient first.

        Returns:
            What ``closure`` returned, or None.

        Raises:
            TypeError: The weights are not of the dtype that the dual was made for.
            RuntimeError: A parameter group was given options, or a learning rate; nothing was proposed since the last
                step; or the gradient is not the one that the backward pass gave: clipped, rescaled, of low precision,
                mixed with others. Nothing has changed then but that the proposal is dropped.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        _refuse_distributed()
        steps = self.dual.mailbox.take()
        if not steps:
            raise RuntimeError(
                "step() has no proposal: call BlockGap(dual)(head(x), y, index).backward() before every step "
                "(zero_grad() after backward() drops it, and a step takes it only once)"
            )
        if len(set(map(type, steps))) > 1:
            raise RuntimeError("the proposals are of two kinds: call zero_grad() between a compiled loop and BlockGap")
        with full_precision(self.dual.parameters[0].device):
            steps[0].take(self, steps)
        return result

    def take_batches(self, proposals: list[Proposal]) -> None:
        """Check the gradient, and move weights and blocks by what ``BlockGap`` proposed; ``step`` calls this."""
        dual = self.dual
        try:
            self._check_groups()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in dual.parameters]
            gradients = [g.coalesce() if g.is_sparse else g for g in gradients]
            seen: Seen | None = check_gradient(dual, proposals, gradients)
            if len(proposals) > 1 and all(p.gradients is not None and p.block_steps.needs_gradients for p in proposals):
                coefficients, gradients, moving = _merge(proposals, dual)
                largest, seen = 1.0, None
            else:
                moving = [proposal.rows for proposal in proposals]
                coefficients = [proposal.scale * proposal.gammas for proposal in proposals]
                largest = _largest_step(proposals)
            if dual.box.has_bounds:  # the box QP is a model below the dual: the best step may lie beyond its own
                gradients = [dense(g) if bounded else g for g, bounded in zip(gradients, dual.box.bounded, strict=True)]
                largest = _farthest_step(proposals, coefficients)
            if len(proposals) > 1 or len(proposals[0].rows) < len(proposals[0].index):  # an example may be there twice
                dual.storage.check_together([proposal.stored for proposal in proposals], moving)
            value = sum(float(c @ p.values) for c, p in zip(coefficients, proposals, strict=True))
            if dual.recomputed is not None:
                # The step starts there, and the directions were chosen at the held weights: their slope is linear in w.
                moved = zip(dual.box.clip(dual.recomputed), dual.parameters, strict=True)
                value += inner_product([there.to(torch.float64) - w for there, w in moved], gradients)
            gamma = self._move_weights(value, gradients, largest, seen)
            for proposal, coefficient, rows in zip(proposals, coefficients, moving, strict=True):
                self._move_blocks(proposal, gamma * coefficient, rows)
            dual.steps += 1
            dual.visits += len(proposals)
        finally:
            dual.mailbox.notify()

    def _move_weights(self, value: float, gradients: list[Tensor], largest: float, seen: Seen | None = None) -> float:
        """``v -= (gamma/lam) d`` and ``w = clip(v)``, from the v that the last exact pass recomputed if there is one.

        Args:
            value: Derivative of the dual where the step starts.
            gradients: d, for each parameter.
            largest: Largest feasible gamma.
            seen: What was read of weights and gradients, if they are still the same.

        Returns:
            The gamma that the line search found.
        """
        dual = self.dual
        start = dual.unclipped if dual.recomputed is None else dual.recomputed
        squared = None if seen is None else seen.squared_norm
        lam = dual.lam
        line = Line(value, gradients, lam, largest, start, dual.box, dual.moved, dual.num_examples, squared)
        gamma = float(self.line_search(line))
        if not 0.0 <= gamma <= largest:
            raise ValueError(f"{self.line_search} gave the step {gamma}: it must lie between 0 and {largest}")
        rate = gamma / lam
        dual.move_weights(gradients, -rate, None if seen is None else (seen.inner, seen.squared_norm))
        self.show_rate(rate)
        return gamma

    def show_rate(self, rate: float) -> None:
        """Publish ``gamma/lam`` as the ``lr`` of all groups, for callbacks that show one."""
        self._rate = rate
        for group in self.param_groups:
            group["lr"] = rate

    def _move_blocks(self, proposal: Proposal, move: Tensor, rows: Tensor) -> None:
        """Move the blocks of a batch's ``rows`` by ``move`` ``[B]``, and note what was seen of them."""
        dual, index, found, gaps = self.dual, proposal.index, proposal.found, proposal.block_gaps.clamp(min=0.0)
        decoded = found.decoded
        size = index.shape[0]
        proposal.stored.move(move, rows, proposal.change, proposal.parts, proposal.gradients)
        calls = size if decoded is None else int(decoded.sum())
        changes = move * proposal.loss_changes
        if rows.shape[0] < size:
            index, gaps, changes = index[rows], gaps[rows], changes[rows]
            decoded = None if decoded is None else decoded[rows]
        dual.loss.index_add_(0, index, changes)  # of distinct examples
        dual.targets[index] = proposal.targets if rows.shape[0] == size else proposal.targets[rows]
        dual.relaxed |= found.relaxed
        dual.gap_estimates.index_copy_(0, index, gaps)
        seen = gaps if decoded is None else torch.where(decoded, gaps, dual.oracle_gaps[index])
        dual.oracle_gaps.index_copy_(0, index, seen)
        dual.oracle_calls += calls
        dual.cache_hits += size - calls
        dual.moved += rows.shape[0]

    def _check_groups(self) -> None:
        """Groups are dictionaries that anybody can write to, and the dual keeps to the bounds that it began with."""
        for group, (lower, upper) in zip(self.param_groups, self._bounds, strict=True):
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
            if not (_same(group.get("lower"), lower) and _same(group.get("upper"), upper)):
                raise RuntimeError(
                    "the bounds of a parameter group were changed after BCFW was made, and the dual value depends on "
                    "them: make a new DualState and BCFW"
                )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the optimizer is made: its parameters are those of the dual.

        Raises:
            ValueError: Always, after the constructor.
        """
        if hasattr(self, "dual"):
            raise ValueError("params cannot be added to BCFW: they are the parameters of the head that the dual is for")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "dual": self.dual,
            "line_search": self.line_search,
            "_bounds": self._bounds,
            "_rate": self._rate,
        }

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state with the dual state, in tensors and numbers only."""
        return {**super().state_dict(), "dual": self.dual.state_dict()}

    def _schema(self) -> Declaration:
        groups = groups_like(self.param_groups, lr=Entry(float, low=0.0))
        return Open({"dual": self.dual.check_state, "state": dict, "param_groups": groups})

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        groups = state["param_groups"]
        if unknown := sorted({name for group in groups for name in group} - _ALLOWED):
            raise ValueError(f"the checkpoint is of another optimizer: a parameter group has the options {unknown}")
        if len({group["lr"] for group in groups}) != 1:
            raise damaged(f"{where}['param_groups'] do not show one step")

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the dual and the weights to the bit, from a state that :meth:`check_state` has let pass."""
        Optimizer.load_state_dict(self, {name: value for name, value in state.items() if name != "dual"})
        self._rate = state["param_groups"][0]["lr"]
        self.dual.restore(state["dual"])
        for group, bounds in zip(self.param_groups, self._bounds, strict=True):
            # They are equal, weight by weight; groups may have been given in another order.
            for name, bound in zip(("lower", "upper"), bounds, strict=True):
                group.pop(name, None)
                if bound is not None:
                    group[name] = bound


def _bounds(groups: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Lower and upper bounds of each group, as they were given."""
    return [(group.get("lower"), group.get("upper")) for group in groups]


def _box(groups: list[dict[str, Any]], dual: DualState) -> Box:
    """The bounds of each of the head's parameters."""
    of = {id(p): bounds for group, bounds in zip(groups, _bounds(groups), strict=True) for p in group["params"]}
    return Box(dual.parameters, [of[id(p)] for p in dual.parameters])


def _same(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


def _merge(proposals: list[Proposal], dual: DualState) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Choose the steps of all accumulated batches together, as for one batch; examples drawn again do not count.

    Returns:
        The coefficient of every row, the gradient, and the rows that count.
    """
    seen: set[int] = set()
    keep: list[Tensor] = []
    for proposal in proposals:
        fresh = [row for row in proposal.rows.tolist() if int(proposal.index[row]) not in seen]
        seen.update(proposal.index[fresh].tolist())
        keep.append(torch.tensor(fresh, dtype=torch.int64, device=proposal.index.device))
    stacked = [
        torch.cat(
            [g if len(g) == len(rows) else g.index_select(0, rows) for g, rows in zip(several, keep, strict=True)]
        )
        for several in zip(*(p.gradients or [] for p in proposals), strict=True)
    ]
    stacked = [g.coalesce() if g.is_sparse else g for g in stacked]
    values = torch.cat([p.values[rows] for p, rows in zip(proposals, keep, strict=True)])
    weight = 1.0 / (dual.lam * dual.num_examples**2)
    gammas, combined, _ = proposals[0].block_steps.solve(stacked, values, weight, 1.0 / dual.num_examples)
    coefficients = [
        torch.zeros_like(proposal.gammas).index_put_((rows,), part)
        for proposal, rows, part in zip(proposals, keep, gammas.split([len(rows) for rows in keep]), strict=True)
    ]
    return coefficients, combined, keep


def _largest_step(proposals: list[Proposal]) -> float:
    """The step that takes some block to the end of its direction, where all batches have the gammas that they chose.

    A batch whose loss was scaled by c moves by c of its direction at step 1. An example in several batches adds up.
    """
    if len(proposals) == 1:
        return 1.0 / proposals[0].scale
    scales = [torch.full_like(p.gammas[p.rows], p.scale) for p in proposals]
    index = torch.cat([p.index[p.rows] for p in proposals])
    _, inverse = index.unique(return_inverse=True)
    shares = add_rows(torch.zeros_like(torch.cat(scales)), inverse, torch.cat(scales))
    return 1.0 / float(shares.max())


def _farthest_step(proposals: list[Proposal], coefficients: list[Tensor]) -> float:
    """The step that takes some block to the end of its direction, where blocks move by ``coefficients`` at step 1."""
    index = torch.cat([p.index[p.rows] for p in proposals])
    moves = torch.cat([c[p.rows] for p, c in zip(proposals, coefficients, strict=True)])
    _, inverse = index.unique(return_inverse=True)
    most = float(add_rows(torch.zeros_like(moves), inverse, moves).max())
    return 1.0 / most if most > 0.0 else 1.0


def _refuse_distributed() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        if size > 1:
            raise ValueError(f"world size {size}: BCFW runs in one process for now, so that every block has one owner")
