"""The subgradient baseline, and Adam as ordinary torch."""

import pytest
import torch
from baselines import Subgradient
from cases.problems import PROBLEMS, chain, flat, multiclass, reference, rng

from torchssvm import StructuredHinge
from torchssvm.core.batch import apply_head
from torchssvm.solvers import SuffixAverage, UniformAverage, WeightedAverage, primal

pytestmark = pytest.mark.slow  # methods to compare with, outside of the package

AVERAGES = [WeightedAverage, SuffixAverage, UniformAverage]


class Descent:
    """A plain torch loop with the hinge, and any optimizer."""

    def __init__(self, problem, make, *, regularised=False):
        self.problem, self.hinge = problem, StructuredHinge(problem.structure)
        self.params = list(problem.head.parameters())
        self.optim, self.regularised = make(self.params), regularised
        self.random = rng(0)

    def backward(self, rows):
        batch = self.problem.batch(rows)
        self.optim.zero_grad()
        loss = self.hinge(apply_head(self.problem.head, batch), batch.y)
        if self.regularised:
            loss = loss + self.problem.lam / 2 * sum(p.square().sum() for p in self.params)
        loss.backward()

    def step(self, rows=None):
        self.backward(torch.randint(0, self.problem.n, (1,), generator=self.random).tolist() if rows is None else rows)
        self.optim.step()

    def weights(self):
        return flat(self.params)


def descent(problem, **options):
    return Descent(problem, lambda params: Subgradient(params, problem.lam, **options))


def test_the_steps_are_those_of_the_paper():
    problem = chain(2, lam=0.3)
    run, w = descent(problem), torch.zeros(sum(p.numel() for p in problem.head.parameters()), dtype=torch.float64)
    truth = reference(problem)
    with torch.no_grad():
        for p in problem.head.parameters():
            p.copy_(torch.randn(p.shape, generator=rng(1), dtype=p.dtype))
    w = run.weights()
    for k in range(12):
        i = k % problem.n
        best = (truth.losses[i] + truth.changes[i] @ w.numpy()).argmax()
        eta = 1 / (problem.lam * (k + 1))
        w = (1 - eta * problem.lam) * w - eta * torch.from_numpy(truth.changes[i][best])
        run.step([i])
        torch.testing.assert_close(run.weights(), w)
        assert run.optim.param_groups[0]["lr"] == pytest.approx(eta)


def test_the_ball_of_the_projection_holds_the_optimum_and_the_iterates():
    problem = multiclass(3, lam=0.05)
    free, run = descent(problem.copy()), descent(problem, max_loss=1.0)
    radius = (1.0 / problem.lam) ** 0.5
    outside = 0
    for _ in range(60):
        free.step()
        before = run.weights()
        run.backward([0])
        gradient = flat(p.grad for p in run.params)
        run.optim.step()
        group = run.optim.param_groups[0]
        eta = group["lr"]
        expected = (1 - eta * problem.lam) * before - eta * gradient
        length = float(expected.norm())
        outside += length > radius
        torch.testing.assert_close(run.weights(), expected * min(1.0, radius / length))
        assert float(run.weights().norm()) <= radius * (1 + 1e-12)
    assert outside > 0
    trained = multiclass(3, lam=0.05).train().run([[k % problem.n] for k in range(100)])
    assert float(trained.weights().norm()) < radius


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_averages_converge_to_the_optimum_from_above(kind):
    problem = PROBLEMS[kind](3)
    truth = reference(problem)
    optimum = truth.optimum()
    run = descent(problem, max_loss=1.0)
    averages = [average(run.params) for average in AVERAGES]
    above = {}
    for count in range(1, 1001):
        run.step()
        for average in averages:
            average.update()
        if count in (1, 10, 100, 1000):
            above[count] = [truth.primal(w) - optimum for w in (run.weights(), *(flat(a.weights) for a in averages))]
            assert min(above[count]) >= -1e-9
    for average, early, late in zip(averages, above[10][1:], above[1000][1:], strict=True):
        with average.apply():
            value = primal(problem.head, problem.structure, problem.everything(2), problem.lam).value
        assert value == pytest.approx(optimum + late, abs=1e-11)
        assert late < 0.3 * early, average
        assert value <= 1.03 * optimum, average
