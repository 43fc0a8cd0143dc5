"""Cutting planes against the QP over all outputs, against BCFW, and against damage."""

import numpy as np
import pytest
import torch
from baselines import CuttingPlane, NSlack, OneSlack
from baselines.block_qp import PlaneBlocks, _ascend, ascend_simplex
from cases.problems import PROBLEMS, chain, examples, flat, reference
from hypothesis import example, given, reject
from hypothesis import strategies as st

pytest.importorskip("clarabel")
pytestmark = pytest.mark.slow  # methods to compare with, outside of the package

SEEDS = st.integers(0, 2**31 - 1)
SLACKS = {"one": OneSlack, "n": NSlack}
both = pytest.mark.parametrize("slack", SLACKS.values(), ids=SLACKS.keys())


def method(problem, slack=None, batches=None, **options):
    slack, batches = slack if slack is not None else NSlack(), batches if batches is not None else problem.everything()
    return CuttingPlane(problem.head, batches, num_examples=problem.n, lam=problem.lam, slack=slack, **options)


def solved(listed):
    """The optimum; where lam is small the reference's solver now and then misses its mark, and says so."""
    try:
        return listed.optimum()
    except AssertionError:
        reject()


@both
@pytest.mark.parametrize("kind", PROBLEMS)
@examples(6)
@given(seed=SEEDS, lam=st.sampled_from([0.1, 0.5, 3.0]))
def test_reaches_the_optimum_of_the_qp(kind, slack, seed, lam):
    problem = PROBLEMS[kind](seed, lam=lam)
    listed = reference(problem.copy())
    optimum = solved(listed)
    cutting = method(problem, slack(), problem.everything(2))
    certificate = cutting.solve(1e-5)  # the QP solver of OneSlack does not always get further
    assert certificate.gap <= 1e-5
    assert certificate.exact
    assert certificate.primal == pytest.approx(optimum, abs=2e-5)
    assert certificate.dual == pytest.approx(optimum, abs=2e-5)
    # The certificate is about the weights that the head holds.
    assert certificate.primal == pytest.approx(listed.primal(flat(problem.head.parameters())), abs=1e-12)


@both
@examples(8)
@example(seed=66322, kind="multiclass", dtype=torch.float32)  # the best primal is below the dual before it, by rounding
@example(seed=66322, kind="multiclass", dtype=torch.float64)
@given(seed=SEEDS, kind=st.sampled_from(sorted(PROBLEMS)), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_every_iteration_is_a_certificate(slack, seed, kind, dtype):
    problem = PROBLEMS[kind](seed, lam=0.2, dtype=dtype)
    optimum = solved(reference(problem.copy()))
    cutting = method(problem, slack(), problem.everything(2))
    rounding = 2e-7 + 1e3 * torch.finfo(dtype).eps  # the reference is solved to 1e-7
    before = None
    for iteration in range(1, 9):
        result = cutting.step()
        assert result.dual - rounding <= optimum <= result.primal + rounding
        assert result.gap == result.primal - result.dual >= 0.0
        assert result.oracle_calls == iteration * problem.n
        assert result.passes == iteration
        assert cutting.gap == result.gap
        if before is not None:
            assert result.dual >= before.dual
            assert result.primal <= before.primal
        before = result
    assert all(p.dtype == dtype for p in problem.head.parameters())


@both
def test_inactive_constraints_are_dropped_and_the_optimum_is_reached_all_the_same(slack):
    problem = chain(5, n=6, lam=0.02, longest=4)
    kept, dropped = slack(keep=1000), slack(keep=1)
    a = method(problem.copy(), kept).solve(1e-5, max_passes=300)
    b = method(problem, dropped).solve(1e-5, max_passes=300)
    assert dropped.num_constraints < kept.num_constraints
    assert b.gap <= 1e-5
    assert a.primal == pytest.approx(b.primal, abs=2e-5)


@examples(40)
@given(seed=SEEDS, size=st.integers(1, 6), rank=st.integers(0, 6))
def test_a_block_is_ascended_and_the_compiled_kernel_agrees(seed, size, rank):
    random = np.random.default_rng(seed)
    factor = random.normal(size=(size, rank))
    curvature, slopes = factor @ factor.T, random.normal(size=size)
    alpha = random.dirichlet(np.ones(size + 1))[:size]
    result = ascend_simplex(slopes, alpha, curvature)

    def value(b):
        return slopes @ (b - alpha) - (b - alpha) @ curvature @ (b - alpha) / 2

    assert (result >= 0.0).all()
    assert result.sum() <= 1.0 + 1e-12
    assert value(result) >= -1e-12
    exact = ascend_simplex(slopes - 0.0, result, curvature) if rank == 0 else result
    assert value(exact) >= value(result) - 1e-12
    plain = alpha.copy()
    _ascend.__wrapped__(slopes.copy(), plain, curvature, 1e-3, 20 * (1 + size))
    assert np.array_equal(plain, result)


@examples(15)
@given(seed=SEEDS, n=st.integers(1, 4), dtype=st.sampled_from([np.float32, np.float64]))
def test_blocks_reach_the_optimum_of_the_restricted_qp(seed, n, dtype):
    random = np.random.default_rng(seed)
    owner = np.sort(random.integers(0, n, 7))
    planes, costs = random.normal(size=(7, 4)).astype(dtype), random.uniform(0, 1, 7)
    lam = 0.1
    blocks = PlaneBlocks(planes, costs, owner, lam, n)
    alpha = np.zeros(7)
    allowed = 1e-5 * n
    weights = blocks.ascend(alpha, allowed, 5000)
    dual = costs @ alpha / n - lam / 2 * weights @ weights
    hinges = blocks.hinges(weights)
    primal = lam / 2 * weights @ weights + hinges.mean()
    assert (alpha >= 0.0).all()
    assert max(alpha[owner == i].sum() for i in range(n)) <= 1.0 + 1e-9
    np.testing.assert_allclose(weights, alpha @ planes.astype(float) / (lam * n), atol=1e-12)
    np.testing.assert_allclose(
        hinges, [max([0.0, *(costs - planes @ weights)[owner == i]]) for i in range(n)], atol=1e-5
    )
    assert (-1e-9 if dtype == np.float64 else -1e-7) <= primal - dual <= 1e-4
