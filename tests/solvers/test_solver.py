"""Does BCFW solve the problem? Against a QP solver, against liblinear, and against known optima."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cases.problems import Problem, Training, chain, multiclass, reference, rng

from torchssvm import (
    Corrective,
    GapBatchSampler,
    Labelings,
    LinearChain,
    LinearMulticlass,
    MeanParts,
    Permutation,
    Proportional,
    Uniform,
    Weights,
    certify,
)
from torchssvm.datasets import OCR
from torchssvm.solvers import Certificate
from torchssvm.steps import LargestGap
from torchssvm.steps.box_qp import solve_box_qp
from torchssvm.steps.line_search import exact_step

STORAGES = {"mean_parts": MeanParts, "weights": Weights}


def solve(problem: Problem, *, steps: int, batch_size: int = 1, order=None, **options):
    """Train, and check on the way that every certificate encloses the optimum."""
    optimum = reference(problem).optimum()
    training = problem.train(**options)
    sampler = GapBatchSampler(training.dual, batch_size=batch_size, order=order)
    certificates = []
    while training.dual.steps < steps:
        for rows in sampler:
            training.step(rows)
        if not certificates or training.dual.steps >= steps or len(certificates) < 3:
            certificates.append(certify(training.head, training.dual, problem.everything(2)))
            assert certificates[-1].dual <= optimum + 1e-7
            assert certificates[-1].primal >= optimum - 1e-7
    return certificates[-1], optimum


@pytest.mark.parametrize("storage", sorted(STORAGES))
@pytest.mark.parametrize(
    ("batch_size", "sweeps", "adjoint"),
    [(1, 10, True), (3, 10, True), (4, 10, True), (3, 1, True), (3, 0, True), (4, 0, False), (1, 10, False)],
)
@pytest.mark.parametrize("make", [chain, multiclass])
def test_any_outputs_to_the_optimum(storage, batch_size, sweeps, adjoint, make):
    """Frank-Wolfe's error is of order 1/(lam k): lam is large, so that few steps suffice."""
    problem = make(3, n=4, lam=100.0, adjoint=adjoint)
    certificate, optimum = solve(problem, steps=40, batch_size=batch_size, sweeps=sweeps, storage=STORAGES[storage]())
    assert certificate.dual == pytest.approx(optimum, abs=1e-6)
    assert certificate.gap < 5e-5
    truth = reference(problem)
    # The optimum is not one of the simple points: zero weights, or every block at a single output.
    assert truth.primal(np.zeros_like(truth.changes[0][0])) - optimum > 1e-4


@pytest.mark.parametrize("order", [Proportional(), Proportional(0.5), LargestGap(), Uniform(), Permutation()], ids=repr)
def test_every_order_finds_the_optimum(order):
    problem = multiclass(2, n=6, classes=2, features=2, lam=0.3)
    certificate, optimum = solve(problem, steps=120, batch_size=2, order=order)
    assert certificate.gap < 1e-6
    assert certificate.dual == pytest.approx(optimum, abs=1e-6)


def test_a_block_at_its_corner_may_be_visited_again():
    """Heavy regularisation puts every block at one output, where the gap is zero and so is the gradient."""
    for dtype in (torch.float64, torch.float32):
        for seed in range(5):
            problem = chain(seed, n=2, lam=1000.0, dtype=dtype)
            training = problem.train()
            for k in range(8):
                training.step([k % 2])
            assert training.dual.steps == 8


@pytest.mark.slow
def test_multiclass_is_liblinears_crammer_singer():
    datasets = pytest.importorskip("sklearn.datasets")
    svm = pytest.importorskip("sklearn.svm")
    x, y = datasets.load_digits(return_X_y=True)
    x, y = x[:200] / 16.0, y[:200]
    lam = 0.2
    model = svm.LinearSVC(
        multi_class="crammer_singer", fit_intercept=False, C=1 / (lam * len(x)), tol=1e-8, max_iter=100_000
    ).fit(x, y)
    problem = Problem(
        LinearMulticlass(64, 10, bias=False).double(), torch.from_numpy(x), torch.from_numpy(y), None, lam
    )
    everything = problem.batch(range(problem.n))

    def primal(weight: torch.Tensor) -> float:
        scores = everything.x @ weight.t()
        scores = scores + 1.0 - torch.nn.functional.one_hot(everything.y, 10)
        hinge = scores.max(1).values - (everything.x @ weight.t()).gather(1, everything.y.unsqueeze(1)).squeeze(1)
        return float(lam / 2 * weight.square().sum() + hinge.mean())

    theirs = primal(torch.from_numpy(model.coef_))
    training = problem.train()
    sampler = GapBatchSampler(training.dual, batch_size=50)
    result = None
    for _ in range(80):
        for _ in range(10):
            for rows in sampler:
                training.step(rows)
        result = certify(training.head, training.dual, [everything])
        assert result.dual <= theirs
        if result.gap <= 1e-4 * result.primal:
            break
    assert result.primal == pytest.approx(primal(training.head.weight.detach()), rel=1e-12)
    assert result.gap <= 1e-4 * result.primal
    assert result.primal == pytest.approx(theirs, rel=1e-4)


OCR_SMALL = 0.16458, 0.16556  # encloses the optimum of OCR-small for lam = 0.01


def words_and_head(storage=None) -> tuple[Problem, Training]:
    data = OCR("train", "small")
    problem = Problem(LinearChain(128, 26), data.x, data.y, data.lengths, 0.01)
    return problem, problem.train(storage=storage)


def train(training: Training, epochs: int) -> Certificate:
    for rows in itertools.chain.from_iterable(GapBatchSampler(training.dual, batch_size=64) for _ in range(epochs)):
        training.step(rows)
    return certify(training.head, training.dual, [training.problem.batch(range(training.problem.n))])


def test_ocr_small_certificates_enclose_the_known_optimum():
    _, training = words_and_head()
    results = [train(training, 20) for _ in range(3)]
    for certificate in results:
        assert certificate.dual <= OCR_SMALL[1]
        assert certificate.primal >= OCR_SMALL[0]
        assert certificate.exact
    assert [c.dual for c in results] == sorted(c.dual for c in results)
    assert results[-1].gap < 0.25


def test_ocr_small_to_a_gap_of_a_hundredth():
    """The compiled loop takes the dual there; the torch loop goes on from w(alpha), whose primal is larger."""
    from torchssvm import CompiledBCFW

    problem, training = words_and_head(Labelings())
    loop = CompiledBCFW(problem.head, training.dual, problem.everything(64), direction=Corrective())
    proof = loop.certify()
    while proof.gap > 0.01 and proof.passes < 500:
        loop.step(20 * problem.n)
        proof = loop.certify()
    again = train(training, 2)
    assert again.dual > proof.dual
    for certificate, gap in ((proof, 0.01), (again, 0.05)):
        assert certificate.gap <= gap
        assert OCR_SMALL[0] - 0.01 <= certificate.dual <= OCR_SMALL[1]
        assert OCR_SMALL[0] <= certificate.primal <= OCR_SMALL[1] + gap


def test_the_box_qp_is_solved():
    qpsolvers = pytest.importorskip("qpsolvers")
    for seed in range(10):
        random = rng(seed)
        factors = torch.randn(5, 7, generator=random, dtype=torch.float64)
        matrix, values = factors @ factors.T, 2 * torch.randn(5, generator=random, dtype=torch.float64)
        result = solve_box_qp(matrix, values, 1000)
        best = qpsolvers.solve_qp(matrix.numpy(), -values.numpy(), lb=np.zeros(5), ub=np.ones(5), solver="quadprog")

        def objective(gammas, matrix=matrix, values=values):
            return float(values @ gammas - gammas @ matrix @ gammas / 2)

        reached = [objective(solve_box_qp(matrix, values, sweeps)) for sweeps in (0, 1, 2, 5, 20, 1000)]
        assert reached == sorted(reached)
        assert -1e-9 <= objective(torch.from_numpy(best)) - reached[-1] < 1e-3 * (1e-3 + reached[-1])
        result = solve_box_qp(matrix, values, 1000)
        again = (result + (values - matrix @ result) / matrix.diagonal()).clamp(0, 1)
        assert result.tolist() == pytest.approx(again.tolist(), abs=2e-3)  # every coordinate is where it wants to be


def test_one_sweep_of_the_box_qp_is_one_exact_step_after_another():
    random = rng(1)
    factors = torch.randn(4, 3, generator=random, dtype=torch.float64)
    matrix, values = factors @ factors.T, torch.rand(4, generator=random, dtype=torch.float64)
    expected = torch.zeros(4, dtype=torch.float64)
    for i in range(4):
        expected[i] = ((values[i] - matrix[i] @ expected) / matrix[i, i]).clamp(0, 1)
    assert solve_box_qp(matrix, values, 1).tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert solve_box_qp(matrix, values, 0).tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("value", "squared", "lam", "largest", "step"),
    [
        (1.0, 4.0, 2.0, 1.0, 0.5),
        (9.0, 4.0, 2.0, 1.0, 1.0),
        (9.0, 4.0, 2.0, 0.5, 0.5),
        (0.0, 4.0, 2.0, 1.0, 0.0),
        (-1.0, 4.0, 2.0, 1.0, 0.0),
        (1.0, 0.0, 2.0, 0.5, 0.5),
        (0.0, 0.0, 2.0, 1.0, 0.0),
    ],
)
def test_the_exact_step(value, squared, lam, largest, step):
    assert exact_step(value, squared, lam, largest) == step


def test_examples_without_features_move_their_loss_only():
    """phi does not depend on the output: the block goes to the largest loss at once, and the weights stay zero."""
    problem = multiclass(0, n=3, bias=False)
    problem.x = torch.zeros_like(problem.x)
    training = problem.train()
    training.step([0, 1, 2])
    assert training.weights().count_nonzero() == 0
    certificate = certify(training.head, training.dual, problem.everything())
    assert (certificate.primal, certificate.dual) == pytest.approx((1.0, 1.0))
