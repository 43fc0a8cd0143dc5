"""The compiled loop in several processes: rounds of own visits, each followed by a joint step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.ranks import sum_in_order
from torchssvm.core.row_sparse import inner_product, rows_of
from torchssvm.core.undisturbed import undisturbed
from torchssvm.distributed.exchange import Exchange, Figures
from torchssvm.kinds.examples import Examples
from torchssvm.solvers.compiled.blend import Kept
from torchssvm.solvers.proposal import record
from torchssvm.steps.line_search import exact_step

_LATENCY, _PER_WEIGHT, _PER_PRODUCT = 1e-3, 1e-8, 1e-9
"""Seconds of an exchange, of each weight in it, and of a multiplication of a visit: round figures of a usual machine.
They are no measurements, so that the same data give the same rounds."""
_PART = 20  # a round is at most this part of a process's examples


class Rounds:
    """Visits in rounds: each process visits some of its blocks, and the box QP over the ranks combines their moves.

    Short rounds need fewer passes, long ones fewer exchanges. ``visits`` are those of a process in a round; None is as
    many as would take the time of an exchange, by the sizes of weights and examples alone. ``loop`` is a
    ``CompiledBCFW``.
    """

    def __init__(self, loop: Any, visits: int | None) -> None:
        self._loop = loop
        self._exchange = Exchange(loop.dual.ranks, loop.dual.parameters)
        self.visits = self._usual() if visits is None else visits

    def step(self, visits: int) -> int:
        """Rounds of together ``visits`` visits of all processes; returns those made."""
        loop, ranks = self._loop, self._loop.dual.ranks
        own, done = -(-visits // ranks.size), 0
        loop.begin()
        try:
            while own > 0:
                size = min(self.visits, own)
                made = self._round(size)
                done, own = done + made, own - size
                if not made:
                    break
        finally:
            loop.end()
        return done

    def _round(self, size: int) -> int:
        """One round of ``size`` visits of each process; returns those of all."""
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
            change = float((dual.loss.numpy()[kept.own] - kept.losses).sum())
            value = change + inner_product([p.detach() for p in dual.parameters], gradients)
            calls, hits, moved = (
                now - old for now, old in zip((dual.oracle_calls, dual.cache_hits, dual.moved), counters, strict=False)
            )
            loss, gap = float(dual.loss.sum()) - change, float(dual.gap_estimates.sum())
            return gradients, Figures(value, 1.0, loss, change, gap, calls, hits, moved)

        try:
            found = self._exchange(visit, dual.lam)
        except BaseException:
            if kept is not None and before is not None:
                with undisturbed():
                    before.put_back()
                    loop.blend(kept, 0.0)
            raise
        finally:
            dual.oracle_calls, dual.cache_hits, dual.moved, dual.steps = counters
        figures = found.figures
        step = exact_step(figures.value, found.squared_norm, dual.lam, figures.largest)
        assert kept is not None
        with undisturbed():
            loop.blend(kept, min(step * found.beta, 1.0))
            dual.move_weights(found.gradients, -step / dual.lam)
            record(dual, found, step)
        return figures.moved

    def _usual(self) -> int:
        """Visits of a round: an exchange costs as much; a visit reads its features for all labels, and pairs."""
        loop, dual = self._loop, self._loop.dual
        examples, emission = loop.examples, loop.emission
        states = emission.shape[1] if emission.ndim == 2 else 1
        values = examples.x if examples.dense else examples.value
        if hasattr(examples.kind, "known_start"):  # columns are numbered within each example
            values = examples.kind.known
        products = (values.size + len(examples.added) * states) * states
        total = sum_in_order(dual.ranks.gather(torch.tensor(float(products), dtype=torch.float64)))
        visit = _PER_PRODUCT * max(float(total) / dual.num_examples, 1.0)
        exchange = _LATENCY + _PER_WEIGHT * sum(p.numel() for p in dual.parameters)
        return max(1, min(math.ceil(exchange / visit), dual.num_examples // dual.ranks.size // _PART))


class _Before:
    """Weights and gaps before a round of the blocks ``order``; of many weights, the rows that its examples read."""

    def __init__(self, loop: Any, order: Tensor) -> None:
        self._loop = loop
        rows: Tensor | None = None
        if loop.dual.is_large and (found := columns_of(loop.examples, np.unique(order.numpy()))) is not None:
            rows = torch.from_numpy(found)
        emission = loop.emission
        self._held = [
            (p.detach(), rows if p.data_ptr() == emission.data_ptr() and p.shape == emission.shape else None)
            for p in loop.dual.parameters
        ]
        self._before = [p.clone() if rows is None else p[rows] for p, rows in self._held]
        self._gaps = loop.dual.gap_estimates.clone(), loop.dual.oracle_gaps.clone()

    def directions(self) -> list[Tensor]:
        """``lam`` times the weights before less those of now, for each parameter; the old ones are put back."""
        found = []
        for (held, rows), before in zip(self._held, self._before, strict=True):
            change = (before - (held if rows is None else held[rows])) * self._loop.dual.lam
            found.append(change if rows is None else rows_of(rows, change, held.shape, coalesced=True))
        self._put_weights_back()
        return found

    def put_back(self) -> None:
        """Put weights and gaps back."""
        self._put_weights_back()
        dual = self._loop.dual
        for held, gaps in zip((dual.gap_estimates, dual.oracle_gaps), self._gaps, strict=True):
            held.copy_(gaps)

    def _put_weights_back(self) -> None:
        for (held, rows), before in zip(self._held, self._before, strict=True):
            if rows is None:
                held.copy_(before)
            else:
                held[rows] = before


def columns_of(examples: Examples, own: np.ndarray) -> np.ndarray | None:
    """The features that some examples have, ascending, int64; None where features are no lists."""
    if examples.dense:
        return None
    if hasattr(examples.kind, "known_start"):  # columns are numbered within each example
        first, end, values = examples.kind.known_start[own], examples.kind.known_start[own + 1], examples.kind.known
    else:
        first, end = examples.row[examples.start[own]], examples.row[examples.start[own + 1]]
        values = examples.column
    found = [values[a:b] for a, b in zip(first, end, strict=True)]
    return np.unique(np.concatenate([values[:0], *found])).astype(np.int64)
