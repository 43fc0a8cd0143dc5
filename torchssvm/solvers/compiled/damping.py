"""Damped weights where lambda is small: the proximal method of multipliers (Rockafellar, 1976), for the compiled loop.

Where steps on one block undo those on many others, the dual climbs slowly, and w(alpha) oscillates. The visits of a
step then minimise ``P(w) + lam (r - 1)/2 |w - c|^2``, where c are the head's weights before the step: they are the same
visits at ``lam r``, which hardly undo each other. As w moves, v = w(alpha) moves r times as far. After the step w moves
towards v, by ``(v - w)/r`` in four epochs. The gap is ``P(w) - D(alpha) = sum_i g_i(w) + lam/2 |w - v|^2``, which an
exact pass at w gives; P(v) may be far larger.

The dual, at lambda, would fall in some steps, such as the first. The blocks then move back a part of the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from torchssvm.core.row_sparse import pieces, products
from torchssvm.dual.active_sets import ActiveSets
from torchssvm.kinds.examples import Examples, squares_of_rows
from torchssvm.solvers.compiled.draws import RELAXATION
from torchssvm.solvers.compiled.rounds import Kept
from torchssvm.steps.line_search import exact_step

FOLLOWS = 0.25
"""Of the way ``(v - w)/r``, what w moves for each epoch of visits."""

SHARE, SHARE_OF_WHOLE = 12.0, 120.0
"""How many times smaller r is than the stiffness, of labelings and of blocks that are solved whole.

For labelings 3 is better for some problems, and worse for others; whole blocks undo each other less.
"""

MOST_PER_EXAMPLE = 0.05
"""r is at most this times n: few blocks cannot undo each other much, as each has weights that others hardly use."""

LEAST = 1.5
"""A smaller r gains too little to begin."""


def stiffness_of_labels(examples: Examples) -> float:
    """``sum_i |psi_i|^2 / sum_i L_i`` where all labels are wrong: ``2 sum_t |x_t|^2 / sum_t cost_t``, with weights."""
    weight, rows = examples.weight, np.diff(examples.line)
    squares = squares_of_rows(examples, np.float64) * np.repeat(np.square(weight), rows)
    costs = examples.cost * np.repeat(weight, np.diff(examples.start))
    return ratio(2.0 * float(squares.sum()), float(costs.sum()))


def stiffness_of_labelings(sets: ActiveSets) -> float:
    """``sum_i |psi_i|^2 / sum_i L_i`` over the labelings that blocks keep; 0 until each block has one.

    Over ``lam n``, it is how many times too far the blocks move together where each takes a full step from zero.
    """
    if sets.gram is None or not bool((sets.count > 0).all()):
        return 0.0
    known = sets.known & (torch.arange(sets.capacity) < sets.count[:, None])
    return ratio(float(sets.gram.diagonal(dim1=1, dim2=2)[known].double().sum()), float(sets.loss[known].sum()))


def ratio(square: float, loss: float) -> float:
    """Their ratio, 0 without a loss."""
    return square / loss if loss > 0.0 else 0.0


class Damping:
    """Steps of ``loop``, a ``CompiledBCFW`` with corrective steps, at a larger lambda.

    Between steps their state is the dual's: w, which the head holds, and v in ``dual.recomputed``. A step keeps copies
    of all blocks.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._of_labels = stiffness_of_labels(loop.examples) if loop.memory.labelings is None else 0.0

    @property
    def factor(self) -> float:
        """r, ``stiffness / (SHARE lam n)``, at most ``MOST_PER_EXAMPLE n``; 1 where weights are not damped."""
        dual, memory = self._loop.dual, self._loop.memory
        if memory.labelings is None:
            stiffness = self._of_labels / SHARE_OF_WHOLE
        else:
            stiffness = stiffness_of_labelings(memory.labelings.sets) / SHARE
        n = dual.num_examples
        factor = min(stiffness / (dual.lam * n), MOST_PER_EXAMPLE * n)
        if dual.damped:
            return max(factor, LEAST)
        return factor if factor >= LEAST and memory.has_room_for_copies() else 1.0

    @contextmanager
    def step(self, factor: float, epochs: float) -> Iterator[None]:
        """Visits are made inside, of so many epochs."""
        loop, dual = self._loop, self._loop.dual
        kept = loop.copy_blocks(np.arange(dual.num_examples))
        before = [p.detach().clone() for p in dual.parameters]
        try:
            yield
        finally:
            self._move(kept, before, factor, min(FOLLOWS * epochs, 1.0))

    def _move(self, kept: Kept, before: list[torch.Tensor], factor: float, share: float) -> None:
        """Move v as the blocks have moved, and w towards it.

        The dual is a parabola along the move: up to twice its best step, the dual is not below its start. A step that
        long keeps more of the visits than the best one does.
        """
        dual = self._loop.dual
        slope, square = (float(dual.loss.sum()) - float(kept.losses.sum())) / dual.lam, 0.0
        for p, v, b in pieces(dual.parameters, dual.recomputed, before):
            move = factor * (p.double() - b.double())
            along, size = products([v.double()], [move])
            slope, square = slope - along, square + size
        step = min(RELAXATION * exact_step(slope, square, 1.0), 1.0)
        if step < 1.0:
            self._loop.blend(kept, step)
        for p, v, b in pieces(dual.parameters, dual.recomputed, before):
            end = v.double() + step * (factor * (p.double() - b.double()))
            v.copy_(end)
            p.copy_(p.double() + share / factor * (end - p.double()))
