"""The compiled loop in several processes: rounds of visits in each process, each followed by a joint step.

Blocks are kept as they were at the start of a round, and move back towards that by the joint step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import set_row
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.ranks import sum_in_order
from torchssvm.core.row_sparse import inner_product, rows_of
from torchssvm.distributed.exchange import Exchange, Figures
from torchssvm.kinds.block import size_of
from torchssvm.kinds.examples import Examples
from torchssvm.solvers.bcfw import record
from torchssvm.solvers.compiled.atoms import add_to_rest, rest_views
from torchssvm.solvers.compiled.memory import BlockArrays
from torchssvm.steps.line_search import exact_step
from torchssvm.steps.numba import LEAST_MASS, left_of


class Kept(NamedTuple):
    """Copies of the blocks ``index``, as in ``BlockArrays``, and of their losses."""

    index: Any  # [U] int64, distinct blocks
    mass: Any  # [U, C]
    loss: Any  # [U, C]
    labelings: Any  # [U, C, N]
    rest_mass: Any  # [U]
    rest_loss: Any  # [U]
    emission: Any  # [rows, K], psi of the rests; zero if missing
    pairs: Any  # [rows, K], psi of their pairs
    losses: Any  # [U], l_i


def keep_blocks(index: np.ndarray, examples: Examples, known: Any, blocks: BlockArrays, losses: np.ndarray) -> Kept:
    """Copies of the blocks ``index``, ``[U]`` int64, distinct; ``losses`` ``[n]`` are l_i.

    ``known`` are the examples as kernels take them.
    """
    copies = [getattr(blocks, name)[index] for name in ("mass", "loss", "labelings", "rest_mass", "rest_loss")]
    rows = examples.length[index].sum(), examples.pair_rows[index].sum()
    rests = blocks.rest_emission, blocks.rest_transition
    emission, pairs = (np.zeros((count, a.shape[1]), a.dtype) for count, a in zip(rows, rests, strict=True))
    _copy_rests(index, known, blocks, emission, pairs)
    return Kept(index, *copies, emission, pairs, losses[index])  # type: ignore[call-arg]


@njit
def _copy_rests(index: Any, examples: Any, blocks: Any, emission: Any, pairs: Any) -> None:
    row, pair = 0, 0
    for i in index:
        length, height = examples.length[i], examples.pair_rows[i]
        psi, psi_pairs, _ = rest_views(examples, blocks, i, length)
        if blocks.rest_emission_start[i] > 0 and blocks.mixed[i]:  # others are zero
            set_row(emission[row : row + length], psi, None, None)
            set_row(pairs[pair : pair + height], psi_pairs, None, None)
        row, pair = row + length, pair + height


@njit
def blend(kept: Any, share: float, examples: Any, blocks: Any, losses: Any, n: int, scratch: Any) -> None:
    """Mix ``share``, 0 to 1, of the current dual variables with 1 - ``share`` of those in ``kept``.

    A labeling that has lost its slot since then goes into the rest, which the block must have. ``n`` counts the
    examples of all processes.
    """
    row, pair, labels = 0, 0, scratch.labels
    for u in range(len(kept.index)):
        i = kept.index[u]
        length, before, now = examples.length[i], 1.0 - share, share
        losses[i] = before * kept.losses[u] + now * losses[i]
        mass = before * kept.rest_mass[u] + now * blocks.rest_mass[i]
        if mass < LEAST_MASS:
            mass, before, now = 0.0, 0.0, 0.0
        blocks.rest_mass[i] = mass
        blocks.rest_loss[i] = before * kept.rest_loss[u] + now * blocks.rest_loss[i]
        psi, pairs, _ = rest_views(examples, blocks, i, length)  # not read without a rest
        if blocks.rest_emission_start[i] > 0 and blocks.mixed[i]:
            for t in range(length):
                for k in range(psi.shape[1]):
                    psi[t, k] = before * kept.emission[row + t, k] + now * psi[t, k]
            for k in range(len(pairs)):
                for m in range(pairs.shape[1]):
                    pairs[k, m] = before * kept.pairs[pair + k, m] + now * pairs[k, m]
        for c in range(blocks.mass.shape[1]):
            blocks.mass[i, c] = left_of(share * blocks.mass[i, c], 0.0)
            old = (1.0 - share) * kept.mass[u, c]
            if old > LEAST_MASS:
                stays = True
                for t in range(size_of(examples, i)):
                    stays &= blocks.labelings[i, c, t] == kept.labelings[u, c, t]
                if stays:
                    blocks.mass[i, c] += old
                else:
                    for t in range(size_of(examples, i)):
                        labels[t] = kept.labelings[u, c, t]
                    add_to_rest(examples, i, length, labels, old, blocks, scratch)
                    blocks.rest_mass[i] += old
                    blocks.rest_loss[i] += old * kept.loss[u, c] / n
                    blocks.mixed[i] = True
        row, pair = row + length, pair + examples.pair_rows[i]


_LATENCY, _PER_WEIGHT, _PER_PRODUCT = 1e-3, 1e-8, 1e-9
"""Seconds of an exchange, of each weight in it, and of a multiplication of a visit: round figures of a usual machine.
They are no measurements, so that the same data give the same rounds."""
_PART = 20  # a round is at most this part of a process's examples


class Rounds:
    """Visits in rounds: each process visits some of its blocks, and the box QP over the ranks combines their moves.

    Short rounds need fewer passes, long ones fewer exchanges. ``visits`` counts a process's visits in a round;
    None is as many as take the time of an exchange, by the sizes of weights and examples. ``loop`` is a
    ``CompiledBCFW``.
    """

    def __init__(self, loop: Any, visits: int | None) -> None:
        self._loop = loop
        self._exchange = Exchange(loop.dual.ranks, loop.dual.parameters)
        self.visits = self._usual() if visits is None else visits

    def step(self, visits: int) -> int:
        """Rounds of together ``visits`` visits of all processes; returns those made."""
        loop, ranks = self._loop, self._loop.dual.ranks
        left, done = -(-visits // ranks.size), 0
        loop.begin()
        try:
            while left > 0:
                size = min(self.visits, left)
                made = self._round(size)
                done, left = done + made, left - size
                if not made:
                    break
        finally:
            with undisturbed():
                loop.end()
        return done

    def _round(self, size: int) -> int:
        """One round of ``size`` visits of each process; returns the visits of all."""
        loop, dual = self._loop, self._loop.dual
        counters = dual.oracle_calls, dual.cache_hits, dual.moved, dual.steps
        kept: Kept | None = None
        before: _Before | None = None

        @undisturbed()
        def visit() -> tuple[list[Tensor], Figures]:
            nonlocal kept, before
            order = loop.draws.order_of(size)
            kept, before = loop.keep(order), _Before(loop, order)
            loop.visit_all(order)
            gradients = before.directions()
            change = float((dual.loss.numpy()[kept.index] - kept.losses).sum())
            value = change + inner_product([p.detach() for p in dual.parameters], gradients)
            calls, hits, moved = (
                now - old for now, old in zip((dual.oracle_calls, dual.cache_hits, dual.moved), counters, strict=False)
            )
            loss, gap = float(dual.loss.sum()) - change, float(dual.gap_estimates.sum())
            return gradients, Figures(value, 1.0, loss, change, gap, calls, hits, moved)

        try:
            combined = self._exchange(visit, dual.lam)
        except BaseException:
            if kept is not None and before is not None:
                with undisturbed():
                    before.put_back()
                    loop.blend(kept, 0.0)
            raise
        finally:
            dual.oracle_calls, dual.cache_hits, dual.moved, dual.steps = counters
        figures = combined.figures
        step = exact_step(figures.value, combined.squared_norm, dual.lam, figures.largest)
        assert kept is not None
        with undisturbed():
            loop.blend(kept, min(step * combined.beta, 1.0))
            dual.move_weights(combined.gradients, -step / dual.lam)
            record(dual, combined, step)
        return figures.moved

    def _usual(self) -> int:
        """Visits of a round: an exchange costs as much; a visit reads its features for all labels, and pairs."""
        loop, dual = self._loop, self._loop.dual
        examples, emission = loop.examples, loop.emission
        states = emission.shape[1] if emission.ndim == 2 else 1
        products = (loop.num_features + len(examples.added) * states) * states
        total = sum_in_order(dual.ranks.gather(torch.tensor(float(products), dtype=torch.float64)))
        visit = _PER_PRODUCT * max(float(total) / dual.num_examples, 1.0)
        exchange = _LATENCY + _PER_WEIGHT * sum(p.numel() for p in dual.parameters)
        return max(1, min(math.ceil(exchange / visit), dual.num_examples // dual.ranks.size // _PART))


class _Before:
    """Weights and gaps before a round of the blocks ``order``; of many weights, the rows that its examples read."""

    def __init__(self, loop: Any, order: Tensor) -> None:
        self._loop = loop
        rows: Tensor | None = None
        if loop.dual.is_large and (columns := loop.columns_of(np.unique(order.numpy()))) is not None:
            rows = torch.from_numpy(columns)
        emission = loop.emission
        self._weights = [
            (p.detach(), rows if p.data_ptr() == emission.data_ptr() and p.shape == emission.shape else None)
            for p in loop.dual.parameters
        ]
        self._before = [p.clone() if rows is None else p[rows] for p, rows in self._weights]
        self._gaps = loop.dual.gap_estimates.clone(), loop.dual.oracle_gaps.clone()

    def directions(self) -> list[Tensor]:
        """``lam`` times the change of each parameter since the start of the round; restores the old weights."""
        changes = []
        for (weights, rows), before in zip(self._weights, self._before, strict=True):
            change = (before - (weights if rows is None else weights[rows])) * self._loop.dual.lam
            changes.append(change if rows is None else rows_of(rows, change, weights.shape, coalesced=True))
        self._put_weights_back()
        return changes

    def put_back(self) -> None:
        self._put_weights_back()
        dual = self._loop.dual
        for current, gaps in zip((dual.gap_estimates, dual.oracle_gaps), self._gaps, strict=True):
            current.copy_(gaps)

    def _put_weights_back(self) -> None:
        for (weights, rows), before in zip(self._weights, self._before, strict=True):
            if rows is None:
                weights.copy_(before)
            else:
                weights[rows] = before
