"""Damped weights for long runs of the compiled loop: the proximal method of multipliers (Rockafellar, 1976).

Where steps on one block undo those on many others, the dual climbs slowly, and w(alpha) oscillates. A period of visits
then minimises ``P(w) + lam (r - 1)/2 |w - c|^2`` instead, c being the head's weights: the same visits at ``lam r``,
which hardly undo each other. What w moved moves v = w(alpha) r times as far, and w then moves by ``(v - w)/r``, to the
next c. The gap is ``P(w) - D(alpha) = sum_i g_i(w) + lam/2 |w - v|^2``, which an exact pass at w gives; P(w(alpha)) may
be far larger.

The dual, at lambda, may fall in a period of the first epochs. The blocks then move back along the period's way, to
where it is largest, so that it never falls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchssvm.core.row_sparse import inner_product, squared_norm
from torchssvm.kinds.examples import Examples, squares_of_rows
from torchssvm.solvers.compiled.rounds import Kept
from torchssvm.steps.line_search import exact_step

PERIOD = 4
"""Epochs of visits before w moves towards v; an even number, as cycles of :func:`.draws.phase` have two."""

SHARE = 12.0
"""r is so many times smaller than the stiffness, at which one full step on each block would still not disturb others."""

LEAST = 1.5
"""A smaller r gains too little."""


def stiffness(examples: Examples) -> float:
    """``2 sum_t |x_t|^2 / sum_t cost_t`` over all tokens, with weights of examples.

    Over ``lam n``, it is how many times all blocks together overshoot where each takes a full step from zero weights.
    """
    weight, rows = examples.weight, np.diff(examples.line)
    squares = squares_of_rows(examples, np.float64) * np.repeat(np.square(weight), rows)
    costs = examples.cost * np.repeat(weight, np.diff(examples.start))
    return 2.0 * float(squares.sum()) / max(float(costs.sum()), np.finfo(np.float64).tiny)


class Damping:
    """Periods of visits of ``loop``, a ``CompiledBCFW`` with corrective steps, at a larger lambda.

    The state between periods is the dual's: the head's weights w, and v in ``dual.recomputed``. Keeping blocks takes
    their memory once more.
    """

    def __init__(self, loop: Any) -> None:
        self._loop, self._stiffness = loop, stiffness(loop.examples)

    @property
    def factor(self) -> float:
        """r, ``stiffness / (SHARE lam n)``; 1 below ``LEAST``, and where rests of all blocks would not fit."""
        dual, memory = self._loop.dual, self._loop._memory
        factor = self._stiffness / (SHARE * dual.lam * dual.num_examples)
        if factor < LEAST:
            return 1.0
        if memory.capacity and not memory.has_rest:
            try:
                memory.make_rest()
            except MemoryError:
                return 1.0
        return factor

    def period(self, factor: float, passes: float) -> int:
        """Visits of a period, fewer where only so many ``passes`` are left; returns those made."""
        loop, dual = self._loop, self._loop.dual
        n = dual.num_examples
        visits = max(1, n // 4, round(min(PERIOD, passes) * n))
        with loop.visiting(factor):
            kept = loop.copy_blocks(np.arange(n))
            before = [p.detach().to(torch.float64, copy=True) for p in dual.parameters]
            try:
                return loop.draw_and_visit(visits)
            finally:
                self._move(kept, before, factor)

    @torch.no_grad()
    def _move(self, kept: Kept, before: list[torch.Tensor], factor: float) -> None:
        """Move v as the blocks have moved, as far as the dual climbs, and then w towards it."""
        loop, dual = self._loop, self._loop.dual
        start = [v.double() for v in dual.recomputed]
        moves = [factor * (p.double() - b) for p, b in zip(dual.parameters, before, strict=True)]
        change = float(dual.loss.sum()) - float(kept.losses.sum())
        slope = change / dual.lam - inner_product(start, moves)
        step = exact_step(slope, squared_norm(moves), 1.0)
        if step < 1.0:
            loop.blend(kept, step)
        for p, v, base, move in zip(dual.parameters, dual.recomputed, start, moves, strict=True):
            end = base + step * move
            v.copy_(end)
            p.copy_(p.double() + (end - p.double()) / factor)
