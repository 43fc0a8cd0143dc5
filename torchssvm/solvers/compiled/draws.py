"""The random choice of the blocks that a compiled loop visits next."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_seed
from torchssvm.core.random_state import check_random_state
from torchssvm.core.states import ByRank, Numbers, check_entries
from torchssvm.dual.state import DualState
from torchssvm.solvers.compiled.whole import FALL, SHARE
from torchssvm.steps.directions import Order, Permutation, Proportional, Uniform

_ROUNDS, _VISITS = 64, 64_000
"""A sweep has up to so many rounds, or visits, of few blocks, so that Python takes little of the time."""

ALL = 1 << 62
"""More visits than any sweep has."""

_RELAXATION, _BEGIN = 1.6, 8.0
"""How many times an exact step is taken in sweeps of some blocks, after so many epochs of the dual's visits."""


class Draws(ByRank):
    """Resumable draws of the blocks that this process holds. Blocks with an unknown gap come first, in random order.

    Args:
        order: ``Proportional()``, ``Uniform()`` or ``Permutation()``; TypeError for another.
        dual: The dual state with the gaps.
        seed: Seed of the draws.
        whole: Whether each visit solves a whole block; ``Proportional()`` then makes sweeps, see :meth:`_sweep`.
    """

    state_name = "draws"

    def __init__(self, order: Order, dual: DualState, seed: int, *, whole: bool = False) -> None:
        if not can_draw(order):
            raise TypeError(f"order={order} is not compiled: use Proportional(), Uniform() or Permutation()")
        self.order, self.dual, self.ranks = order, dual, dual.ranks
        self.generator = torch.Generator().manual_seed(check_seed(seed))
        self._waiting = torch.zeros(0, dtype=torch.int64)
        self.sweeps = whole and isinstance(order, Proportional)  # whether ``next`` gives sweeps
        self.gap = math.inf  # of all blocks after the last round of all; infinite while that goes on

    def next(self, visits: int) -> tuple[Tensor, Tensor]:
        """Up to ``visits`` examples, or as many random points to draw examples by gap: one of the two is empty.

        For ``ALL`` visits, a sweep gives both: each point shuffles the examples for one more round.
        """
        points = torch.zeros(0, dtype=torch.float64)
        if not len(self._waiting):
            unknown = self.dual.gap_estimates == math.inf
            if isinstance(self.order, Permutation):
                unknown.fill_(True)
            if isinstance(self.order, Uniform):
                self._waiting = torch.randint(len(self.dual.own), (visits,), generator=self.generator)
            elif bool(unknown.any()):
                order = unknown.nonzero().flatten()
                self._waiting = order[torch.randperm(len(order), generator=self.generator)]
                self.gap = math.inf
            elif self.sweeps:
                self._waiting, rounds = self._sweep()
                points = rounds if visits == ALL else points
            else:
                return self._waiting, torch.rand(visits, dtype=torch.float64, generator=self.generator)
        return self._waiting[:visits], points

    @property
    def relaxation(self) -> float:
        """How many times an exact step is to be taken in sweeps of some blocks."""
        return 1.0 if self.dual.moved < _BEGIN * self.dual.num_examples else _RELAXATION

    def _sweep(self) -> tuple[Tensor, Tensor]:
        """Blocks in random order, all or those with large gaps, and a random point for each further round."""
        gaps = self.dual.gap_estimates
        n, total = len(gaps), float(gaps.sum())
        if total <= FALL * self.gap:  # an exact pass may give a smaller gap than the sweep left
            self.gap = math.inf
        least = SHARE * self.gap / n if self.gap < math.inf else -1.0
        order = (gaps > least).nonzero().flatten() if total > 0.0 else self._waiting
        order = order[torch.randperm(len(order), generator=self.generator)]
        times = max(1, min(_ROUNDS, max(n, _VISITS) // max(len(order), 1)))
        return order, torch.rand(times - 1, dtype=torch.float64, generator=self.generator)

    def order_of(self, visits: int) -> Tensor:
        """``visits`` examples, drawn by the current gaps; fewer only when all gaps are zero."""
        drawn: list[Tensor] = []
        while visits > 0:
            order, points = self.next(visits)
            if len(points):
                ends = self.dual.gap_estimates.cumsum(0)
                if not float(ends[-1]) > 0.0:
                    break
                order = torch.searchsorted(ends, points * ends[-1], right=True).clamp_(max=len(ends) - 1)
            else:
                if not len(order):
                    break
                order, total = order[:visits], float(self.dual.gap_estimates.sum())
                self.used(len(order), total if self.gap == math.inf else max(self.gap, total))
            drawn.append(order)
            visits -= len(order)
        return torch.cat(drawn) if drawn else torch.zeros(0, dtype=torch.int64)

    def used(self, visits: int, gap: float = math.inf) -> None:
        """Mark the first ``visits`` examples of ``next`` as visited; ``gap`` is what a sweep of them has left."""
        self._waiting = self._waiting[visits:]
        if self.sweeps and not len(self._waiting):
            self.gap = gap

    def _entries(self) -> dict[str, Any]:
        gap = {"gap": self.gap} if self.sweeps else {}
        waiting = self._waiting.clone()
        return {"order": type(self.order).__name__, "generator": self.generator.get_state(), "waiting": waiting, **gap}

    def _check_own(self, state: dict[str, Any]) -> None:
        wanted = {
            "order": type(self.order).__name__,
            "generator": Tensor,
            "waiting": Numbers(torch.int64, (None,), 0, len(self.dual.own) - 1),
            **({"gap": Numbers(float, (), 0.0, math.inf)} if self.sweeps else {}),
        }
        check_entries(state, wanted, "draws")
        check_random_state(state["generator"], "draws['generator']")

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self._waiting, self.gap = state["waiting"].to("cpu", copy=True), state.get("gap", self.gap)

    def _restarted(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {**parts[self.ranks.rank % len(parts)], "waiting": torch.zeros(0, dtype=torch.int64)}


def can_draw(order: Order) -> bool:
    """Whether the compiled loop has this order."""
    return type(order) in (Proportional, Uniform, Permutation) and getattr(order, "power", 1.0) == 1.0


# A block's exact step is the best for this block alone, and blocks that depend on each other approach their common
# optimum from one side. Steps RELAXATION times as long let them agree in about two thirds of the visits (successive
# over-relaxation); the dual does not fall, as it is a parabola along each. What such steps leave in the primal is gone
# after a few exact ones: each cycle ends with some.
BEGIN = 40.0
"""Epochs of a dual's visits before the first cycle: where they suffice, blocks hardly depend on each other."""

RELAXATION = 1.8
"""How many times an exact step is taken, as far as masses allow. 1.5 gains less, and 1.9 no more."""

POWER = 0.5
"""Blocks are then drawn by this power of their gaps: a step closes most of a gap, whatever its size."""

CYCLE = 2.0
"""Epochs of visits of a cycle. The shorter, the sooner a run can end; cycles of half an epoch gain half as much."""

RELAXED = 0.75
"""The share of a cycle's visits that are relaxed; the others, at its end, are exact."""


def phase(moved: int, num_examples: int) -> tuple[int, float, float]:
    """How many visits are left of the current part of the cycle, their relaxation, and the power of the gaps.

    ``moved`` are the visits of the dual, at any lambda.
    """
    begin, cycle = round(BEGIN * num_examples), round(CYCLE * num_examples)
    if moved < begin:
        return begin - moved, 1.0, 1.0
    relaxed, at = int(RELAXED * cycle), (moved - begin) % cycle
    return (relaxed - at, RELAXATION, POWER) if at < relaxed else (cycle - at, 1.0, POWER)


def left_of_cycle(moved: int, num_examples: int) -> int | None:
    """How many visits are left of the current cycle; None before the first."""
    begin, cycle = round(BEGIN * num_examples), round(CYCLE * num_examples)
    return None if moved < begin else cycle - (moved - begin) % cycle
