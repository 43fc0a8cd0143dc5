"""One hard object among easy ones: the problem of [G16] appendix C, where gap sampling wins by a factor min(n, K)."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import nn

from torchssvm import BlockGap, DualState, Multiclass, Proportional, TorchLoop, Uniform
from torchssvm.core.batch import Batch
from torchssvm.solvers import primal

pytestmark = pytest.mark.slow


class Toy(nn.Module):
    """Scores of labels 0 to K: 0 for the right one; ``-w_k / sqrt(2)`` if the object is hard, ``-w_last`` if not."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(labels + 1, dtype=torch.float64))

    def forward(self, hard):
        scores = torch.where(hard.unsqueeze(1), self.weight[:-1] / 2**0.5, self.weight[-1:])
        return torch.cat([torch.zeros(len(hard), 1, dtype=scores.dtype), -scores], 1)


class Objects(torch.utils.data.Dataset):
    """The first of n objects is the hard one; label 0 is right for all."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i

    def collate(self, items):
        index = torch.tensor(items)
        return Batch(index == 0, torch.zeros_like(index), index)


def calls_to(order, n: int, labels: int, seed: int) -> int:
    """Oracle calls until the gap is 0.6/(nK); the passes that look at the gap are not counted, and change nothing."""
    objects, head = Objects(n), Toy(labels)
    dual = DualState.for_head(head, n, 1.0 / n, structure=Multiclass(labels + 1))
    everything = [objects.collate(list(range(n)))]
    loop = TorchLoop(head, BlockGap(dual), objects, batch_size=1, order=order, seed=seed)
    while loop.step():
        if dual.oracle_calls % 8 == 0:
            gap = primal(head, dual.structure, everything, dual.lam).value - dual.value()
            assert gap >= -1e-12
            if gap <= 0.6 / (n * labels):
                return dual.oracle_calls
    raise AssertionError


def ratio(n: int, labels: int) -> float:
    """Of the medians of three runs."""
    uniform, gap = ([calls_to(order(), n, labels, seed) for seed in range(3)] for order in (Uniform, Proportional))
    return statistics.median(uniform) / statistics.median(gap)


def test_gap_sampling_visits_the_hard_object():
    """Uniform draws need some n K calls, gap sampling some max(n, K): the factor is near 13 here, and 1 without it."""
    assert ratio(32, 32) >= 32 / 4


@pytest.mark.parametrize(("n", "labels"), [(8, 32), (32, 8)])
def test_the_factor_is_limited_by_objects_and_by_labels(n, labels):
    """It grows like min(n, K)."""
    assert 1.5 < ratio(n, labels) < 32 / 4
