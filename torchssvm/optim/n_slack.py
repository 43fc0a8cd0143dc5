"""The n-slack formulation: every example has its own constraints, and a block of the restricted dual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.dual.storage import require
from torchssvm.memory import check_memory
from torchssvm.optim.simplex_qp import ascend_simplex
from torchssvm.optim.slack import Restricted, Slack, check_keep, check_tensor, flat_rows
from torchssvm.potentials import Potentials, per_example_adjoint
from torchssvm.structures import Corner

_SKIP = 0.1  # a block whose gap is below this share of the mean allowed gap is not worth a step
_CHUNK = 1024  # planes in float64 at a time


class NSlack(Slack):
    """One slack for each example (Tsochantaridis et al. 2005), with one oracle call for each before every solution.

    A pass adds, for every example, the output that violates its constraints most, if it violates them:
    ``xi_i >= L_i(y) - <plane, w>`` with ``plane = Phi_i^T (p(y_i) - p(y))``. The restricted dual is a QP over a product
    of simplices, with several variables for each of n examples: too large for a dense solver, and dense for a sparse
    one. It is solved as everything here is, by exact block-coordinate ascent from where it stood: each block's own QP
    over its simplex by steps between pairs, in turn, until the restricted duality gap is at most ``accuracy`` times
    the gap of the whole problem. Any point of it is a true lower bound, and none is below the one before.

    A plane takes d numbers of the weights' dtype of host memory: several times n d numbers in all.

    Args:
        keep: Iterations that a constraint is kept after it was last active.
        accuracy: Gap of the restricted problem as a share of the gap of the whole problem, in (0, 1).
        max_sweeps: Most sweeps over the blocks for one solution.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(self, keep: int = 10, *, accuracy: float = 0.1, max_sweeps: int = 1000) -> None:
        self.keep = check_keep(keep)
        if not 0.0 < accuracy < 1.0:
            raise ValueError(f"accuracy={accuracy} must lie between 0 and 1, both excluded")
        if max_sweeps < 1:
            raise ValueError(f"max_sweeps={max_sweeps} must be at least 1")
        self.accuracy = accuracy
        self.max_sweeps = max_sweeps

    def bind(self, num_examples: int, lam: float, parameters: Sequence[nn.Parameter]) -> None:
        """Tell the slack its problem."""
        super().bind(num_examples, lam, parameters)
        self.planes = torch.zeros(0, self.size, dtype=self.parameters[0].dtype)
        self.costs = torch.zeros(0, dtype=torch.float64)
        self.owner = torch.zeros(0, dtype=torch.int64)  # the example of each plane, in rising order
        self.alpha = torch.zeros(0, dtype=torch.float64)
        self.idle = torch.zeros(0, dtype=torch.int64)  # iterations since the plane was last active
        self.hinges = torch.zeros(num_examples, dtype=torch.float64)  # xi_i of the restricted problem
        self.discard()

    def __len__(self) -> int:
        return len(self.costs)

    def collect(self, index: Tensor, potentials: Potentials, corner: Corner) -> None:
        """Keep the planes of the examples whose corner violates their constraints by more than rounding."""
        index = index.cpu()
        hinge, score = corner.hinge.cpu(), corner.score.cpu()
        rounding = 100 * torch.finfo(self.planes.dtype).eps * (1.0 + hinge.abs() + score.abs())
        rows = (hinge > self.hinges[index] + rounding).nonzero().flatten()
        if not len(rows):
            return
        needed = 2 * (len(self) + len(self._owners) + len(rows)) * self.size * self.planes.element_size()
        check_memory(
            needed, self.planes.device, None, "the planes of NSlack()", "OneSlack() keeps one plane for each pass"
        )
        gradients = per_example_adjoint(potentials, corner.parts, self.parameters)
        self._planes.append(-flat_rows([g.detach()[rows.to(g.device)] for g in gradients]).cpu())
        self._costs.append(corner.loss.cpu()[rows])
        self._owners.append(index[rows])

    def discard(self) -> None:
        """Forget the planes of the pass."""
        self._planes: list[Tensor] = []
        self._costs: list[Tensor] = []
        self._owners: list[Tensor] = []

    def solve(self, gap: float) -> Restricted:
        """Add the planes and ascend the restricted dual, block by block."""
        owner, order = torch.cat([self.owner, *self._owners]).sort(stable=True)
        new = len(order) - len(self)
        self.planes = torch.cat([self.planes, *self._planes])[order]
        self.costs = torch.cat([self.costs, *self._costs])[order]
        self.alpha = torch.cat([self.alpha, torch.zeros(new, dtype=torch.float64)])[order]
        idle = torch.cat([self.idle, torch.zeros(new, dtype=torch.int64)])[order]
        self.owner = owner
        self.discard()
        weights = self._ascend(self.accuracy * max(gap, 0.0) * self.num_examples)
        self.idle = torch.where(self.alpha > 0.0, 0, idle + 1)
        if bool((self.idle >= self.keep).any()):
            rows = (self.idle < self.keep).nonzero().flatten()
            self.planes, self.costs, self.owner = self.planes[rows], self.costs[rows], self.owner[rows]
            self.alpha, self.idle = self.alpha[rows], self.idle[rows]
        dual = float(self.costs @ self.alpha) / self.num_examples
        return Restricted(torch.from_numpy(weights), dual - self.lam / 2 * float(weights @ weights))

    def _ascend(self, allowed: float) -> Any:
        """Sweep over the blocks until their gaps sum up to at most ``allowed``; the weights, ``[d]`` float64.

        Most planes are inactive at any time. So after each sweep over all of them, the active ones, few enough to stay
        in the cache, are swept until their own gap is allowed.
        """
        n = self.num_examples
        rate = 1.0 / (self.lam * n)
        weights = self._weights()
        every = _Blocks(self.planes.numpy(), self.costs.numpy(), self.owner.numpy(), rate, n)
        alpha = self.alpha.numpy()
        sweeps = 0
        while sweeps < self.max_sweeps:
            sweeps += 1
            if every.sweep(alpha, weights, allowed) <= allowed:
                break
            active = alpha.nonzero()[0]
            some = _Blocks(every.planes[active], every.costs[active], every.owner[active], rate, n)
            part = alpha[active]
            while sweeps < self.max_sweeps:
                sweeps += 1
                if some.sweep(part, weights, allowed) <= allowed:
                    break
            alpha[active] = part
        weights = self._weights()
        self.hinges.zero_()
        held = weights.astype(every.planes.dtype)
        for block in every.blocks:
            slopes = every.costs[block] - every.planes[block] @ held
            self.hinges[every.owner[block.start]] = max(0.0, float(slopes.max()))
        return weights

    def _weights(self) -> Any:
        """``w(alpha) = (1/(lam n)) sum alpha plane``, ``[d]`` float64."""
        active = self.alpha.nonzero().flatten()
        total = torch.zeros(self.size, dtype=torch.float64)
        for rows in active.split(_CHUNK):
            total += self.alpha[rows] @ self.planes[rows].to(torch.float64)
        return (total / (self.lam * self.num_examples)).numpy()

    def state_dict(self) -> dict[str, Any]:
        """The working set."""
        names = ("planes", "costs", "owner", "alpha", "idle", "hinges")
        return {"kind": "n_slack", "keep": self.keep, **{name: getattr(self, name).clone() for name in names}}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ValueError if ``state`` is another formulation's or damaged."""
        if require(state, "kind", str, "slack") != "n_slack":
            raise ValueError(f"the checkpoint holds slack {state['kind']!r}, and this method was made with NSlack()")
        size = len(require(state, "costs", Tensor, "slack"))
        check_tensor(state, "planes", (size, self.size), self.parameters[0].dtype)
        for name in ("costs", "alpha"):
            check_tensor(state, name, (size,), torch.float64)
        for name in ("owner", "idle"):
            check_tensor(state, name, (size,), torch.int64)
        check_tensor(state, "hinges", (self.num_examples,), torch.float64)
        owner, alpha = state["owner"], state["alpha"]
        if bool((owner[1:] < owner[:-1]).any()) or bool(((owner < 0) | (owner >= self.num_examples)).any()):
            raise ValueError("the checkpoint is damaged: slack['owner'] does not name examples in rising order")
        mass = torch.zeros(self.num_examples, dtype=torch.float64).index_add_(0, owner, alpha)
        if bool((alpha < 0.0).any()) or bool((mass > 1.0 + 1e-9).any()):
            raise ValueError("the checkpoint is damaged: slack['alpha'] is no distribution for each example")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the working set to the bit."""
        self.check_state(state)
        for name in ("planes", "costs", "owner", "alpha", "idle", "hinges"):
            setattr(self, name, state[name].to("cpu", copy=True))
        self.discard()


class _Blocks:
    """Planes grouped by their example, and ascent over them.

    Args:
        planes: ``[C, d]``, the weights' dtype.
        costs: ``[C]`` float64.
        owner: ``[C]`` int64, the example of each plane, in rising order.
        rate: ``1/(lam n)``.
        num_examples: n.
    """

    def __init__(self, planes: Any, costs: Any, owner: Any, rate: float, num_examples: int) -> None:
        self.planes, self.costs, self.owner, self.rate = planes, costs, owner, rate
        self.num_examples = num_examples
        starts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
        self.blocks = [slice(a, b) for a, b in zip(starts, [*starts[1:], len(owner)], strict=True)]
        self.curvature = [np.asarray(planes[b] @ planes[b].T, dtype=np.float64) * rate for b in self.blocks]

    def sweep(self, alpha: Any, weights: Any, allowed: float) -> float:
        """Solve each block's own QP, one after another; changes ``alpha`` and ``weights``.

        Returns:
            The sum of the block gaps, each as it was before its block moved.
        """
        total, skip = 0.0, _SKIP * allowed / self.num_examples
        held = weights.astype(self.planes.dtype)  # products of mixed dtypes would copy the planes
        for block, curvature in zip(self.blocks, self.curvature, strict=True):
            slopes = self.costs[block] - self.planes[block] @ held
            before = alpha[block]
            gap = max(0.0, float(slopes.max())) - float(before @ slopes)
            total += gap
            if gap > skip:
                after = ascend_simplex(slopes, before, curvature)
                weights += self.rate * ((after - before).astype(self.planes.dtype) @ self.planes[block])
                held[:] = weights
                alpha[block] = after
        return total
