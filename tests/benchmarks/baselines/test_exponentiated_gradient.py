"""Exponentiated gradient against explicit distributions over all outputs, against the optimum, and against damage."""

import numpy as np
import pytest
import torch
from baselines import CuttingPlane, ExponentiatedGradient, NSlack
from cases.problems import PROBLEMS, Reference, examples, flat, multiclass, reference
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.slow  # methods to compare with, outside of the package

SEEDS = st.integers(0, 2**31 - 1)


def method(problem, **options):
    return ExponentiatedGradient(
        problem.head, problem.everything(2), num_examples=problem.n, lam=problem.lam, **options
    )


class Explicit:
    """The algorithm of the papers with one number for every output; its structure and its tensors are its own."""

    def __init__(self, listed: Reference, growth=1.05, halvings=(2, 5)) -> None:
        self.listed, self.growth, self.halvings = listed, growth, halvings
        self.logs = [np.zeros(len(losses)) for losses in listed.losses]
        self.etas = [0.5] * listed.n
        self.visits = [0] * listed.n

    @property
    def alphas(self):
        return [softmax(logs) for logs in self.logs]

    def step(self, i: int) -> int:
        """Returns the number of trials."""
        listed, alphas = self.listed, self.alphas
        before = listed.dual(alphas)
        ascent = listed.losses[i] + listed.changes[i] @ listed.weights(alphas)
        for trial in range(1 + self.halvings[self.visits[i] > 0]):
            if trial:
                self.etas[i] /= 2
            logs = self.logs[i] + self.etas[i] * ascent
            if listed.dual([softmax(logs) if j == i else a for j, a in enumerate(alphas)]) >= before:
                self.logs[i] = logs
                break
        self.etas[i] *= self.growth
        self.visits[i] += 1
        return trial + 1


def softmax(values):
    values = np.exp(values - values.max())
    return values / values.sum()


@pytest.mark.parametrize("kind", PROBLEMS)
@examples(8)
@given(seed=SEEDS, lam=st.sampled_from([0.1, 0.5]))
def test_one_example_at_a_time_is_the_algorithm_of_the_papers(kind, seed, lam):
    problem = PROBLEMS[kind](seed, lam=lam)
    explicit = Explicit(reference(problem.copy()))
    gradient = method(problem)
    calls = problem.n
    for i in [*range(problem.n), *range(problem.n), 0, 1]:
        increase = gradient.visit(problem.batch([i]))
        before = explicit.listed.dual(explicit.alphas)
        calls += explicit.step(i)
        after = explicit.listed.dual(explicit.alphas)
        assert increase == pytest.approx(after - before, abs=1e-9)
        np.testing.assert_allclose(
            flat(gradient.dual.parameters), explicit.listed.weights(explicit.alphas), atol=1e-8, rtol=1e-8
        )
        assert gradient.dual.value() == pytest.approx(after, abs=1e-9)
        assert gradient.step_sizes.tolist() == pytest.approx(explicit.etas)
    assert gradient.dual.oracle_calls == calls


@pytest.mark.parametrize("kind", PROBLEMS)
def test_starts_uniform(kind):
    problem = PROBLEMS[kind](0)
    explicit = Explicit(reference(problem.copy()))
    gradient = method(problem)
    weights = flat(gradient.dual.parameters)
    assert bool(weights.any())
    np.testing.assert_allclose(weights, explicit.listed.weights(explicit.alphas), atol=1e-12)
    certificate = gradient.certify()
    assert certificate.dual == pytest.approx(explicit.listed.dual(explicit.alphas), abs=1e-12)
    assert certificate.primal == pytest.approx(explicit.listed.primal(weights), abs=1e-12)
    assert certificate.oracle_calls == 2 * problem.n


@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_reaches_the_optimum(kind, size):
    problem = PROBLEMS[kind](1, lam=1.0)
    optimum = reference(problem.copy()).optimum()
    gradient = method(problem)
    for _ in range(120):
        for batch in problem.everything(size):
            gradient.visit(batch)
        if gradient.dual.value() >= optimum - 5e-5:
            break
    certificate = gradient.certify()
    assert certificate.dual == pytest.approx(optimum, abs=1e-4)
    assert certificate.dual <= optimum + 2e-7
    assert certificate.primal >= optimum - 1e-9
    planes = CuttingPlane(
        PROBLEMS[kind](1).head, problem.everything(), num_examples=problem.n, lam=problem.lam, slack=NSlack()
    )
    theirs = planes.solve(1e-5)
    assert max(theirs.dual, certificate.dual) <= min(theirs.primal, certificate.primal) + 1e-9


@examples(10)
@given(
    seed=SEEDS,
    kind=st.sampled_from(sorted(PROBLEMS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    adjoint=st.booleans(),
)
def test_the_dual_never_falls_and_the_gap_is_never_negative(seed, kind, dtype, adjoint):
    problem = PROBLEMS[kind](seed, lam=0.1, dtype=dtype, adjoint=adjoint)
    gradient = method(problem)
    rounding = 1e3 * torch.finfo(dtype).eps
    before = gradient.certify()
    for sweep in range(4):
        increases = [gradient.visit(batch) for batch in problem.everything(1 + sweep)]
        assert min(increases) >= 0.0
        certificate = gradient.certify()
        allowed = rounding * (1 + abs(certificate.primal))
        assert certificate.gap >= -allowed
        assert certificate.dual - before.dual == pytest.approx(sum(increases), abs=allowed)
        assert certificate.dual >= before.dual - rounding
        before = certificate
    assert all(p.dtype == dtype for p in problem.head.parameters())
    assert certificate.exact


def test_an_example_drawn_twice_counts_once():
    problem, other = multiclass(0), multiclass(0)
    a, b = method(problem), method(other)
    a.visit(problem.batch([0, 2, 0, 2, 2]))
    b.visit(other.batch([0, 2]))
    torch.testing.assert_close(flat(problem.head.parameters()), flat(other.head.parameters()))
    assert a.dual.oracle_calls == b.dual.oracle_calls
