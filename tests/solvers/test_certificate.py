"""What a certificate says is true."""

from __future__ import annotations

import warnings

import pytest
import torch
from cases.problems import PROBLEMS, assert_same, chain, examples, flat, multiclass, reference, refused, rng
from cases.top_label_sets import Approximate, LabelSets, label_sets
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    CompiledBCFW,
    DualState,
    Labelings,
    LinearMulticlass,
    MeanParts,
    Multiclass,
    Weights,
    certify,
    recompute_weights,
)
from torchssvm.core import threads
from torchssvm.core.batch import apply_head
from torchssvm.core.potentials import as_potentials
from torchssvm.solvers.certificate import dual_exceeds_primal

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from(sorted(PROBLEMS))
STORAGES = st.sampled_from([MeanParts, Weights])
ROWS = [[0, 1], [2], [3, 1], [4], [0]]


@examples(20)
@given(seed=SEEDS, kind=KINDS, storage=STORAGES, batch_size=st.integers(1, 6), adjoint=st.booleans())
def test_against_brute_force(seed, kind, storage, batch_size, adjoint):
    problem = PROBLEMS[kind](seed, adjoint=adjoint)
    training = problem.train(storage=storage()).run(ROWS)
    calls = training.dual.oracle_calls
    value, w = training.dual.value(), training.weights()
    certificate = certify(training.head, training.dual, problem.everything(batch_size))
    truth = reference(problem)
    assert certificate.primal == pytest.approx(truth.primal(w), abs=1e-11)
    assert certificate.dual == pytest.approx(value, abs=1e-11)
    assert certificate.gap == certificate.primal - certificate.dual
    assert certificate.gap >= -1e-12
    assert certificate.exact
    assert certificate.drift < 1e-12
    assert certificate.oracle_calls == calls + problem.n == training.dual.oracle_calls
    assert certificate.passes == certificate.oracle_calls / problem.n == training.dual.passes
    assert (certificate.num_examples, certificate.lam) == (problem.n, problem.lam)
    assert certificate.seconds > 0
    assert float(training.dual.gap_estimates.sum()) == pytest.approx(certificate.gap, abs=1e-11)


@pytest.mark.parametrize("storage", [MeanParts, Labelings, Weights])
def test_steps_and_an_exact_pass_have_the_same_bits_on_one_and_two_threads(storage, monkeypatch):
    """Enough examples that decoder and torch split them among threads."""
    split = []
    run = threads._run
    monkeypatch.setattr(threads, "_run", lambda tasks: split.append(len(tasks)) or run(tasks))
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            training = chain(6, n=400, features=8, states=26, longest=8).train(storage=storage())
            training.run([list(range(k, 400, 3)) for k in range(3)])
            certificate = certify(training.head, training.dual, training.problem.everything())
            results.append((training.dual.state_dict(), certificate.primal, certificate.dual, certificate.drift))
    finally:
        torch.set_num_threads(before)
    assert set(split) == {2}
    if not blas_keeps_bits():
        pytest.skip("the matrix products of this machine's BLAS have other bits on two threads")
    assert_same(*results)


def blas_keeps_bits():
    tall, wide = (torch.randn(1064, columns, generator=rng(0), dtype=torch.float64) for columns in (26, 8))
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(tall.T @ wide)
    finally:
        torch.set_num_threads(before)
    return torch.equal(*results)


def test_devices(device):
    here, there = chain(5), chain(5).to(device)
    a, b = here.train(), there.train()
    for rows in ROWS:
        batch = here.batch(rows)
        a.step(batch)
        b.step(type(batch)(*(t.to(device) for t in batch)))
    first = certify(a.head, a.dual, here.everything(2))
    second = certify(b.head, b.dual, here.everything(2))  # batches come from the CPU, as from a loader
    assert second.primal == pytest.approx(first.primal, abs=1e-10)
    assert second.dual == pytest.approx(first.dual, abs=1e-10)


@pytest.mark.parametrize("pass_over", [certify, recompute_weights])
@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([[0, 1], [2, 3]], "left out 1 of 5 examples"),
        ([[0]], "left out 4 of 5 examples"),
        ([], "left out 5 of 5 examples"),
        ([[0, 1], [2, 3], [4, 0]], "twice"),
        ([[0, 1, 1], [2, 3], [4]], "twice"),
    ],
)
def test_missing_and_repeated_examples_are_errors(pass_over, batches, words):
    problem = chain(2)
    training = problem.train().run(ROWS)
    with refused(training, ValueError, words):
        pass_over(training.head, training.dual, [problem.batch(rows) for rows in batches])
    training.step([0, 1])


@pytest.mark.parametrize(("change", "warned"), [(5e-4, False), (5e-3, True)])
def test_negligible_weights_may_differ_by_their_own_length(change, warned):
    head = LinearMulticlass(1, 2, bias=False)
    batch = Batch(torch.tensor([[1.0], [1.0], [0.01]]), torch.tensor([0, 1, 0]), torch.arange(3))  # two cancel
    dual = DualState.for_head(head, num_examples=3, lam=1.0, storage=MeanParts())
    CompiledBCFW(head, dual, [batch]).visit(torch.arange(3))
    with torch.no_grad():
        head.weight += change
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        certificate = certify(head, dual, [batch])
    assert certificate.drift > 0.02
    assert bool(told) == warned


@pytest.mark.parametrize("storage", [MeanParts, Weights])
def test_the_weights_stay_until_the_next_step_and_then_start_from_the_dual(storage):
    problem = chain(6)
    training = problem.train(storage=storage()).run(ROWS)
    clean = training.weights()
    drift = [1e-3 * torch.randn(p.shape, generator=rng(1), dtype=p.dtype) for p in training.dual.parameters]
    with torch.no_grad():
        for p, d in zip(training.dual.parameters, drift, strict=True):
            p += d
    before = training.weights()
    certificate = certify(training.head, training.dual, problem.everything(2))
    assert torch.equal(training.weights(), before)
    assert certificate.drift == pytest.approx(float(flat(drift).norm() / clean.norm()), rel=1e-6)
    assert certificate.primal == pytest.approx(reference(problem).primal(before), abs=1e-11)
    training.optim.zero_grad()
    training.backward([3])
    gradient = flat(p.grad for p in training.dual.parameters)
    training.optim.step()
    rate = training.optim.param_groups[0]["lr"]
    torch.testing.assert_close(training.weights(), clean - rate * gradient, rtol=1e-9, atol=1e-12)
    assert certify(training.head, training.dual, problem.everything(2)).drift < 1e-10


def test_without_refresh_the_next_step_starts_from_the_held_weights():
    problem = chain(6)
    a, b = problem.copy().train().run(ROWS), problem.copy().train().run(ROWS)
    certify(a.head, a.dual, problem.everything(2), refresh=False)
    a.step([3])
    b.step([3])
    assert torch.equal(a.weights(), b.weights())
    assert torch.equal(a.dual.loss, b.dual.loss)


def test_certificates_never_change_blocks_or_steps():
    problem = chain(6)
    training = problem.train().run(ROWS)
    before = training.snapshot()
    certify(training.head, training.dual, problem.everything(2))
    after = training.snapshot()
    for state in (before, after):
        for name in ("gap_estimates", "oracle_gaps", "certified_gap", "oracle_calls", "recomputed", "targets"):
            state["dual"].pop(name)
    assert_same(after, before)
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in training.dual.parameters)


def test_a_certificate_leaves_gradients_and_proposals_alone():
    problem = chain(6)
    a, b = problem.copy().train().run(ROWS), problem.copy().train().run(ROWS)
    for training in (a, b):
        training.optim.zero_grad()
        training.backward([2, 3])
    gradient = flat(p.grad for p in a.dual.parameters)
    certify(a.head, a.dual, problem.everything(2), refresh=False)
    assert torch.equal(flat(p.grad for p in a.dual.parameters), gradient)
    a.optim.step()
    b.optim.step()
    assert torch.equal(a.weights(), b.weights())


def test_bounds_make_the_certificate_of_an_approximate_oracle_valid():
    head, _, batch = label_sets(1)
    structure = Approximate(4, 2)
    dual = DualState.for_head(head, 5, 0.2, structure=structure)
    optim, loss = BCFW(head.parameters(), dual), BlockGap(dual)
    exact_gap = None
    for k in range(60):
        row = torch.tensor([k % 5])
        optim.zero_grad()
        loss(head(batch.x[row]), batch.y[row], row).backward()
        optim.step()
        if k % 20 == 19:
            certificate = certify(head, dual, [batch])
            assert not certificate.exact
            assert "upper bound: approximate oracle" in str(certificate)
            scores = batch.x @ head.weight.detach().T
            outputs = every(head, batch)
            listed = torch.stack([structure.loss(y, batch.y) + (scores * (y - batch.y)).sum(1) for y in outputs])
            primal = 0.1 * float(head.weight.detach().square().sum()) + float(listed.max(0).values.mean())
            assert certificate.primal == pytest.approx(primal + structure.slack, abs=1e-10)
            assert certificate.gap == pytest.approx(certificate.primal - dual.value(), abs=1e-10)
            exact_gap = certificate.gap - structure.slack
    assert 0 <= exact_gap < 0.2
    assert bool((dual.gap_estimates >= 0).all())


def every(head, batch):
    return list(LabelSets(4, 2).enumerate(as_potentials(head(batch.x))))


@examples(15)
@given(seed=SEEDS, kind=KINDS, adjoint=st.booleans())
def test_recomputed_weights_are_those_of_the_dual_for_the_new_features(seed, kind, adjoint):
    problem = PROBLEMS[kind](seed, adjoint=adjoint)
    training = problem.train().run(ROWS)
    before = reference(problem)
    problem.x = problem.x + 0.5 * torch.randn(problem.x.shape, generator=rng(seed + 1), dtype=torch.float64)
    truth = reference(problem)
    kept = training.weights()
    change = recompute_weights(training.head, training.dual, problem.everything(2))
    w = training.weights()
    assert change == pytest.approx(float((w - kept).norm() / kept.norm()), rel=1e-8)
    assert change > 1e-6
    # mu_i keeps its meaning: w = -(1/(lam n)) sum_i Phi_i^T (mu_i - p(y_i)) with the new Phi_i
    expected = torch.zeros_like(w)
    for i in range(problem.n):
        batch = problem.batch([i])
        potentials = apply_head(training.head, batch)
        stored = training.dual.storage.gather(batch.index, potentials, batch.y)
        parts = torch.autograd.grad(
            list(potentials.tensors.values()),
            training.dual.parameters,
            [stored.psi[name] for name in potentials.tensors],
            allow_unused=True,
        )
        parts = [torch.zeros_like(p) if g is None else g for g, p in zip(parts, training.dual.parameters, strict=True)]
        expected += flat(parts) / (problem.lam * problem.n)
    torch.testing.assert_close(w, expected)
    assert bool(torch.isinf(training.dual.gap_estimates).all())
    certificate = certify(training.head, training.dual, problem.everything(2))
    assert certificate.gap >= -1e-12
    assert certificate.drift < 1e-12
    assert certificate.primal == pytest.approx(truth.primal(w), abs=1e-10)
    assert before.n == truth.n
    value = training.dual.value()
    for rows in ROWS:
        assert training.step(rows) >= -1e-12
        assert training.dual.value() >= value - 1e-12
        value = training.dual.value()


def test_the_dual_does_not_fall_after_a_certificate_of_moved_features():
    """The step after a refreshing certificate starts from w(alpha), and must be exact there too."""
    for seed in range(8):
        problem = chain(seed, lam=0.05)
        training = problem.train().run(ROWS)
        problem.x = problem.x + 2 * torch.randn(problem.x.shape, generator=rng(seed), dtype=torch.float64)
        before = certify(training.head, training.dual, problem.everything()).dual
        try:
            training.step([0, 1])
        except RuntimeError:
            continue  # refusing is right too
        assert certify(training.head, training.dual, problem.everything()).dual >= before - 1e-10


def test_recomputing_replaces_what_an_earlier_certificate_kept_for_the_next_step():
    problem = chain(3)
    training = problem.train().run(ROWS)
    certify(training.head, training.dual, problem.everything(2))
    problem.x = problem.x + torch.randn(problem.x.shape, generator=rng(9), dtype=torch.float64)
    recompute_weights(training.head, training.dual, problem.everything(2))
    start = training.weights()
    training.step([2, 3])
    gradient = flat(p.grad for p in training.dual.parameters)
    torch.testing.assert_close(training.weights(), start - training.optim.param_groups[0]["lr"] * gradient)


class ReturnsTheTarget(Multiclass):
    """A wrong oracle: it ignores score and loss."""

    def augmented_argmax(self, potentials, target):
        return target


def test_an_oracle_that_finds_nothing_is_not_taken_for_a_solved_problem():
    """At zero weights the primal is the mean of the largest losses, which is 0 only where no output has a loss."""
    problem = multiclass(0)
    dual = DualState.for_head(problem.head, problem.n, problem.lam, structure=ReturnsTheTarget(3))
    with pytest.warns(UserWarning, match="the primal is 0 at zero weights.*augmented_argmax must maximise score"):
        assert certify(problem.head, dual, problem.everything()).gap == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training = problem.train()
        certify(problem.head, training.dual, problem.everything())


def test_a_dual_above_the_primal_by_more_than_rounding_proves_that_one_is_wrong():
    for dtype, rounding in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        assert not dual_exceeds_primal(2.0, 2.0 + rounding, dtype)
        assert dual_exceeds_primal(2.0, 2.0 + 1e3 * rounding, dtype)
    assert dual_exceeds_primal(float("nan"), 1.0, torch.float64)
