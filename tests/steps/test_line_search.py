"""Line searches: along one direction, against scalar maximisation, and the papers' algorithms with their steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.bounded import Bounded
from cases.problems import Problem, chain, examples, flat, multiclass, reference, rng
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from torchssvm import BlockGap, certify
from torchssvm.core.batch import apply_head
from torchssvm.core.problem import Box
from torchssvm.steps import ExactSearch, PredefinedStep, ShortStep
from torchssvm.steps.line_search import Line

SEEDS = st.integers(0, 2**31 - 1)


def line(
    v: torch.Tensor,
    d: torch.Tensor,
    lower: torch.Tensor | float | None,
    upper: torch.Tensor | float | None,
    *,
    loss: float = 0.0,
    lam: float = 0.5,
    largest: float = 1.0,
) -> Line:
    """One bounded parameter; the losses change by ``loss`` at gamma = 1."""
    box = Box([torch.nn.Parameter(v)], [(lower, upper)])
    value = loss + float(box.clip([v])[0].double() @ d.double())
    return Line(value, [d], lam, largest, [v], box, 0, 1)


def gain(of: Line, gamma: float) -> float:
    """D(gamma) - D(0), from the formula of the dual: no piece of the search is used."""
    v, d = of.start[0].double(), of.gradients[0].double()
    clip = of.box.clip

    def penalty(v: torch.Tensor) -> float:
        (w,) = clip([v])
        return of.lam * float(v @ w - w @ w / 2)

    loss = of.value - float(clip([v])[0] @ d)
    return gamma * loss - penalty(v - gamma / of.lam * d) + penalty(v)


def random_line(seed: int) -> Line:
    random = rng(seed)

    def normal(size: int) -> torch.Tensor:
        return torch.randn(size, generator=random, dtype=torch.float64)

    size = int(torch.randint(1, 12, (), generator=random))
    v, d, a, b = normal(size), normal(size) / 2, normal(size), normal(size)
    lower, upper = torch.minimum(a, b), torch.maximum(a, b)
    free = torch.rand(2, size, generator=random) < 0.3
    lower[free[0]], upper[free[1]] = -torch.inf, torch.inf
    if seed % 3 == 0:  # weights on a bound, weights that do not move, equal bounds, breakpoints at the same place
        v = v.round()
        lower, upper = lower.round(), upper.round()
        d = d.round()
    most = float(10.0 ** torch.randn((), generator=random).clamp(-1, 2))
    of = line(v, d, lower, upper, largest=most)
    loss = float(normal(1)) * 2.0 + (1.0 - of.value if seed % 2 else 0.0)
    return line(v, d, lower, upper, loss=loss, largest=most, lam=float(0.1 + torch.rand((), generator=random)))


@examples(150)
@given(seed=SEEDS)
def test_the_exact_search_finds_the_maximum(seed):
    of = random_line(seed)
    result = ExactSearch()(of)
    assert 0.0 <= result <= of.largest
    best = gain(of, result)
    grid = np.linspace(0.0, of.largest, 65)
    sampled = max(gain(of, g) for g in grid)
    other = minimize_scalar(lambda g: -gain(of, g), bounds=(0.0, of.largest), method="bounded").x
    scale = 1e-12 * (1.0 + abs(best))
    assert best >= sampled - scale
    assert best >= gain(of, other) - scale
    assert best >= -scale
    step = 1e-6 * of.largest  # and it is no flat place far from the maximum: both sides are lower, or it is an end
    for side in (max(result - step, 0.0), min(result + step, of.largest)):
        assert gain(of, side) <= best + scale


@examples(100)
@given(seed=SEEDS)
def test_the_short_step_is_shorter_and_never_lowers_the_dual(seed):
    of = random_line(seed)
    exact, short = ExactSearch()(of), ShortStep()(of)
    assert 0.0 <= short <= exact * (1 + 1e-12)
    assert gain(of, short) >= -1e-12
    assert gain(of, exact) >= gain(of, short) - 1e-12


@examples(50)
@given(seed=SEEDS)
def test_bounds_that_are_far_away_change_nothing(seed):
    of = random_line(seed)
    far = Box([torch.nn.Parameter(of.start[0])], [(-1e9, 1e9)])
    free = Box([torch.nn.Parameter(of.start[0])])
    steps = [
        search(Line(of.value, of.gradients, of.lam, of.largest, of.start, box, 0, 1))
        for search in (ExactSearch(), ShortStep())
        for box in (far, free)
    ]
    assert steps == pytest.approx([steps[-1]] * 4, rel=1e-12)


def test_weights_that_cannot_move():
    """At their bounds and pushed outwards: only the losses change, and any step is as good as they say."""
    v, d = torch.tensor([1.0, -2.0]), torch.tensor([-1.0, 3.0])  # v moves along -d
    outwards = line(v, d, torch.tensor([-5.0, -2.0]), torch.tensor([1.0, 9.0]), loss=10.0, largest=0.5)
    assert outwards.value > 0
    assert ExactSearch()(outwards) == 0.5
    fixed = line(v, d, v, v, loss=10.0)
    assert ExactSearch()(fixed) == 1.0
    assert ExactSearch()(line(v, d, v, v, loss=-1.0)) == 0.0
    assert ExactSearch()(line(v, torch.zeros(2), -9.0, 9.0, loss=1.0)) == 1.0
    assert ExactSearch()(line(v, torch.zeros(2), -9.0, 9.0, loss=0.0)) == 0.0


def test_a_breakpoint_by_hand():
    """One weight with w <= 1, lam = 1, v = 0, d = -1: it moves up to gamma = 1, and the losses' 3/2 go on for ever."""
    v, d = torch.zeros(1, dtype=torch.float64), -torch.ones(1, dtype=torch.float64)
    assert ExactSearch()(line(v, d, None, 1.0, loss=1.5, lam=1.0, largest=4.0)) == 4.0
    assert ExactSearch()(line(v, d, None, 2.0, loss=1.5, lam=1.0, largest=4.0)) == 1.5
    assert ShortStep()(line(v, d, None, 1.0, loss=1.5, lam=1.0, largest=4.0)) == 1.5
    # From below its lower bound of 1: it begins to move at gamma = 2, and the derivative 3 - (gamma - 2) is zero at 5.
    v = torch.tensor([-1.0], dtype=torch.float64)
    assert ExactSearch()(line(v, d, 1.0, None, loss=4.0, lam=1.0, largest=9.0)) == 5.0


def test_float32_weights_are_searched_in_float64():
    of = random_line(5)
    half = Line(
        of.value,
        [of.gradients[0].float()],
        of.lam,
        of.largest,
        [of.start[0].float()],
        Box([torch.nn.Parameter(of.start[0].float())], [(of.box.lower[0], of.box.upper[0])]),
        0,
        1,
    )
    assert ExactSearch()(half) == pytest.approx(ExactSearch()(of), rel=1e-5)


WITHIN = {"multiclass": {"weight": (-0.1, 0.15)}, "chain": {"emission": (-0.2, 0.2), "transition": (0.0, None)}}


@pytest.mark.parametrize("make", [multiclass, chain])
@pytest.mark.parametrize("sweeps", [0, 5])
@pytest.mark.parametrize("bounded", [False, True])
def test_one_example_a_batch_is_algorithm_3(make, sweeps, bounded):
    """[B13] Algorithm 3 ([G16] Algorithm 9 with another step), on explicit outputs; the box QP has no say."""
    problem = with_costs(make, 5)
    run = Bounded(problem, WITHIN[make.__name__] if bounded else {}, line_search=PredefinedStep(), sweeps=sweeps)
    truth, (lower, upper) = reference(problem), run.limits()
    lam, n = truth.lam, truth.n
    blocks, losses = np.zeros((n, len(lower))), np.zeros(n)
    fell = False
    for k in range(40):
        i = k * 7 % n
        w = np.clip(blocks.sum(0), lower, upper)
        if truth.tied(w, [i]):
            break
        y = int((truth.losses[i] + truth.changes[i] @ w).argmax())
        gamma = 2 * n / (k + 2 * n)
        blocks[i] = (1 - gamma) * blocks[i] - gamma * truth.changes[i][y] / (lam * n)
        losses[i] = (1 - gamma) * losses[i] + gamma * truth.losses[i][y] / n
        before = run.dual.value()
        run.step([i])
        fell |= run.dual.value() < before - 1e-9
        np.testing.assert_allclose(run.unclipped().numpy(), blocks.sum(0), atol=1e-12)
        np.testing.assert_allclose(run.dual.loss.numpy(), losses, atol=1e-12)
        assert run.dual.value() == pytest.approx(run.explicit_dual(), abs=1e-12)
    assert k > 10
    assert fell  # the dual is not monotone here


def test_predefined_steps_count_blocks():
    """Batches of B blocks: 2N/(k + 2N) with N = n/B; duplicates count once, and exact passes do not count."""
    problem = multiclass(1, n=6)
    run = Bounded(problem, {}, line_search=PredefinedStep(), sweeps=0)
    for k in range(7):
        rows = [2 * k % 6, (2 * k + 1) % 6]
        run.step([*rows, rows[0]])
        certify(run.head, run.dual, problem.everything())
        assert run.optim.param_groups[0]["lr"] == pytest.approx(2 * 3 / (k + 2 * 3) / problem.lam, rel=1e-15)
    assert run.dual.moved == 14


def test_predefined_steps_go_on_from_a_checkpoint():
    problem = chain(2)
    whole, first, second = (Bounded(problem.copy(), {}, line_search=PredefinedStep(), sweeps=0) for _ in range(3))
    order = [[0], [1, 2], [3], [4, 0], [2], [1]]
    whole.run(order)
    second.optim.load_state_dict(first.run(order[:3]).optim.state_dict())
    second.run(order[3:])
    assert torch.equal(second.weights(), whole.weights())


def test_accumulated_batches_with_predefined_steps_stay_feasible():
    problem = multiclass(4)
    run = Bounded(problem, {}, line_search=PredefinedStep(), sweeps=0)
    most = [losses.max() / problem.n for losses in reference(problem).losses]
    for k in range(8):
        run.optim.zero_grad()
        run.backward([k % 6, 0])
        run.backward([0, 3])
        run.optim.step()
        assert all(-1e-12 <= loss <= top + 1e-12 for loss, top in zip(run.dual.loss.tolist(), most, strict=True))
        np.testing.assert_allclose(run.recomputed(), run.unclipped().numpy(), atol=1e-12)


@pytest.mark.parametrize("step", [-0.1, 1.5, float("nan")])
def test_searches_that_leave_the_dual_are_refused(step):
    problem = multiclass(1)
    run = Bounded(problem, {}, line_search=lambda line: step)
    before = run.snapshot()
    run.optim.zero_grad()
    run.backward([0])
    with pytest.raises(ValueError, match="line_search"):
        run.optim.step()
    assert str(run.snapshot()) == str(before)


def test_users_may_write_their_own():
    class Half:
        def __call__(self, line: Line) -> float:
            return ExactSearch()(line) / 2

    problem = multiclass(1)
    half, exact = Bounded(problem.copy(), {}, line_search=Half()), Bounded(problem.copy(), {})
    for run in (half, exact):
        batch = problem.batch([0])
        run.optim.zero_grad()
        BlockGap(run.dual)(apply_head(run.head, batch), batch.y, batch.index).backward()
        run.optim.step()
    torch.testing.assert_close(flat(half.dual.parameters), flat(exact.dual.parameters) / 2)


def with_costs(make, seed: int, **options) -> Problem:
    """Without ties at w = 0: outputs that are equally wrong cost different amounts."""
    if make is chain:
        return chain(seed, lam=0.3, **options)
    cost = 0.5 + torch.rand(3, 3, generator=rng(seed), dtype=torch.float64)
    return multiclass(seed, lam=0.3, cost=cost.fill_diagonal_(0.0), **options)
