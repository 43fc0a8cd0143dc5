"""Decisions that minimise linear costs, trained by their regret: SPO+ as a structured hinge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import check_readable, check_several, check_tensor, describe, row_name
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.structure import Decoding, Structure, fit, reject_rows
from torchssvm.structures.decisions.oracle import DecisionOracle, FunctionOracle

_ROUNDING = 1e-8  # of the costs at stake: what solvers and sums may err
_VALUE = 1e-4  # of all costs: what a value may err, of a solver in float32 too


class Decision(NamedTuple):
    """The target of a decision: what is best under the true costs, and these costs.

    Attributes:
        y: ``[B, D]`` int64 (float64 where variables are continuous), optimal for ``cost``.
        cost: ``[B, D]``, the true costs, of which known ones are a part; training takes them in float64.
        fixed: ``[B, D]`` float64, the known part of the predicted costs; :meth:`Decisions.check_target` puts it here.

    Example:
        >>> structure, cost = Decisions(ShortestPath.grid(2, 2)), torch.tensor([[1.0, 4.0, 1.0, 1.0]])
        >>> target = Decision(y=torch.tensor([[1, 0, 1, 0]]), cost=cost)  # or structure.target(cost)
        >>> structure.loss(torch.tensor([[0, 1, 0, 1]]), target)
        tensor([3.], dtype=torch.float64)
    """

    y: Tensor
    cost: Tensor
    fixed: Tensor | None = None


class Decisions(Structure):
    r"""Decisions y that minimise (or maximise) predicted costs, with the regret as the loss: predict, then optimise.

    Potentials: the predicted costs ``[B, D]``. :class:`DecisionPotentials` carry costs that are known, and what else
    the oracle takes, such as right-hand sides. Labelings: decisions ``[B, D]`` int64, or float64 where the oracle
    returns floats. Targets: :class:`Decision`, the optimal decision and the true costs; :meth:`target` makes them.

    The loss is the regret, ``c'y - c'y*`` (``c'y* - c'y`` where c is maximised): what the decision costs under the true
    costs c more than the best one. Its structured hinge is SPO+ of [Elmachtoub and Grigas 2022]. With predicted costs
    ``c_hat``, SPO+ is

        ``max_y (c - 2 c_hat)'y + 2 c_hat'y* - c'y*``.

    Put ``score(y) = -2 c_hat'y`` and ``L(y) = c'(y - y*)``; this is ``max_y L(y) + score(y) - score(y*)``. So the
    parts are ``-2 y`` (``+2 y`` where costs are maximised), and the potentials are the predicted costs themselves: a
    head, or a network below it, predicts costs and knows nothing of the sign. ``delta = -c / 2`` in both cases: the
    max oracle of training solves the problem with costs ``c_hat - c / 2``, of any sign.

    With known costs f, decisions minimise ``c_hat + f``, and ``c`` holds f too. The potentials stay linear in the
    weights: f is counted with the loss, which is then ``(c - 2 f)'(y - y*)`` and may be negative; its maximum over y
    with the score is not. A solution that is known beforehand, from which the weights shall not move far, is such an f.

    Args:
        oracle: A :class:`DecisionOracle` such as ``ShortestPath.grid(5, 5)``, or a function from costs ``[B, D]``
            (a float64 array) to ``(y, value, bound)``, as :meth:`DecisionOracle.solve` returns them.
        num_costs: D, if ``oracle`` is a function.
        maximize: Whether a function maximises.

    Raises:
        TypeError: ``oracle`` is neither, or it is an oracle and ``num_costs`` or ``maximize`` are given.

    Example:
        >>> from torchssvm.structures.decisions import ShortestPath
        >>> structure = Decisions(ShortestPath.grid(2, 2))
        >>> structure.decode(torch.tensor([[3.0, 1.0, 2.0, 1.0]]))  # right, down, down, right
        tensor([[0, 1, 0, 1]])
        >>> truth = structure.target(torch.tensor([[1.0, 2.0, 2.0, 2.0]]))
        >>> structure.loss(torch.tensor([[0, 1, 0, 1]]), truth)
        tensor([1.], dtype=torch.float64)
    """

    not_plain = "decisions are found by solvers outside of torch"

    pairwise_if_few = True

    def __init__(
        self,
        oracle: DecisionOracle | Callable[..., Any],
        *,
        num_costs: int | None = None,
        maximize: bool | None = None,
    ) -> None:
        if isinstance(oracle, DecisionOracle):
            if num_costs is not None or maximize is not None:
                raise TypeError(f"num_costs and maximize are for functions; oracle={oracle!r} has its own")
        elif not callable(oracle) or isinstance(oracle, type):
            raise TypeError(
                f"oracle={oracle!r} must be a DecisionOracle such as ShortestPath.grid(5, 5), or a function"
            )
        elif num_costs is None:
            raise TypeError(f"num_costs=None, and oracle={oracle!r} is a function: give the number of its costs")
        else:
            oracle = FunctionOracle(oracle, num_costs, False if maximize is None else maximize)
        self.oracle = oracle
        self.quick_to_decode = oracle.quick
        self._factor = 2.0 if oracle.maximize else -2.0
        self.state_parts = 0.0, self._factor

    def constructor_arguments(self) -> dict[str, Any]:
        """Constructor arguments that are not attributes of the same name, to rebuild equal decisions."""
        return {"num_costs": None, "maximize": None}

    @property
    def num_costs(self) -> int:
        """D."""
        return self.oracle.num_costs

    def argmax(self, potentials: Potentials) -> Decoding:
        """The oracle's decision under the predicted and the known costs."""
        costs, fixed = potentials.single.detach().to(torch.float64), _fixed(potentials)
        return self._solve(costs if fixed is None else costs + fixed, potentials, None)

    def augmented_argmax(self, potentials: Potentials, target: Decision) -> Decoding:
        """The oracle's decision under ``c_hat - c / 2``; the target where it is better."""
        delta, constant = self.loss_potentials(target)
        found = self._solve(potentials.single.detach().to(torch.float64) + delta, potentials, target)
        value, bound = found.value, found.bound
        assert value is not None
        return found._replace(value=value + constant, bound=None if bound is None else bound + constant)

    def signed(self, name: str) -> bool:
        """Costs that are minimised count with a minus."""
        return self._factor < 0.0

    def parts(self, labeling: Tensor | Decision) -> Tensor:
        """``-2 y``, or ``+2 y`` where costs are maximised: ``[B, D]`` float64."""
        return self._factor * _decision(labeling).to(torch.float64)

    def difference(self, labeling: Tensor | Decision, target: Decision, potentials: Potentials) -> Parts:
        """Subtracted in float64: decisions that are close to each other keep their digits."""
        ((name, tensor),) = potentials.tensors.items()
        return {name: (self.parts(labeling) - self.parts(target)).to(tensor.dtype)}

    def relative_scores(self, labelings: Tensor, target: Decision, potentials: Potentials) -> Tensor:
        """By a matrix product in float64, ``[B, C]``."""
        costs = potentials.single.detach().to(torch.float64).unsqueeze(2)
        everything = torch.cat([labelings, target.y.unsqueeze(1)], 1).to(torch.float64)
        total = self._factor * (everything @ costs).squeeze(2)
        return total[:, :-1] - total[:, -1:]

    def mean_difference(self, labelings: Tensor, mass: Tensor, target: Decision, potentials: Potentials) -> Parts:
        """By a matrix product of differences in float64: what is left may be small beside what is subtracted."""
        ((name, tensor),) = potentials.tensors.items()
        differences = (labelings - target.y.unsqueeze(1)).to(torch.float64)
        total = (mass.to(torch.float64).unsqueeze(1) @ differences).squeeze(1)
        return {name: (self._factor * total).to(tensor.dtype)}

    def loss(self, labeling: Tensor | Decision, target: Decision) -> Tensor:
        """The regret, ``[B]`` float64; with known costs f, ``(c - 2 f)'(y - y*)`` or its opposite.

        Raises:
            ValueError: A regret is negative: the target is not optimal for its costs.
        """
        found = self.regret(labeling, target)
        if target.fixed is None:
            return found
        moved = _decision(labeling).to(torch.float64) - target.y.to(torch.float64)
        return found + self._factor * (moved * target.fixed).sum(1)

    def task_loss(self, labeling: Tensor | Decision, target: Decision) -> Tensor:
        """The regret, ``[B]`` float64, whether or not costs are known."""
        return self.regret(labeling, target)

    def known_scores(self, potentials: Potentials) -> Parts | None:
        """The known costs."""
        fixed = _fixed(potentials)
        return None if fixed is None else dict.fromkeys(potentials.tensors, fixed)

    def largest_gain(self, potentials: Potentials, target: Decision) -> Tensor:
        """As for every structure, from the predicted costs alone; an oracle short of time may return the target."""
        costs = potentials.single.detach().to(torch.float64)
        found = self._solve(costs, potentials, target)
        reached = found.value if found.bound is None else found.bound
        assert reached is not None
        return reached - self._factor * (target.y.to(torch.float64) * costs).sum(1)

    def regret(self, labeling: Tensor | Decision, target: Decision) -> Tensor:
        """What decisions cost more than the target's, under the true costs: ``[B]`` float64.

        Negative regrets that rounding explains (1e-8 of the costs at stake) are 0.

        Raises:
            ValueError: A regret is negative: the target is not optimal for its costs.
        """
        y, best = _decision(labeling).to(torch.float64), target.y.to(torch.float64)
        cost = target.cost.to(torch.float64)
        regret = -0.5 * self._factor * ((y - best) * cost).sum(1)
        rounding = _ROUNDING * ((y.abs() + best.abs()) * cost.abs()).sum(1)
        if bool((regret < -rounding).any()):
            row = int((regret < -rounding).nonzero()[0])
            raise ValueError(
                f"the target of {row_name(row)} is not optimal for its costs: another decision is better by "
                f"{-float(regret[row]):.6g}. Make targets by Decisions(oracle).target(costs), with the oracle that "
                "trains, and to optimality"
            )
        return torch.where(regret < 0.0, 0.0, regret)

    def loss_potentials(self, target: Decision) -> tuple[Tensor, Tensor]:
        """``-c / 2``, plus the known costs; the constant makes the target's loss 0."""
        delta = -0.5 * target.cost.to(torch.float64)
        if target.fixed is not None:
            delta = delta + target.fixed
        return delta, -self._factor * (target.y.to(torch.float64) * delta).sum(1)

    def resize(self, labelings: Tensor, target: Decision) -> Tensor:
        """Stored decisions as they are: all examples have D variables."""
        return fit(labelings, target.y.shape[1:], self.padding)

    def target(self, costs: Tensor | Any, given: Tensor | Any = None) -> Decision:
        """The optimal decisions under true costs, as targets.

        Args:
            costs: ``[B, D]``.
            given: ``[B, ...]``, what else the oracle takes.

        Raises:
            ValueError: Costs do not fit or are not finite, or the oracle did not prove its decisions optimal.
        """
        check_several(costs, "costs", f"numbers [B, {self.num_costs}]")
        check_readable(costs, "costs")
        check_readable(given, "given")
        costs = torch.as_tensor(costs)
        if costs.ndim != 2 or costs.shape[1] != self.num_costs:
            raise ValueError(f"costs must be [B, {self.num_costs}], got {list(costs.shape)}")
        costs = costs.detach().to(torch.float64)
        reject_rows(~torch.isfinite(costs).all(1), "costs of {rows} are not finite")
        found = self._decide(costs, None if given is None else torch.as_tensor(given), None)
        if found[2] is not None:
            reject_rows(
                found[2] != found[1],
                "the oracle did not prove its decisions optimal in {rows}: give it more time and no gap",
            )
        return Decision(found[0], costs)

    def check_target(self, target: Decision, potentials: Potentials) -> Decision:
        """Check shapes and numbers; add the known costs of the potentials."""
        if len(potentials.tensors) != 1 or potentials.single.ndim != 2 or potentials.single.shape[1] != self.num_costs:
            raise ValueError(f"{self} takes potentials [B, {self.num_costs}], got {potentials}")
        if potentials.lengths is not None:
            raise ValueError("potentials have lengths, and decisions have none: make the Batch without lengths")
        if not isinstance(target, tuple | list) or len(target) not in (2, 3):
            raise ValueError(f"target must be a Decision(y, cost), got a {type(target).__name__}")
        y, cost = target[:2]
        shape = potentials.single.shape
        for name, tensor in (("y", y), ("cost", cost)):
            if check_tensor(tensor, f"target.{name}").shape != shape:
                raise ValueError(f"target.{name} must be {list(shape)}, as the potentials; got {list(tensor.shape)}")
            reject_rows(~torch.isfinite(tensor).all(1), f"target.{name} is not finite in {{rows}}")
        return Decision(_numbers(y), cost.to(torch.float64), _fixed(potentials))

    def enumerate(self, potentials: Potentials) -> Iterator[Tensor] | None:
        """The decisions that the oracle lists; None where it lists none."""
        given = getattr(potentials, "given", None)
        rows = range(1 if given is None else len(given))
        listed = [self.oracle.decisions(None if given is None else given[row].cpu().numpy()) for row in rows]
        known = [torch.from_numpy(each).to(potentials.device) for each in listed if each is not None]
        most = max(map(len, known), default=0)
        if len(known) < len(listed):
            return None
        return (
            torch.stack([each[min(k, len(each) - 1)] for each in known]).expand(potentials.batch_size, -1)
            for k in range(most)
        )

    def _solve(self, costs: Tensor, potentials: Potentials, target: Decision | None) -> Decoding:
        """The oracle's decisions as a decoding, with scores in the place of costs."""
        y, value, bound = self._decide(costs, getattr(potentials, "given", None), None if target is None else target.y)
        value = self._factor * value
        bound = None if bound is None else torch.maximum(self._factor * bound, value)
        if target is not None:
            own = self._factor * (target.y.to(torch.float64) * costs).sum(1)
            y = torch.where((value < own).unsqueeze(1), target.y, y)
            value = torch.maximum(value, own)
            bound = None if bound is None else torch.maximum(bound, value)
        exact = bound is None or bool((bound == value).all())
        return Decoding(y, value, None if exact else bound, exact)

    def _decide(
        self, costs: Tensor, given: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the oracle says, as tensors; costs that are not finite count as 0 and are refused by the caller."""
        known = torch.nan_to_num(costs, nan=0.0, posinf=0.0, neginf=0.0).cpu().numpy()
        arrays = [None if tensor is None else tensor.detach().cpu().numpy() for tensor in (given, start)]
        found = self.oracle.solve(known, *arrays)
        if not isinstance(found, tuple | list) or len(found) != 3:
            raise TypeError(f"the oracle must return (y, value, bound), got a {type(found).__name__}")
        y, value, bound = (None if each is None else torch.as_tensor(each).to(costs.device) for each in found)
        for name, tensor in (("y", y), ("value", value), ("bound", bound)):
            shape = costs.shape if name == "y" else costs.shape[:1]
            if tensor.shape != shape if tensor is not None else name != "bound":
                raise ValueError(f"the oracle's {name} must be {list(shape)}, got {describe(tensor)}")
        assert y is not None
        assert value is not None
        y, value = _numbers(y), value.to(torch.float64)
        off = (value - (y * costs).sum(1)).abs()  # infinite where the oracle found no decision
        wrong = value.isfinite() & (off > _VALUE * costs.abs().sum(1))
        reject_rows(wrong, "the oracle's value is not the cost of its y in {rows}: give (costs * y).sum(1)")
        return y, value, None if bound is None else bound.to(torch.float64)

    def __repr__(self) -> str:
        return f"Decisions({self.oracle!r})"


def _fixed(potentials: Potentials) -> Tensor | None:
    """The known costs, which must be finite."""
    fixed: Tensor | None = getattr(potentials, "fixed", None)
    if fixed is not None:
        reject_rows(~torch.isfinite(fixed).all(1), "the known costs, fixed, of {rows} are not finite")
    return fixed


def _decision(labeling: Tensor | Decision) -> Tensor:
    return labeling.y if isinstance(labeling, Decision) else labeling


def _numbers(y: Tensor) -> Tensor:
    """int64, or float64 where decisions are floats."""
    return y.to(torch.float64 if y.is_floating_point() else torch.int64)
