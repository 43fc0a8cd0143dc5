"""Decisions that minimise linear costs, trained by their regret: SPO+ as a structured hinge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_readable, check_several
from torchssvm.core.decoding import Decoding, shifted
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.structure import Structure, reject_rows
from torchssvm.structures.common import check_no_lengths, check_potentials, check_shape
from torchssvm.structures.decisions.oracle import DecisionOracle, FunctionOracle

_ROUNDING = 1e-8  # largest error of solvers and sums, relative to the costs at stake
_VALUE = 1e-4  # largest error of a value, relative to all costs; solvers may use float32


class Decision(NamedTuple):
    """The target of a decision: what is best under the true costs, and these costs.

    Attributes:
        y: ``[B, D]`` int64 (float64 where variables are continuous), optimal for ``cost``.
        cost: ``[B, D]``, the true costs, known ones included; training takes them in float64.
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

    _not_plain = "decisions come from solvers outside of torch"

    _pairwise_if_few = True

    def __init__(
        self,
        oracle: DecisionOracle | Callable[..., Any],
        *,
        num_costs: int | None = None,
        maximize: bool | None = None,
    ) -> None:
        if num_costs is not None and callable(oracle) and not isinstance(oracle, DecisionOracle | type):
            maximize = False if maximize is None else maximize
            oracle, num_costs, maximize = FunctionOracle(oracle, num_costs, maximize), None, None
        if not isinstance(oracle, DecisionOracle) or num_costs is not None or maximize is not None:
            raise TypeError(f"oracle={oracle!r} must be a DecisionOracle alone, or a function with num_costs")
        self.oracle = oracle
        self._quick_to_decode = oracle.quick
        self._factor = 2.0 if oracle.maximize else -2.0
        self._state_parts = 0.0, self._factor

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
        return shifted(self._solve(potentials.single.detach().to(torch.float64) + delta, potentials, target), constant)

    def signed(self, name: str) -> bool:
        """Costs that are minimised count with a minus."""
        return self._factor < 0.0

    def parts(self, labeling: Tensor | Decision) -> Tensor:
        """``-2 y``, or ``+2 y`` where costs are maximised: ``[B, D]`` float64."""
        return self._factor * _decision(labeling).to(torch.float64)

    @override
    def _difference(self, labeling: Tensor | Decision, target: Decision, potentials: Potentials) -> Parts:
        ((name, tensor),) = potentials.tensors.items()
        # Subtracted in float64: the difference of close decisions keeps its digits.
        return {name: (self.parts(labeling) - self.parts(target)).to(tensor.dtype)}

    @override
    def relative_scores(self, labelings: Tensor, target: Decision, potentials: Potentials) -> Tensor:
        costs = potentials.single.detach().to(torch.float64).unsqueeze(2)
        decisions = torch.cat([labelings, target.y.unsqueeze(1)], 1).to(torch.float64)
        total = self._factor * (decisions @ costs).squeeze(2)
        return total[:, :-1] - total[:, -1:]

    @override
    def mean_difference(self, labelings: Tensor, mass: Tensor, target: Decision, potentials: Potentials) -> Parts:
        ((name, tensor),) = potentials.tensors.items()
        # Subtracted before they are summed: the sum may be small beside its terms.
        differences = (labelings - target.y.unsqueeze(1)).to(torch.float64)
        total = (mass.to(torch.float64).unsqueeze(1) @ differences).squeeze(1)
        return {name: (self._factor * total).to(tensor.dtype)}

    def loss(self, labeling: Tensor | Decision, target: Decision) -> Tensor:
        """The regret, ``[B]`` float64; with known costs f, ``(c - 2 f)'(y - y*)`` or its opposite.

        Raises:
            ValueError: A regret is negative: the target is not optimal for its costs.
        """
        regret = self.regret(labeling, target)
        if target.fixed is None:
            return regret
        moved = _decision(labeling).to(torch.float64) - target.y.to(torch.float64)
        return regret + self._factor * (moved * target.fixed).sum(1)

    def task_loss(self, labeling: Tensor | Decision, target: Decision) -> Tensor:
        """The regret, ``[B]`` float64, whether or not costs are known."""
        return self.regret(labeling, target)

    @override
    def known_scores(self, potentials: Potentials) -> Parts | None:
        fixed = _fixed(potentials)
        return None if fixed is None else dict.fromkeys(potentials.tensors, fixed)

    @override
    def _largest_gain(self, potentials: Potentials, target: Decision) -> Tensor:
        # From the predicted costs alone; an oracle short of time may return the target.
        costs = potentials.single.detach().to(torch.float64)
        decoding = self._solve(costs, potentials, target)
        reached = decoding.value if decoding.bound is None else decoding.bound
        assert reached is not None
        return reached - self._factor * (target.y.to(torch.float64) * costs).sum(1)

    def regret(self, labeling: Tensor | Decision, target: Decision) -> Tensor:
        """The true costs of decisions less the target's: ``[B]`` float64.

        Negative regrets that rounding explains (1e-8 of the costs at stake) are 0.

        Raises:
            ValueError: A regret is negative: the target is not optimal for its costs.
        """
        y, best = _decision(labeling).to(torch.float64), target.y.to(torch.float64)
        cost = target.cost.to(torch.float64)
        regret = -0.5 * self._factor * ((y - best) * cost).sum(1)
        rounding = _ROUNDING * ((y.abs() + best.abs()) * cost.abs()).sum(1)
        wrong = regret < -rounding
        reject_rows(wrong, "target of {rows} is not optimal for its costs: make it by Decisions(oracle).target(costs)")
        return torch.where(regret < 0.0, 0.0, regret)

    def loss_potentials(self, target: Decision) -> tuple[Tensor, Tensor]:
        """``-c / 2``, plus the known costs; the constant makes the target's loss 0."""
        delta = -0.5 * target.cost.to(torch.float64)
        if target.fixed is not None:
            delta = delta + target.fixed
        return delta, -self._factor * (target.y.to(torch.float64) * delta).sum(1)

    @override
    def resize(self, labelings: Tensor, target: Decision) -> Tensor:
        return super().resize(labelings, target.y)

    def target(self, costs: Tensor | Any, given: Tensor | Any = None) -> Decision:
        """The optimal decisions under true costs, as targets.

        Args:
            costs: ``[B, D]``.
            given: ``[B, ...]``, what else the oracle takes.

        Raises:
            ValueError: Costs do not fit or are not finite, or the oracle did not prove its decisions optimal.
        """
        check_several(costs, "costs")
        check_readable(costs, "costs")
        check_readable(given, "given")
        costs = check_shape(torch.as_tensor(costs), "costs", "B", self.num_costs).detach().to(torch.float64)
        reject_rows(~torch.isfinite(costs).all(1), "costs of {rows} are not finite")
        y, value, bound = self._decide(costs, None if given is None else torch.as_tensor(given), None)
        if bound is not None:
            reject_rows(bound != value, "the oracle did not prove {rows} optimal: give it more time, and rel_gap=0")
        return Decision(y, costs)

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        check_potentials(potentials, ("B", self.num_costs))

    def check_target(self, target: Decision, potentials: Potentials) -> Decision:
        """Check shapes and numbers; add the known costs of the potentials."""
        check_no_lengths(potentials.lengths)  # type: ignore[arg-type]
        if not isinstance(target, tuple | list) or len(target) not in (2, 3):
            raise ValueError(f"target must be a Decision(y, cost), not a {type(target).__name__}")
        y, cost = target[:2]
        for name, tensor in (("target.y", y), ("target.cost", cost)):
            wrong = ~check_shape(tensor, name, *potentials.single.shape).isfinite().all(1)
            reject_rows(wrong, f"{name} is not finite in {{rows}}")
        return Decision(_numbers(y), cost.to(torch.float64), _fixed(potentials))

    @override
    def enumerate(self, potentials: Potentials) -> Iterator[Tensor] | None:
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
        """The oracle's decisions as a decoding, with scores for costs."""
        y, value, bound = self._decide(costs, getattr(potentials, "given", None), None if target is None else target.y)
        value = self._factor * value
        bound = None if bound is None else torch.maximum(self._factor * bound, value)
        if target is not None:
            score = self._factor * (target.y.to(torch.float64) * costs).sum(1)
            y = torch.where((value < score).unsqueeze(1), target.y, y)
            value = torch.maximum(value, score)
            bound = None if bound is None else torch.maximum(bound, value)
        exact = bound is None or bool((bound == value).all())
        return Decoding(y, value, None if exact else bound, exact)

    def _decide(
        self, costs: Tensor, given: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Decisions, values and bounds, as tensors; costs that are not finite count as 0: callers refuse them."""
        known = torch.nan_to_num(costs, nan=0.0, posinf=0.0, neginf=0.0).cpu().numpy()
        arrays = [None if tensor is None else tensor.detach().cpu().numpy() for tensor in (given, start)]
        answer = self.oracle.solve(known, *arrays)
        if not isinstance(answer, tuple | list) or len(answer) != 3 or answer[0] is None or answer[1] is None:
            raise TypeError(f"oracle={self.oracle!r} must return (y, value, bound), got {answer!r}")
        y, value, bound = (None if each is None else torch.as_tensor(each).to(costs.device) for each in answer)
        check_shape(y, "y of the oracle", *costs.shape)
        for name, tensor in (("value", value), ("bound", bound)):
            if tensor is not None:
                check_shape(tensor, f"{name} of the oracle", len(costs))
        assert y is not None
        assert value is not None
        y, value = _numbers(y), value.to(torch.float64)
        off = (value - (y * costs).sum(1)).abs()  # infinite where the oracle has no decision
        wrong = value.isfinite() & (off > _VALUE * costs.abs().sum(1))
        reject_rows(wrong, "value of the oracle is not the cost of its y in {rows}: give (costs * y).sum(1)")
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
