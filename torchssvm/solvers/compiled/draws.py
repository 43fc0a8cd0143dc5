"""The random choice of the blocks that a compiled loop visits next."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_seed
from torchssvm.core.random_state import check_random_state
from torchssvm.core.schema import ByRank, Entry, Same, Schema
from torchssvm.dual.state import DualState
from torchssvm.steps.orders import Order, Permutation, Proportional, Uniform

_SHARE = 0.03
"""A sweep leaves out blocks whose gaps are below this share of the mean gap after the last sweep of all."""

_FALL = 0.3
"""All blocks are visited again when the gap has fallen below this share of that."""

_TIMES, LEAST = 16, 4000
"""A sweep of few blocks is repeated up to so often, and a step has at least so many visits, so that most of the time
is not that of Python."""

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
            raise TypeError(f"order={order} is not compiled; use Proportional(), Uniform() or Permutation()")
        self.order, self.dual, self.ranks = order, dual, dual.ranks
        self.generator = torch.Generator().manual_seed(check_seed(seed))
        self._waiting = torch.zeros(0, dtype=torch.int64)
        self.sweeps = whole and isinstance(order, Proportional)  # whether ``next`` gives sweeps
        self._gap = math.inf  # of all blocks after the last sweep of all; infinite while that goes on

    def next(self, visits: int) -> tuple[Tensor, Tensor]:
        """Up to ``visits`` examples, or as many random points to draw examples by gap: one of the two is empty."""
        if not len(self._waiting):
            unknown = self.dual.gap_estimates == math.inf
            if isinstance(self.order, Permutation):
                unknown.fill_(True)
            if isinstance(self.order, Uniform):
                self._waiting = torch.randint(len(self.dual.own), (visits,), generator=self.generator)
            elif bool(unknown.any()):
                order = unknown.nonzero().flatten()
                self._waiting = order[torch.randperm(len(order), generator=self.generator)]
                self._gap = math.inf
            elif self.sweeps:
                self._waiting = self._sweep()
            else:
                return self._waiting, torch.rand(visits, dtype=torch.float64, generator=self.generator)
        return self._waiting[:visits], torch.zeros(0, dtype=torch.float64)

    @property
    def cut(self) -> float:
        """Blocks of the order that :meth:`next` gave whose gap is at most this are to be left out."""
        return -math.inf if self._gap == math.inf else _SHARE * self._gap / len(self.dual.own)

    @property
    def relaxation(self) -> float:
        """How many times an exact step is to be taken."""
        return 1.0 if self._gap == math.inf or self.dual.moved < _BEGIN * self.dual.num_examples else _RELAXATION

    def _sweep(self) -> Tensor:
        """All blocks in random order; then a few times those that have a good part of the gap, until little is left."""
        gaps = self.dual.gap_estimates
        n, total = len(gaps), float(gaps.sum())
        began = self._gap == math.inf
        self._gap = total if began else max(self._gap, total)
        chosen = (gaps > self.cut).nonzero().flatten()
        if total == 0.0:
            return chosen
        if not began and total < _FALL * self._gap:
            self._gap, chosen = math.inf, torch.arange(n)
        size = len(chosen)
        places = torch.empty(max(1, min(_TIMES, max(n, LEAST) // size)), size, dtype=torch.int64)
        for row in places.unbind():
            torch.randperm(size, generator=self.generator, out=row)
        return chosen.index_select(0, places.view(-1))

    def order_of(self, visits: int) -> Tensor:
        """``visits`` examples, drawn by the gaps of now; fewer only when all gaps are zero."""
        found: list[Tensor] = []
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
                order = order[:visits]
                self.used(len(order))
            found.append(order)
            visits -= len(order)
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)

    def used(self, visits: int) -> None:
        """Mark the first ``visits`` examples of ``next`` as visited."""
        self._waiting = self._waiting[visits:]

    def _schema(self) -> Schema:
        examples = Entry(torch.int64, (None,), low=0, high=len(self.dual.own) - 1)
        gap = {"gap": Entry(float, low=0.0, infinite=True)} if self.sweeps else {}
        return {"order": Same(type(self.order).__name__), "generator": check_random_state, "waiting": examples, **gap}

    def _restarted(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The generator of another number of processes, without the examples that these have drawn."""
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
