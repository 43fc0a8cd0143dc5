"""Weights with bounds: the constrained optimum, and everything that must hold on the way to it."""

from __future__ import annotations

import copy
import functools
import math
import re

import numpy as np
import pytest
import torch
from cases.bounded import Bounded, groups_of, optimum_within
from cases.problems import PROBLEMS, assert_same, chain, examples, flat, multiclass, reference, rng, steps_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchssvm import (
    BCFW,
    BlockGap,
    CacheOracle,
    Corrective,
    DualState,
    GapBatchSampler,
    Labelings,
    LinearChain,
    MeanParts,
    Pairwise,
    Permutation,
    Weights,
    certify,
    recompute_weights,
)
from torchssvm.steps import Away, ExactSearch, ShortStep

SEEDS = st.integers(0, 2**31 - 1)
STORAGES = {"labelings": Labelings, "mean_parts": MeanParts, "weights": Weights}


def solve(run: Bounded, *, steps: int, batch_size: int = 1, gap: float = 1e-6):
    """Train to this gap, and check that certificates enclose the constrained optimum; the last one, and the optimum."""
    problem = run.problem
    lower, upper = run.limits()
    optimum, w = optimum_within(reference(problem), lower, upper)
    sampler = GapBatchSampler(run.dual, batch_size=batch_size, order=Permutation())
    while run.dual.steps < steps:
        for rows in sampler:
            run.step(rows)
        certificate = certify(run.head, run.dual, problem.everything(2), refresh=False)
        assert certificate.dual <= optimum + 1e-7
        assert certificate.primal >= optimum - 1e-7
        if certificate.gap < gap:
            return certificate, optimum, w
    raise AssertionError(f"the gap is {certificate.gap} after {steps} steps")


TWO_CLASS_BOUNDS = [
    {"weight": (0.0, None)},
    {"weight": (None, 0.1), "bias": (-0.05, 0.05)},
    {"weight": (-0.1, 0.2), "bias": (0.05, None)},  # zero is not allowed
    {"weight": (torch.tensor([[-math.inf], [0.2]]), torch.tensor([0.3, math.inf]))},
]


@pytest.mark.parametrize("bounds", TWO_CLASS_BOUNDS, ids=str)
@pytest.mark.parametrize(
    ("storage", "batch_size", "search"),
    [("mean_parts", 1, ExactSearch()), ("weights", 3, ExactSearch()), ("mean_parts", 6, ShortStep())],
    ids=str,
)
@pytest.mark.parametrize("seed", [2, 3])
def test_two_classes_to_the_optimum(bounds, storage, batch_size, search, seed):
    problem = multiclass(seed, n=6, classes=2, features=2, lam=0.3)
    run = Bounded(problem, bounds, storage=STORAGES[storage](), line_search=search)
    certificate, optimum, w = solve(run, steps=120, batch_size=batch_size)
    assert certificate.primal == pytest.approx(optimum, abs=1e-6)
    assert certificate.dual == pytest.approx(optimum, abs=1e-6)
    np.testing.assert_allclose(run.weights().numpy(), w, atol=2e-3)  # strong convexity: |w - w*|^2 <= 2 gap / lam
    lower, upper = run.limits()
    assert ((w <= lower) | (w >= upper)).any()  # a bound binds
    assert optimum > reference(problem).optimum() + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("direction", [Pairwise(), Away(), Corrective()], ids=repr)
@pytest.mark.parametrize("oracle", [None, CacheOracle()], ids=repr)
@pytest.mark.parametrize(("batch_size", "lam"), [(1, 2.0), (3, 0.5)])
def test_active_sets_converge_linearly_within_bounds(direction, oracle, batch_size, lam):
    """Blocks of several outputs, to a gap that Frank-Wolfe steps do not reach."""
    problem = chain(3, n=4, lam=lam)
    run = Bounded(problem, {"transition": (0.0, None), "emission": (None, 0.1)}, storage=Labelings())
    run.loss = BlockGap(run.dual, direction, oracle=oracle)
    certificate, optimum, w = solve(run, steps=150 + 150 * batch_size, batch_size=batch_size)
    assert certificate.primal == pytest.approx(optimum, abs=1e-6)
    np.testing.assert_allclose(run.weights().numpy(), w, atol=2e-3)
    assert optimum > reference(problem).optimum() + 1e-3


@pytest.mark.parametrize("seed", [2, 3])
def test_the_line_search_begins_where_the_blocks_are(seed):
    """At v, which bounds do not stop: a search from the weights would find other steps."""

    class Noting(ExactSearch):
        def __call__(self, line):
            starts.append(flat(line.start).numpy().copy())
            return super().__call__(line)

    starts, beyond = [], 0.0
    run = Bounded(multiclass(seed, n=6, classes=2, features=2, lam=0.3), TWO_CLASS_BOUNDS[2], line_search=Noting())
    for step in range(18):
        v = run.recomputed()
        run.step([step % 6])
        beyond = max(beyond, np.abs(v - v.clip(*run.limits())).max())
        if len(starts) == step + 1:
            np.testing.assert_allclose(starts[-1], v, atol=1e-9)
        else:
            starts.append(v)  # nothing to search
    assert beyond > 0.01


def random_bounds(head: torch.nn.Module, random: torch.Generator):
    """For each parameter none, a number, or a tensor on one side or both; zero may be outside."""
    bounds = {}
    for name, parameter in head.named_parameters():
        kind = int(torch.randint(0, 5, (), generator=random))
        a, b = (0.3 * torch.randn(parameter.shape, generator=random, dtype=parameter.dtype) for _ in range(2))
        if kind == 1:
            bounds[name] = (0.0, None)
        elif kind == 2:
            bounds[name] = (torch.minimum(a, b), torch.maximum(a, b))
        elif kind == 3:
            bounds[name] = (None, a)
        elif kind == 4:
            bounds[name] = (-0.2, 0.1)
    return bounds


@examples(25)
@given(
    seed=SEEDS,
    kind=st.sampled_from(sorted(PROBLEMS)),
    storage=st.sampled_from([MeanParts, Weights, Labelings]),
    search=st.sampled_from([ExactSearch(), ShortStep()]),
    sweeps=st.sampled_from([0, 1, 10]),
    adjoint=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float64, torch.float32]),
)
def test_what_holds_after_every_step(seed, kind, storage, search, sweeps, adjoint, dtype):
    random = rng(seed)
    lam = float(10.0 ** (3 * torch.rand((), generator=random) - 2))
    problem = PROBLEMS[kind](seed, lam=lam, adjoint=adjoint, dtype=dtype)
    run = Bounded(problem, random_bounds(problem.head, random), storage=storage(), line_search=search, sweeps=sweeps)
    if storage is Labelings:
        run.loss = BlockGap(run.dual, [None, Pairwise(), Away(), Corrective()][seed % 4], block_steps=steps_of(sweeps))
    dual, truth = run.dual, reference(problem)
    rounding = 1e-10 if dtype == torch.float64 else 1e-4 / min(lam, 1.0)
    lower, upper = run.limits()
    stored = dual.value()
    assert stored == pytest.approx(run.explicit_dual(), abs=rounding)
    for _ in range(16):
        action = int(torch.randint(0, 10, (), generator=random))
        rows = torch.randint(0, problem.n, (int(torch.randint(1, 5, (), generator=random)),), generator=random).tolist()
        if action == 0:  # two batches accumulated, of the same examples perhaps
            others = torch.randint(0, problem.n, (2,), generator=random).tolist()
            if storage is Labelings:  # which cannot take an example twice
                others = sorted(set(range(problem.n)) - set(rows))
            run.optim.zero_grad()
            run.backward(rows, 0.5)
            run.backward(others, 0.5)
            run.optim.step()
        elif action == 1:
            primal = truth.primal(run.weights())
            certificate = certify(run.head, dual, problem.everything(2), refresh=bool(rows[0] % 2))
            assert certificate.primal == pytest.approx(primal, abs=rounding)
            assert certificate.dual == pytest.approx(run.explicit_dual(), abs=rounding)
            assert certificate.gap >= -rounding
            assert certificate.gap == pytest.approx(float(dual.gap_estimates.sum()), abs=rounding)  # P - D = sum of g_i
            assert certificate.drift <= 100 * rounding
        else:
            assert run.step(rows) >= -rounding
        w, v = run.weights().double().numpy(), run.unclipped().double().numpy()
        tiny = 1e-7 if dtype == torch.float32 else 0.0  # the bounds are rounded too
        np.testing.assert_allclose(w, np.clip(v, lower, upper), rtol=tiny, atol=tiny)
        now = dual.value()
        assert now >= stored - rounding * (1 + abs(stored)), f"the dual fell from {stored} to {now}"
        assert now == pytest.approx(run.explicit_dual(), abs=rounding)
        assert truth.primal(w) - now >= -rounding
        stored = now
    if dual.recomputed is None:
        np.testing.assert_allclose(v, run.recomputed(), rtol=100 * rounding, atol=100 * rounding)


def test_the_start_is_the_weight_nearest_to_zero():
    problem = multiclass(0, lam=0.5)
    run = Bounded(problem, {"weight": (0.25, 1.0), "bias": (-2.0, -1.0)})
    assert (problem.head.weight == 0.25).all()
    assert (problem.head.bias == -1.0).all()
    assert run.unclipped().count_nonzero() == 0
    size = 0.25**2 * problem.head.weight.numel() + problem.head.bias.numel()
    assert run.dual.value() == pytest.approx(0.25 * size, abs=1e-12)  # lam/2 |w|^2: no smaller primal is possible
    run.step([0])
    assert certify(run.head, run.dual, problem.everything()).gap >= 0


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [{"lower": -math.inf}, {"lower": None, "upper": math.inf}])
def test_groups_without_bounds_have_the_same_bits(kind, dtype, bounds):
    """Also beside a short step, which is the step of a parabola and knows nothing of bounds."""
    problem = PROBLEMS[kind](6, dtype=dtype, lam=0.1)
    plain, other, short = problem.copy().train(), problem.copy().train(), problem.copy().train()
    other.optim = BCFW([{"params": list(other.head.parameters()), **bounds}], other.dual)
    short.optim = BCFW(short.head.parameters(), short.dual, line_search=ShortStep())
    assert not other.dual.box.has_bounds
    for k in range(20):
        for run in (plain, other, short):
            run.step([k % 5, (k * 3 + 1) % 5])
            if k == 9:
                certify(run.head, run.dual, problem.everything(2))
    assert_same(other.snapshot(), plain.snapshot())
    assert_same(short.snapshot(), plain.snapshot())
    assert all(v is p for v, p in zip(other.dual.unclipped, other.dual.parameters, strict=True))


def test_a_refresh_goes_to_v():
    """Float32 increments drift; the next step starts from the recomputed v, clipped."""
    problem = multiclass(4, lam=0.02, dtype=torch.float32)
    run = Bounded(problem, {"weight": (-0.2, 0.3)})
    for k in range(200):
        run.step([k % problem.n])
    certificate = certify(run.head, run.dual, problem.everything())
    assert 0 < certificate.drift < 1e-4
    np.testing.assert_allclose(flat(run.dual.recomputed).double().numpy(), run.recomputed(), rtol=1e-6, atol=1e-6)
    assert (flat(run.dual.recomputed) > 0.3).any()  # v, not w
    before = run.dual.objective(float(run.dual.loss.sum()), run.dual.recomputed)
    run.step([0, 1])
    assert run.dual.value() >= before - 1e-5
    assert certify(run.head, run.dual, problem.everything()).drift < certificate.drift


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_weights_are_recomputed_when_the_features_have_moved(kind):
    problem = PROBLEMS[kind](2, lam=0.2)
    bounds = {"weight": (-0.1, 0.1)} if kind == "multiclass" else {"transition": (0.0, None), "emission": (None, 0.1)}
    run = Bounded(problem, bounds)
    for k in range(30):
        run.step([k % problem.n])
    problem.x = problem.x * 1.5 + 0.1
    if problem.lengths is not None:
        problem.x[torch.arange(problem.x.shape[1]) >= problem.lengths.unsqueeze(1)] = 0.0
    with pytest.warns(UserWarning, match="differ from the dual's"):
        moved = certify(run.head, run.dual, problem.everything(), refresh=False)
    assert moved.dual == pytest.approx(run.explicit_dual(), abs=1e-10)  # still a certificate
    assert moved.gap >= 0
    assert recompute_weights(run.head, run.dual, problem.everything(2)) > 0.01
    np.testing.assert_allclose(run.unclipped().numpy(), run.recomputed(), atol=1e-12)
    np.testing.assert_allclose(run.weights().numpy(), np.clip(run.recomputed(), *run.limits()), atol=1e-12)
    after = certify(run.head, run.dual, problem.everything())
    assert after.drift < 1e-12
    assert after.gap == pytest.approx(float(run.dual.gap_estimates.sum()), abs=1e-10)
    run.step([0, 1])
    assert run.dual.value() >= after.dual


CHECKPOINTED = {"transition": (0.0, None), "emission": (torch.full((2, 2), -0.2), 0.3)}


def in_training(storage: str = "mean_parts", dtype: torch.dtype = torch.float32, bounds=CHECKPOINTED) -> Bounded:
    return Bounded(chain(4, lam=0.05, dtype=dtype), bounds, storage=STORAGES[storage]())


def go_on(run: Bounded, first: int, last: int) -> Bounded:
    for k in range(first, last):
        run.step([k % 5, (k * 2 + 1) % 5])
        if k % 6 == 5:
            certify(run.head, run.dual, run.problem.everything(2))
    return run


@functools.cache
def left_alone(storage: str, dtype: torch.dtype) -> Bounded:
    return go_on(in_training(storage, dtype), 0, 16)


@pytest.mark.parametrize("stop", [0, 3, 6, 11])
@pytest.mark.parametrize("storage", sorted(STORAGES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(tmp_path, storage, dtype, stop):
    whole = left_alone(storage, dtype)
    torch.save(go_on(in_training(storage, dtype), 0, stop).optim.state_dict(), tmp_path / "run.pt")
    resumed = in_training(storage, dtype)
    resumed.optim.load_state_dict(torch.load(tmp_path / "run.pt", weights_only=True))
    go_on(resumed, stop, 16)
    assert_same(resumed.optim.state_dict(), whole.optim.state_dict())
    assert torch.equal(resumed.unclipped(), whole.unclipped())
    assert (whole.unclipped() != whole.weights()).any()


OTHERS = [
    {},
    {"transition": (0.0, None)},
    {"transition": (0.0, None), "emission": (-0.2, 0.4)},
    {"transition": (0.0, 5.0), "emission": (-0.2, 0.3)},
    {**CHECKPOINTED, "bias": (0.0, None)},
]


@pytest.mark.parametrize("others", OTHERS, ids=str)
def test_checkpoints_with_other_bounds_are_refused(others):
    state = go_on(in_training(), 0, 4).optim.state_dict()
    other = go_on(in_training(bounds=others), 0, 2)
    before, groups = other.snapshot(), copy.deepcopy(other.optim.param_groups[0]["lr"])
    with pytest.raises(ValueError, match="other bounds"):
        other.optim.load_state_dict(state)
    assert_same(other.snapshot(), before)
    assert other.optim.param_groups[0]["lr"] == groups
    with pytest.raises(ValueError, match="other bounds"):
        in_training().optim.load_state_dict(other.optim.state_dict())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"lower": 1.0, "upper": 0.5}, ValueError, "lower=1.0 and upper=0.5"),
        ({"lower": torch.tensor([0.0, 3.0]), "upper": 2.0}, ValueError, "upper=2.0"),
        ({"lower": math.nan}, ValueError, "lower=nan"),
        ({"upper": torch.tensor([0.0, math.nan])}, ValueError, "NaN"),
        ({"lower": torch.zeros(3)}, ValueError, "lower [3] does not broadcast to weights [2, 2]"),
        ({"upper": torch.zeros(2, 2, 2)}, ValueError, "upper [2, 2, 2]"),
        ({"lower": math.inf}, ValueError, "lower=inf"),
        ({"upper": -math.inf}, ValueError, "upper=-inf"),
        ({"lower": "0"}, TypeError, "lower='0'"),
        ({"lower": [0.0, 0.0]}, TypeError, "lower="),
        ({"upper": True}, TypeError, "upper=True"),
        ({"upper": torch.ones(2, dtype=torch.complex64)}, TypeError, "upper="),
    ],
)
def test_bounds_that_make_no_sense(options, error, words):
    head = LinearChain(2, 2)
    nn.init.constant_(head.transition, 2.0)
    dual = DualState.for_head(head, 6, 0.5)
    rest = [p for p in head.parameters() if p is not head.transition]
    with pytest.raises(error, match=re.escape(words)):
        BCFW([{"params": [head.transition], **options}, {"params": rest}], dual)
    assert (head.transition == 2.0).all()
    assert not dual.box.has_bounds


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"weight": (0.0, None)}), ({"weight": (0.0, None)}, {}), ({"weight": (0.0, None)}, {"weight": (0.1, None)})],
)
def test_a_trained_dual_keeps_its_bounds(before, after):
    run = Bounded(multiclass(1), before).run([[0], [1, 2]])
    kept = run.snapshot()
    with pytest.raises(ValueError, match="other bounds"):
        BCFW(groups_of(run.head, after), run.dual)
    assert_same(run.snapshot(), kept)
    run.step([0])


def test_bounds_are_copied():
    bound = torch.full((3, 3), 0.1)
    run = Bounded(multiclass(1), {"weight": (None, bound)})
    bound.fill_(-1.0)
    run.run([[0], [1], [2]])
    assert run.head.weight.max() == torch.tensor(0.1).double()
