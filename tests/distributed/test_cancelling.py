"""Directions of several processes that cancel: the length of their sum is rounding, and never negative."""

from __future__ import annotations

import torch
from cases.problems import rng

from torchssvm.distributed.exchange import _SWEEPS, Exchange, Figures, add_products, solve_box_qp
from torchssvm.steps.line_search import exact_step


class Opposite:
    """Two ranks; the second one's direction is the first one's, times ``factor``, and has no value of its own."""

    size, rank = 2, 0

    def __init__(self, factor):
        self.factor = factor

    def is_small(self, numbers):
        return True

    def share(self, action, length):
        result, told = action()
        other = told.clone()
        other[len(Figures._fields) :] *= self.factor
        other[0] = 0.0
        return result, torch.stack([told, other])


def test_the_length_of_directions_that_cancel_is_not_negative():
    random, negative, lam = rng(0), 0, 1e-2
    for _ in range(300):
        direction = torch.randn(5, generator=random, dtype=torch.float64)
        factor = -1.0 - float(torch.rand((), generator=random, dtype=torch.float64))
        figures = Figures(1e6, 1.0, *([0] * (len(Figures._fields) - 2)))
        result = Exchange(Opposite(factor), [direction])(lambda sent=(direction, figures): ([sent[0]], sent[1]), lam)
        products = torch.zeros(2, 2, dtype=torch.float64)
        add_products(torch.stack([direction, factor * direction], 1).numpy(), products.numpy())
        beta = solve_box_qp(products / lam, torch.tensor([1e6, 0.0], dtype=torch.float64), _SWEEPS)
        negative += float(beta @ products @ beta) < 0.0
        assert result.squared_norm >= 0.0
        assert result.rho >= 0.0
        assert 0.0 <= exact_step(result.figures.value, result.squared_norm, lam, result.figures.largest) <= 1.0
    assert negative > 0  # else this has tested nothing
