"""The best label sets against all sets, and their bounds against linear programs."""

import itertools

import numpy as np
import pytest
import torch
from cases.problems import examples, rng
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from torchssvm.structures.multilabel.oracle import best_label_sets, symmetric

SEEDS = st.integers(0, 2**31 - 1)


def problem(seed, size, batch=4, *, integers=False, attractive=False, strength=1.0, density=0.7):
    """Scores ``[B, K]`` and ``[P]``, float64; of integers many are 0, and many sets are equally good."""
    random = rng(seed)
    unary = torch.randn(batch, size, generator=random, dtype=torch.float64)
    pairwise = strength * torch.randn(size * (size - 1) // 2, generator=random, dtype=torch.float64)
    if integers:
        unary, pairwise = (2 * unary).round(), (2 * pairwise).round()
    pairwise[torch.rand(len(pairwise), generator=random) > density] = 0.0
    if attractive:
        pairwise, unary = pairwise.abs(), unary - 1.0
    return unary, pairwise


def every_set(size):
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=size)), dtype=torch.float64)


def scores(unary, pairwise, labels):
    """By the definition, ``[B, Y]`` of sets ``[Y, K]``."""
    pairs = list(itertools.combinations(range(unary.shape[1]), 2))
    together = sum(w * labels[:, i] * labels[:, j] for w, (i, j) in zip(pairwise, pairs, strict=True))
    return unary @ labels.t() + together


def linear_program(unary, pairwise):
    """The maximum over the local polytope of one example, and where it is: every pair has its own variable."""
    size = len(unary)
    pairs = list(itertools.combinations(range(size), 2))
    entries, limits = [], []
    for p, (i, j) in enumerate(pairs):
        z = size + p
        for coefficients, limit in (({z: 1, i: -1}, 0), ({z: 1, j: -1}, 0), ({z: -1, i: 1, j: 1}, 1)):
            entries += [(len(limits), column, number) for column, number in coefficients.items()]
            limits.append(limit)
    gains = -torch.cat([unary, pairwise]).numpy()
    rows, columns, numbers = zip(*entries, strict=True) if entries else ((), (), ())
    matrix = coo_matrix((numbers, (rows, columns)), shape=(len(limits), len(gains)))
    options = {"A_ub": matrix, "b_ub": limits} if limits else {}
    optimum = linprog(gains, bounds=(0, 1), **options)
    assert optimum.success
    return -optimum.fun, optimum.x[:size]


draws = given(
    seed=SEEDS,
    size=st.integers(1, 8),
    integers=st.booleans(),
    strength=st.sampled_from([0.2, 1.0, 3.0]),
    max_rounds=st.sampled_from([1, 5, 200]),
)


@examples(60)
@draws
@pytest.mark.parametrize("effort", [0, 10_000_000])
def test_the_maximum_is_between_value_and_bound(effort, seed, size, integers, strength, max_rounds):
    unary, pairwise = problem(seed, size, integers=integers, strength=strength)
    labels, value, bound = best_label_sets(unary, pairwise, max_rounds=max_rounds, effort=effort)
    everything = scores(unary, pairwise, every_set(size))
    best = everything.amax(1)
    assert labels.dtype == torch.int64
    assert bool(((labels == 0) | (labels == 1)).all())
    reached = scores(unary, pairwise, labels.double()).diagonal()
    torch.testing.assert_close(value, reached)
    assert bool((value <= best + 1e-9).all())
    assert bool((best <= bound + 1e-9).all())
    exact = value == bound
    torch.testing.assert_close(value[exact], best[exact])
    if effort:
        assert bool(exact.all())


def test_the_best_of_near_ties_is_found():
    for seed in range(60):
        near = [a + 1e-12 * b for a, b in zip(problem(seed, 6, integers=True), problem(seed, 6), strict=True)]
        _, value, bound = best_label_sets(*near, effort=10_000_000)
        assert torch.equal(value, bound)
        torch.testing.assert_close(value, scores(*near, every_set(6)).amax(1), rtol=0.0, atol=5e-14)


@examples(40)
@given(seed=SEEDS, size=st.integers(1, 9), integers=st.booleans(), strength=st.sampled_from([0.3, 1.0]))
def test_messages_are_exact_where_all_pairs_attract(seed, size, integers, strength):
    unary, pairwise = problem(seed, size, integers=integers, attractive=True, strength=strength)
    _, value, bound = best_label_sets(unary, pairwise, max_rounds=10_000)
    assert torch.equal(value, bound)
    torch.testing.assert_close(value, scores(unary, pairwise, every_set(size)).amax(1))


@examples(25)
@given(seed=SEEDS, size=st.integers(1, 7), integers=st.booleans(), strength=st.sampled_from([0.3, 1.0, 3.0]))
def test_messages_reach_the_optimum_of_the_linear_program(seed, size, integers, strength):
    unary, pairwise = problem(seed, size, 2, integers=integers, strength=strength)
    _, _, bound = best_label_sets(unary, pairwise, max_rounds=5_000)
    for row in range(2):
        assert float(bound[row]) == pytest.approx(linear_program(unary[row], pairwise)[0], abs=1e-6)


@examples(25)
@given(seed=SEEDS, size=st.integers(1, 15))
def test_more_rounds_never_loosen_the_bound(seed, size):
    unary, pairwise = problem(seed, size)
    bounds = [best_label_sets(unary, pairwise, max_rounds=max_rounds)[2] for max_rounds in (1, 2, 5, 20, 200)]
    for loose, tight in itertools.pairwise(bounds):
        assert bool((tight <= loose + 1e-12).all())


@examples(60)
@given(seed=SEEDS, size=st.integers(1, 8), integers=st.booleans(), strength=st.sampled_from([0.1, 0.5, 2.0]))
def test_screening_removes_no_maximiser(seed, size, integers, strength):
    unary, pairwise = problem(seed, size, integers=integers, strength=strength)
    weights = symmetric(pairwise, size)
    fixed, sets = screened(unary, weights), every_set(size)
    for row, result in enumerate(scores(unary, pairwise, sets)):
        known = fixed[row] >= 0
        best = sets[result >= result.max() - 1e-9]
        assert torch.equal(best[:, known], fixed[row, known].double().expand(len(best), -1))
        _, x = linear_program(unary[row], pairwise)
        np.testing.assert_allclose(x[known.numpy()], fixed[row, known], atol=1e-6)


def screened(unary, weights):
    from torchssvm.structures.multilabel.message_passing import workspace
    from torchssvm.structures.multilabel.oracle import row_sums, screen

    fixed = torch.empty(unary.shape, dtype=torch.int64)
    size = unary.shape[1]
    sums, memory = (np.empty(size), np.empty(size)), workspace(size)
    row_sums(weights.numpy(), *sums)
    for row in range(len(unary)):
        undecided = screen(unary[row].numpy(), weights.numpy(), *sums, memory, fixed[row].numpy())
        assert undecided == int((fixed[row] < 0).sum())
        assert memory.free[:undecided].tolist() == (fixed[row] < 0).nonzero().flatten().tolist()
    return fixed


def test_weights_are_shared_or_each_examples_own():
    unary, pairwise = problem(3, 9, batch=6)
    shared = best_label_sets(unary, pairwise, effort=10**6)
    for other in (pairwise.expand(6, -1), pairwise.repeat(6, 1), pairwise.float().double()):
        sets = best_label_sets(unary, other, effort=10**6)
        assert torch.equal(sets[0], shared[0])
        torch.testing.assert_close(sets[1], shared[1], rtol=1e-5, atol=1e-5)
    separate = pairwise * torch.arange(6).unsqueeze(1)
    together = best_label_sets(unary, separate, effort=10**6)
    for row in range(6):
        alone = best_label_sets(unary[row : row + 1], separate[row], effort=10**6)
        assert torch.equal(alone[0][0], together[0][row])
        assert torch.equal(alone[1][0], together[1][row])


@pytest.mark.parametrize("threads", [1, 3])
def test_large_batches_are_shared_by_threads(threads, set_threads):
    unary, pairwise = problem(4, 12, batch=400)
    set_threads(threads)
    together = best_label_sets(unary, pairwise, effort=10**6)
    set_threads(1)
    for row in range(0, 400, 37):
        alone = best_label_sets(unary[row : row + 1], pairwise, effort=10**6)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, together, strict=True))
    torch.testing.assert_close(together[1], scores(unary, pairwise, every_set(12)).amax(1))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_spoil_their_own_example_alone(number):
    unary, pairwise = problem(5, 6)
    clean = best_label_sets(unary, pairwise, effort=10**6)
    spoiled = unary.clone()
    spoiled[2, 3] = number
    labels, value, bound = best_label_sets(spoiled, pairwise, effort=10**6)
    if number == -torch.inf:  # forbids
        best = scores(spoiled.nan_to_num(neginf=-1e6), pairwise, every_set(6)).amax(1)
        torch.testing.assert_close((value, bound), (best, best))
    else:
        assert not bool(torch.isfinite(value[2]))
    for row in (0, 1, 3):
        assert torch.equal(labels[row], clean[0][row])
        torch.testing.assert_close(value[row], clean[1][row])
    pairwise = pairwise.clone()
    pairwise[0] = number
    labels, value, _ = best_label_sets(unary, pairwise, effort=10**6)
    assert labels.shape == unary.shape
    if number == -torch.inf:
        torch.testing.assert_close(value, scores(unary, pairwise.nan_to_num(neginf=-1e6), every_set(6)).amax(1))


def test_devices(device):
    unary, pairwise = problem(6, 8)
    here = best_label_sets(unary, pairwise, effort=10**6)
    moved = best_label_sets(unary.to(device), pairwise.to(device), effort=10**6)
    for mine, other in zip(here, moved, strict=True):
        assert other.device.type == device.type
        torch.testing.assert_close(other.cpu(), mine)
