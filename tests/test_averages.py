"""The averages of [B13]: their formulas, and what they are good for."""

from __future__ import annotations

import pytest
import torch
from average_cases import AverageTestCase, schedule
from custom import Approximate, label_sets
from problems import chain, reference, rng

from torchssvm import (
    BCFW,
    Average,
    BlockGap,
    DualState,
    SuffixAverage,
    UniformAverage,
    WeightedAverage,
    certify,
)
from torchssvm.potentials import as_potentials


class TestWeightedAverage(AverageTestCase):
    kind = WeightedAverage

    def shares(self, count):
        return [2 * t / (count * (count + 1)) for t in range(1, count + 1)]

    def test_the_recursion_of_the_paper(self):
        """``wbar <- k/(k+2) wbar + 2/(k+2) w`` after step k = 0, 1, ..."""
        for k in range(20):
            assert self.kind([torch.zeros(1)]).coefficient(k + 1) == pytest.approx(2 / (k + 2))


class TestSuffixAverage(AverageTestCase):
    kind = SuffixAverage

    def shares(self, count):
        start = max(2**e for e in range(20) if 2**e <= count)
        return [1 / (count - start + 1) if t >= start else 0.0 for t in range(1, count + 1)]


class TestUniformAverage(AverageTestCase):
    kind = UniformAverage

    def shares(self, count):
        return [1 / count] * count


KINDS = [WeightedAverage, SuffixAverage, UniformAverage]


def following(dual: DualState, kinds: list[type[Average]]) -> list[Average]:
    return [kind.following(dual) for kind in kinds]


def test_the_weighted_average_of_bcfw_is_better_than_the_last_iterate():
    """As in [B13] Figure 1; on every one of these problems after ten passes."""
    for seed in range(3):
        problem = chain(seed, n=20, features=4, states=3, longest=4, lam=0.01)
        training = problem.train()
        (average,) = following(training.dual, [WeightedAverage])
        training.run([[i] for i in torch.randint(0, problem.n, (10 * problem.n,), generator=rng(seed)).tolist()])
        last = certify(training.head, training.dual, problem.everything(), refresh=False)
        mean = average.certify(training.head, training.dual, problem.everything())
        assert mean.primal < 0.97 * last.primal
        assert mean.gap < last.gap
        assert mean.primal >= last.dual


def test_several_averages_follow_one_dual():
    problem = chain(2)
    together, alone = problem.copy().train(), [problem.copy().train() for _ in KINDS]
    averages = following(together.dual, KINDS)
    each = [kind.following(training.dual) for kind, training in zip(KINDS, alone, strict=True)]
    for training in (together, *alone):
        training.run(schedule(problem, 3, 11))
    for a, b, training in zip(averages, each, alone, strict=True):
        found = a.certify(together.head, together.dual, problem.everything())
        assert found.gap == b.certify(training.head, training.dual, problem.everything()).gap
    assert len({a.loss for a in averages}) == len(KINDS)


def test_an_approximate_oracle_gives_an_upper_bound():
    head, _, batch = label_sets(1)
    structure = Approximate(4, 2)
    dual = DualState.for_head(head, 5, 0.2, structure=structure)
    optim, loss = BCFW(head.parameters(), dual), BlockGap(dual)
    average = WeightedAverage.following(dual)
    for k in range(20):
        row = torch.tensor([k % 5])
        optim.zero_grad()
        loss(head(batch.x[row]), batch.y[row], row).backward()
        optim.step()
    found = average.certify(head, dual, [batch])
    assert not found.exact
    with average.apply():
        scores = batch.x @ head.weight.detach().T
        squared = float(head.weight.detach().square().sum())
    outputs = list(structure.enumerate(as_potentials(scores)))
    listed = torch.stack([structure.loss(y, batch.y) + (scores * (y - batch.y)).sum(1) for y in outputs])
    exact = 0.1 * squared + float(listed.max(0).values.mean())
    assert found.primal == pytest.approx(exact + structure.slack, abs=1e-10)


def test_both_bounds_are_of_one_optimum():
    """The tightest gap takes the primal of the average and the dual of the last iterate."""
    problem = chain(1)
    training = problem.train()
    averages = following(training.dual, KINDS)
    training.run(schedule(problem, 5, 30))
    optimum = reference(problem).optimum()
    last = certify(training.head, training.dual, problem.everything(), refresh=False)
    for average in averages:
        found = average.certify(training.head, training.dual, problem.everything())
        assert found.primal >= optimum - 1e-9 >= last.dual - 2e-9
