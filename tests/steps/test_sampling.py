"""Orders of visiting the blocks: distributions, epochs, resuming, worker processes."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from cases.problems import assert_same, examples, multiclass, rng
from cases.resumed_draws import check_resuming, run
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import DataLoader, Dataset

from torchssvm import GapBatchSampler, Permutation, Proportional, Uniform
from torchssvm.steps import LargestGap

ORDERS = [Proportional(), Proportional(0.5), LargestGap(), Uniform(), Permutation()]


def with_gaps(gaps: list[float], **options) -> GapBatchSampler:
    training = multiclass(0, n=len(gaps)).train()
    training.dual.gap_estimates = torch.tensor(gaps, dtype=torch.float64)
    return GapBatchSampler(training.dual, **options)


def draws(sampler: GapBatchSampler, epochs: int) -> list[int]:
    return [i for _ in range(epochs) for batch in sampler for i in batch]


@pytest.mark.parametrize("power", [1.0, 0.5, 2.0, 0.0])
def test_frequencies_are_proportional_to_powers_of_the_gaps(power):
    gaps = [0.1, 0.4, 1.0, 2.0, 0.5]
    result = Counter(draws(with_gaps(gaps, batch_size=1, order=Proportional(power), seed=1), 1000))
    expected = torch.tensor(gaps, dtype=torch.float64) ** power
    expected = 5000 * expected / expected.sum()
    _, p = stats.chisquare([result[i] for i in range(5)], expected.tolist())
    assert p > 1e-3
    if power:  # the test has power: other frequencies are told apart
        assert stats.chisquare([result[i] for i in range(5)], [1000] * 5)[1] < 1e-9


def test_a_gap_that_is_unknown_counts_as_the_sum_of_those_known_over_n(monkeypatch):
    seen = []
    monkeypatch.setattr(
        Proportional, "draw", lambda _, gaps, n, *__: seen.append(gaps.tolist()) or [torch.zeros(1)] * n
    )
    list(with_gaps([2.0, torch.inf, 4.0, torch.inf, 0.0], batch_size=1, order=Proportional()))
    assert seen[0] == pytest.approx([2.0, 1.2, 4.0, 1.2, 0.0])


def test_the_first_of_a_batch_is_proportional_and_so_is_the_second_given_the_first():
    gaps = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    batches = Proportional().draw(gaps, 8000, 2, rng(3))
    pairs = Counter(tuple(batch.tolist()) for batch in batches)
    keys = [(a, b) for a in range(4) for b in range(4) if a != b]
    expected = [8000 * float(gaps[a] / 10 * gaps[b] / (10 - gaps[a])) for a, b in keys]
    assert set(pairs) == set(keys)
    assert stats.chisquare([pairs[key] for key in keys], expected)[1] > 1e-3


def test_the_rest_of_a_batch_is_proportional_too_where_one_gap_dominates():
    gaps = torch.tensor([1.0, 1e-9, 2e-9, 4e-9], dtype=torch.float64)
    batches = Proportional().draw(gaps, 7000, 2, rng(4))
    assert all(int(batch[0]) == 0 for batch in batches)
    second = Counter(int(batch[1]) for batch in batches)
    assert stats.chisquare([second[i] for i in (1, 2, 3)], [1000, 2000, 4000])[1] > 1e-3


def test_permutation_visits_everything_once_in_changing_order():
    sampler = with_gaps([5.0, 0.0, 0.0, 1.0, 2.0], batch_size=2, order=Permutation(), seed=2)
    epochs = [[tuple(batch) for batch in sampler] for _ in range(6)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [2, 2, 1]
        assert sorted(i for batch in batches for i in batch) == [0, 1, 2, 3, 4]
    assert len(set(map(tuple, epochs))) > 1


def test_largest_gaps_come_first():
    sampler = with_gaps([0.3, 0.1, 0.9, 0.5, 0.7], batch_size=2, order=LargestGap())
    assert [sorted(batch) for batch in sampler] == [[2, 4], [0, 3], [1, 2]]  # and again from the start


def test_ties_of_the_largest_gap_are_broken_at_random():
    sampler = with_gaps([1.0] * 6, batch_size=1, order=LargestGap())
    assert {next(iter(sampler))[0] for _ in range(60)} == set(range(6))


@examples(60)
@given(
    seed=st.integers(0, 2**31 - 1),
    order=st.sampled_from(ORDERS),
    n=st.integers(1, 12),
    batch_size=st.integers(1, 15),
    zeros=st.booleans(),
)
def test_batches_are_distinct_and_of_the_right_size(seed, order, n, batch_size, zeros):
    gaps = torch.rand(n, generator=rng(seed), dtype=torch.float64)
    gaps = torch.where(gaps < 0.7, 0.0, gaps) if zeros else gaps
    sampler = with_gaps(gaps.tolist(), batch_size=batch_size, order=order, seed=seed)
    size = min(batch_size, n)
    assert len(sampler) == -(-n // size)
    for _ in range(3):
        batches = list(sampler)
        assert len(batches) == len(sampler)
        for k, batch in enumerate(batches):
            assert len(set(batch)) == len(batch)
            assert all(0 <= i < n for i in batch)
            last = isinstance(order, Permutation) and k == len(batches) - 1
            assert len(batch) == (n - size * (len(batches) - 1) if last else size)


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_all_gaps_zero_is_no_error(order):
    result = draws(with_gaps([0.0] * 4, batch_size=2, order=order), 200)
    assert len(result) == 800
    assert set(result) == {0, 1, 2, 3}


def test_fewer_gaps_than_a_batch_are_filled_with_others():
    sampler = with_gaps([0.0, 0.0, 3.0, 0.0, 1.0, 0.0], batch_size=4)
    fill = Counter()
    for _ in range(150):
        for batch in sampler:
            assert {2, 4} <= set(batch)
            fill.update(set(batch) - {2, 4})
    assert set(fill) == {0, 1, 3, 5}
    assert stats.chisquare([fill[i] for i in (0, 1, 3, 5)])[1] > 1e-4


@pytest.mark.parametrize("order", [Proportional(), LargestGap()], ids=repr)
@pytest.mark.parametrize(("n", "batch_size"), [(10, 3), (9, 3), (4, 1), (3, 7)])
def test_unknown_gaps_come_first_exactly_once(order, n, batch_size):
    training = multiclass(1, n=n).train()
    sampler = GapBatchSampler(training.dual, batch_size=batch_size, order=order)
    seen = []
    for batch in sampler:
        training.step(batch)
        seen += batch
    assert sorted(seen) == list(range(n))
    assert seen != sorted(seen) or n < 5
    assert bool(torch.isfinite(training.dual.gap_estimates).all())


def test_some_unknown_gaps_come_before_all_others():
    inf = float("inf")
    sampler = with_gaps([5.0, inf, 1.0, inf, 2.0, inf, 0.5, 1.0], batch_size=2)
    batches = list(sampler)
    assert set(batches[0]) <= {1, 3, 5}
    assert {1, 3, 5} <= set(batches[0] + batches[1])
    assert len(batches) == 4
    sampler = with_gaps([inf, 1.0, 5.0, inf, 2.0, inf], batch_size=2, order=LargestGap())
    assert list(sampler)[1][1] == 2  # the batch of the last one is filled up with the largest of the others


def test_an_epoch_that_is_broken_off_is_followed_by_a_new_one():
    sampler = with_gaps([1.0, 2.0, 3.0, 4.0], batch_size=1, order=Permutation())
    for _ in sampler:
        break
    assert sorted(draws(sampler, 1)) == [0, 1, 2, 3]
    assert sampler.epoch == 1


def test_draws_follow_the_gaps_as_they_change():
    """A chunk is drawn from the gaps as they were when the chunk before the last one had been used up."""
    dual = multiclass(1, n=64).train().dual
    dual.gap_estimates.fill_(1.0)
    sampler = GapBatchSampler(dual, batch_size=1, chunk=4)
    seen = []
    for step, batch in enumerate(sampler):
        seen += batch
        dual.gap_estimates.zero_()
        dual.gap_estimates[step // 4] = 1.0  # what a step would do, but known in advance
        dual.visits += 1
        dual.mailbox.notify()
    assert len(set(seen[:8])) > 2
    for chunk in range(2, 16):
        assert set(seen[4 * chunk : 4 * chunk + 4]) == {chunk - 2}


@pytest.mark.parametrize("order", ORDERS, ids=repr)
@pytest.mark.parametrize("stop", [1, 3, 7, 10, 11, 19, 20, 33])
def test_resuming_continues_the_same_draws(order, stop):
    options = {"batch_size": 2, "order": order, "seed": 4, "chunk": 2}
    check_resuming(options, 45, stop)


def test_the_order_of_loading_does_not_matter():
    options = {"batch_size": 2, "chunk": 2}
    first = multiclass(3, n=20).train()
    sampler = GapBatchSampler(first.dual, **options)
    run(first, sampler, 13)
    optim, state = first.optim.state_dict(), sampler.state_dict()
    rest = []
    for sampler_first in (True, False):
        training = multiclass(3, n=20).train()
        other = GapBatchSampler(training.dual, **options)
        if sampler_first:
            other.load_state_dict(state)
        training.optim.load_state_dict(optim)
        if not sampler_first:
            other.load_state_dict(state)
        rest.append(run(training, other, 20))
    assert rest[0] == rest[1]


def test_a_state_after_the_last_batch_starts_the_next_epoch():
    training = multiclass(3, n=6).train()
    sampler = GapBatchSampler(training.dual, batch_size=2)
    run(training, sampler, 3)
    state = sampler.state_dict()
    assert (state["epoch"], state["used"], state["drawn"]) == (1, 0, [])


def test_a_batch_that_is_refused_and_repeated_counts_once():
    training = multiclass(1).train()
    sampler = GapBatchSampler(training.dual, batch_size=2, order=Permutation())
    for position, rows in enumerate(sampler, 1):
        training.optim.zero_grad()
        training.backward(rows)
        torch.nn.utils.clip_grad_norm_(training.head.parameters(), 1e-6)
        before = training.dual.visits
        with pytest.raises(RuntimeError, match="gradient"):
            training.optim.step()
        assert training.dual.visits == before == position - 1
        training.step(rows)
        assert sampler.used == position


def test_gradients_accumulated_over_the_end_of_an_epoch_count_in_theirs():
    training = multiclass(1).train()
    sampler = GapBatchSampler(training.dual, batch_size=2, order=Permutation())
    training.run(list(sampler)[:-1])
    training.optim.zero_grad()
    training.backward([0])  # the last of this epoch
    batches = iter(sampler)
    first = next(batches)
    assert (sampler.epoch, sampler.used) == (1, 0)
    training.backward(first)
    training.optim.step()
    assert sampler.used == 1
    training.step(next(batches))
    assert sampler.used == 2


def test_training_that_skips_steps_says_what_it_used():
    training = multiclass(3, n=8).train()
    training.dual.gap_estimates.fill_(1.0)
    sampler = GapBatchSampler(training.dual, batch_size=2, seed=1)
    iterator = iter(sampler)
    seen = [next(iterator) for _ in range(4)]
    other = GapBatchSampler(training.dual, batch_size=2)
    other.load_state_dict(sampler.state_dict(used=2))
    assert list(other) == seen[2:]


DAMAGE = [
    ({"num_examples": 9}, "num_examples"),
    ({"batch_size": 3}, "batch_size"),
    ({"epoch": "1"}, "epoch"),
    ({"used": 99}, "sampler"),
    ({"generator": torch.zeros(3, dtype=torch.uint8)}, "generator"),
    ({"drawn": [torch.tensor([0, 8])]}, "drawn"),
    ({"snapshots": {"0": torch.full((8,), torch.nan)}}, "snapshots"),
]


@pytest.mark.parametrize(("change", "words"), DAMAGE, ids=lambda value: None if isinstance(value, dict) else value)
def test_states_that_do_not_fit_are_refused_and_change_nothing(change, words):
    training = multiclass(3, n=8).train()
    training.dual.gap_estimates.fill_(1.0)
    sampler = GapBatchSampler(training.dual, batch_size=2, seed=1)
    run(training, sampler, 2)
    state = sampler.state_dict()
    assert state["drawn"]
    with pytest.raises(ValueError, match=words):
        sampler.load_state_dict({**state, **change})
    assert_same(sampler.state_dict(), state)
    assert run(training, sampler, 2)


class Rows(Dataset):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i


def test_worker_processes_do_not_change_the_batches():
    runs = []
    for workers in (0, 2):
        training = multiclass(5, n=60, lam=0.01).train()
        sampler = GapBatchSampler(training.dual, batch_size=2, seed=3)
        loader = DataLoader(Rows(60), batch_sampler=sampler, num_workers=workers)
        seen = []
        for _ in range(3):
            for batch in loader:
                training.step(batch.tolist())
                seen.append(batch.tolist())
        runs.append((seen, training.snapshot(), sampler.state_dict()))
    assert runs[0][0] == runs[1][0]
    assert_same(runs[0][1], runs[1][1])
    assert_same(runs[0][2], runs[1][2])
    assert len(runs[0][0]) == 90


def test_resuming_with_worker_processes_loses_no_batch():
    """What workers had fetched and training had not used is drawn again."""

    def start():
        training = multiclass(5, n=40, lam=0.01).train()
        return training, GapBatchSampler(training.dual, batch_size=2, seed=3)

    def train(training, sampler, workers, steps):
        seen = []
        while True:
            for batch in DataLoader(Rows(40), batch_sampler=sampler, num_workers=workers):
                training.step(batch.tolist())
                seen.append(batch.tolist())
                if len(seen) == steps:
                    return seen, training.optim.state_dict(), sampler.state_dict()

    whole, *_ = train(*start(), 0, 60)
    before, optim, state = train(*start(), 2, 33)
    training, sampler = start()
    training.optim.load_state_dict(optim)
    sampler.load_state_dict(state)
    after, *_ = train(training, sampler, 2, 27)
    assert before + after == whole


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda dual: GapBatchSampler(dual, batch_size=0), "batch_size"),
        (lambda dual: GapBatchSampler(dual, batch_size=2, chunk=0), "chunk"),
        (lambda dual: Proportional(-1.0), "power"),
        (lambda dual: Proportional(float("nan")), "power"),
    ],
)
def test_sizes_must_make_sense(make, argument):
    with pytest.raises(ValueError, match=argument):
        make(multiclass(0).train().dual)


def test_a_sampler_can_be_bound_later():
    sampler = GapBatchSampler(batch_size=2, num_examples=6)
    with pytest.raises(RuntimeError, match="dual=None"):
        next(iter(sampler))
    training = multiclass(0).train()
    with pytest.raises(ValueError, match="num_examples=6, and the dual 7"):
        sampler.bind(multiclass(0, n=7).train().dual)
    sampler.bind(training.dual)
    sampler.bind(training.dual)
    assert sorted(draws(sampler, 1)) == list(range(6))
