"""Rules that have a torch form beside the Numba one: they decide alike."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases.problems import rng

from torchssvm import CacheOracle, FrankWolfe
from torchssvm.dual.active_sets import victims
from torchssvm.steps import Atoms
from torchssvm.steps.numba import cache_serves


@pytest.mark.parametrize("certified", [math.inf, 0.7])
@pytest.mark.parametrize("factor", [0.0, 0.3])
def test_the_cache_rule(factor, certified):
    random, rule = rng(1), CacheOracle(factor, floor=0.5)
    gaps = torch.rand(200, generator=random, dtype=torch.float64) - 0.2
    before = torch.rand(200, generator=random, dtype=torch.float64)
    dual = SimpleNamespace(oracle_gaps=before, certified_gap=certified, num_examples=2)
    missed = rule.misses(gaps, torch.arange(200), dual)
    pairs = zip(gaps.tolist(), before.tolist(), strict=True)
    served = [cache_serves(gap, stored, factor, rule.least(dual)) for gap, stored in pairs]
    assert missed.tolist() == [not one for one in served]
    assert any(served)
    assert not all(served)


def test_frank_wolfe():
    random = rng(2)
    mass = torch.rand(40, 5, generator=random, dtype=torch.float64)
    mass /= mass.sum(1, keepdim=True)
    scores = torch.randn(40, 5, generator=random, dtype=torch.float64)
    corner = torch.randint(5, (40,), generator=random)
    atoms = Atoms(mass, scores, torch.zeros_like(mass), torch.ones_like(mass, dtype=torch.bool), corner, 7)
    assert torch.equal(FrankWolfe()(atoms), atoms.choose(FrankWolfe()))


def test_the_slot_of_a_new_labeling():
    mass = np.array([[0.5, 0.0, 0.2], [0.5, 0.0, 0.0], [0.3, 0.0, 0.0], [0.6, 0.1, 0.3], [0.2, 0.2, 0.6]])
    used = np.array([[1, 2, 3], [1, 5, 4], [1, 4, 5], [9, 8, 7], [1, 1, 1]])
    slots = np.zeros(5, np.int64)
    victims(np.array([2, 3, 3, 3, 3]), mass, used, slots)
    # a free one; the less recent of two without mass; the same; the least mass; the first of these
    assert slots.tolist() == [2, 2, 1, 1, 0]
