"""Damped weights for long runs of the compiled loop: the proximal method of multipliers (Rockafellar, 1976).

Where steps on one block undo those on many others, the dual climbs slowly, and w(alpha) oscillates. A period of visits
minimises ``P(w) + lam (r - 1)/2 |w - c|^2`` instead, c being the head's weights: the same visits at ``lam r``, which
hardly undo each other. As w moves, v = w(alpha) moves r times as far, and w then moves by ``(v - w)/r``, to the next c.
The gap is ``P(w) - D(alpha) = sum_i g_i(w) + lam/2 |w - v|^2``, which an exact pass at w gives; P(v) may be far larger.

The dual, at lambda, would fall in some periods, such as the first. The blocks then move back a part of the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchssvm.core.row_sparse import inner_product, squared_norm
from torchssvm.kinds.examples import Examples, squares_of_rows
from torchssvm.solvers.compiled.draws import RELAXATION
from torchssvm.solvers.compiled.rounds import Kept
from torchssvm.steps.line_search import exact_step

PERIOD = 4
"""Epochs of visits before w moves towards v; an even number, as cycles of :func:`.draws.phase` have two."""

SHARE = 12.0
"""How many times smaller r is than the stiffness; 3 is better for some problems, and worse for others."""

LEAST = 1.5
"""A smaller r gains too little."""


def stiffness(examples: Examples) -> float:
    """``2 sum_t |x_t|^2 / sum_t cost_t`` over all tokens, with the weights of examples.

    Over ``lam n``, it is how many times too far the blocks move together where each takes a full step from zero.
    """
    weight, rows = examples.weight, np.diff(examples.line)
    squares = squares_of_rows(examples, np.float64) * np.repeat(np.square(weight), rows)
    costs = examples.cost * np.repeat(weight, np.diff(examples.start))
    return 2.0 * float(squares.sum()) / max(float(costs.sum()), np.finfo(np.float64).tiny)


class Damping:
    """Periods of visits of ``loop``, a ``CompiledBCFW`` with corrective steps, at a larger lambda.

    Between periods their state is the dual's: w, which the head holds, and v in ``dual.recomputed``. A period keeps
    copies of all blocks.
    """

    def __init__(self, loop: Any) -> None:
        self._loop, self._stiffness = loop, stiffness(loop.examples)

    @property
    def factor(self) -> float:
        """r, ``stiffness / (SHARE lam n)``; 1 if that is below ``LEAST``, or rests of all blocks would not fit."""
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

    @torch.no_grad()
    def period(self, factor: float, passes: float) -> int:
        """Visits of a period, fewer where only so many ``passes`` are left; returns those made."""
        loop, dual = self._loop, self._loop.dual
        visits = max(1, int(min(PERIOD, max(passes, 0.25)) * dual.num_examples))
        with loop.visiting(factor):
            kept = loop.copy_blocks(np.arange(dual.num_examples))
            before = [p.detach().to(torch.float64, copy=True) for p in dual.parameters]
            try:
                return loop.draw_and_visit(visits)
            finally:
                self._move(kept, before, factor)

    def _move(self, kept: Kept, before: list[torch.Tensor], factor: float) -> None:
        """Move v as the blocks have moved, and w towards it.

        The dual is a parabola along the move: up to twice its best step, the dual is not below its start. A step that
        long keeps more of a period than the best one does, and takes half as many periods.
        """
        dual = self._loop.dual
        start = [v.double() for v in dual.recomputed]
        moves = [factor * (p.double() - b) for p, b in zip(dual.parameters, before, strict=True)]
        slope = (float(dual.loss.sum()) - float(kept.losses.sum())) / dual.lam - inner_product(start, moves)
        step = min(RELAXATION * exact_step(slope, squared_norm(moves), 1.0), 1.0)
        if step < 1.0:
            self._loop.blend(kept, step)
        for p, v, origin, move in zip(dual.parameters, dual.recomputed, start, moves, strict=True):
            end = origin + step * move
            v.copy_(end)
            p.copy_(p.double() + (end - p.double()) / factor)
