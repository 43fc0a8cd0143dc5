"""Batches of similar length: which draws they make, resuming, exact passes by length."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from cases.problems import chain, examples, multiclass, rng
from cases.resumed_draws import check_resuming
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from torchssvm import ByLength, GapBatchSampler, Permutation, Proportional, Uniform, certify, in_order
from torchssvm.datasets import PaddedDataset
from torchssvm.steps import LargestGap

LENGTHS = [3, 9, 1, 3, 2, 9, 30, 1, 2, 12]
GAPS = [0.1, 0.4, 1.0, 2.0, 0.5, 0.0, 0.7, 0.3, 1.5, 0.2]


def sampler_of(gaps: list[float], order: ByLength, **options) -> GapBatchSampler:
    training = multiclass(0, n=len(gaps)).train()
    training.dual.gap_estimates = torch.tensor(gaps, dtype=torch.float64)
    return GapBatchSampler(training.dual, order=order, **options)


def same_bucket(order: ByLength, batch_size: int) -> dict[int, set[int]]:
    return {i: set(bucket.tolist()) for bucket in order.buckets(batch_size) for i in bucket.tolist()}


@pytest.mark.parametrize("inner", [Proportional(), Proportional(0.5), Uniform()], ids=repr)
def test_the_first_of_a_batch_is_drawn_among_all_and_the_second_among_its_bucket(inner):
    order = ByLength(LENGTHS, inner)
    sampler = sampler_of(GAPS, order, batch_size=2, seed=3)
    pairs = Counter(tuple(batch) for _ in range(600) for batch in sampler)
    weights = torch.tensor(GAPS) ** getattr(inner, "power", 0.0)
    weights = torch.ones(10) if isinstance(inner, Uniform) else weights
    results, expected = [], []
    for i in range(10):
        others = sorted(same_bucket(order, 2)[i] - {i})
        for j in others:
            share = weights[i] / weights.sum() * weights[j] / weights[others].sum()
            results.append(pairs[i, j])
            expected.append(float(share) * 3000)
    assert sum(results) == 3000  # no batch has examples of two buckets
    possible = [k for k, e in enumerate(expected) if e > 0.0]
    assert all(results[k] == 0 for k, e in enumerate(expected) if e == 0.0)
    total = sum(expected[k] for k in possible)
    assert stats.chisquare([results[k] for k in possible], [expected[k] * 3000 / total for k in possible])[1] > 1e-3


@examples(60)
@given(
    seed=st.integers(0, 2**31 - 1),
    inner=st.sampled_from([Proportional(), Uniform(), Permutation()]),
    n=st.integers(1, 25),
    batch_size=st.integers(1, 9),
    unknown=st.booleans(),
)
def test_batches_are_of_distinct_examples_of_one_bucket(seed, inner, n, batch_size, unknown):
    random = rng(seed)
    lengths = torch.randint(0, 6, (n,), generator=random)
    gaps = torch.rand(n, generator=random, dtype=torch.float64)
    order = ByLength(lengths, inner)
    sampler = sampler_of((torch.inf * gaps if unknown else gaps).tolist(), order, batch_size=batch_size, seed=seed)
    size = min(batch_size, n)
    buckets = order.buckets(size)
    assert sorted(torch.cat(buckets).tolist()) == list(range(n))
    assert len(buckets) == 1 or all(len(bucket) >= 2 * size for bucket in buckets)
    for low, high in itertools.pairwise(buckets):
        assert int(lengths[low].max()) < int(lengths[high].min())
    of = same_bucket(order, size)
    visits = Counter()
    batches = list(sampler)
    assert len(batches) == len(sampler)
    for k, batch in enumerate(batches):
        visits.update(batch)
        assert len(set(batch)) == len(batch)
        once = isinstance(inner, Permutation) or (unknown and inner.needs_gaps)
        if not once:
            assert set(batch) <= of[batch[0]]
        assert len(batch) == (n - size * (len(batches) - 1) if once and k == len(batches) - 1 else size)
    if isinstance(inner, Permutation):
        assert set(visits.values()) == {1}
    assert not (unknown and inner.needs_gaps) or set(visits) == set(range(n))


@pytest.mark.parametrize("stop", [1, 10, 25])
@pytest.mark.parametrize("inner", [Proportional(), Uniform(), Permutation()], ids=repr)
def test_resuming_continues_the_same_draws(inner, stop):
    lengths = torch.randint(1, 8, (20,), generator=rng(5))
    options = {"batch_size": 2, "order": ByLength(lengths, inner), "seed": 4, "chunk": 2}
    state = check_resuming(options, 30, stop)
    changed = GapBatchSampler(multiclass(3, n=20).train().dual, **options | {"order": ByLength(lengths + 1, inner)})
    with pytest.raises(ValueError, match="ByLength"):
        changed.load_state_dict(state)


def test_what_does_not_fit_is_refused():
    with pytest.raises(TypeError, match=r"order=LargestGap\(\)"):
        ByLength([1, 2], LargestGap())
    with pytest.raises(ValueError, match="lengths"):
        ByLength([])
    with pytest.raises(ValueError, match="lengths"):
        ByLength([1, -1])
    with pytest.raises(ValueError, match="lengths has 2 numbers"):
        GapBatchSampler(multiclass(0).train().dual, batch_size=2, order=ByLength([1, 2]))
    with pytest.raises(ValueError, match=r"lengths has shape \[2\]"):
        in_order([1, 2, 3], collate_fn=list, lengths=[1, 2])


def test_an_exact_pass_by_length_gives_every_example_once_and_the_same_certificate():
    problem = chain(3, n=30, longest=9)
    data = PaddedDataset(problem.x, problem.y, problem.lengths)
    training = problem.train()
    for rows in torch.arange(30).split(6):
        training.step(rows.tolist())
    plain = certify(training.head, training.dual, in_order(data, batch_size=8), refresh=False)
    batches = list(in_order(data, batch_size=8, lengths=data.lengths))
    assert sorted(i for batch in batches for i in batch.index.tolist()) == list(range(30))
    most = 8 * float((data.lengths.double() ** 2).mean())
    assert all(len(b.index) <= 8 and len(b.index) * int(b.lengths.max()) ** 2 <= max(most, 81) for b in batches)
    longest = [int(batch.lengths.max()) for batch in batches]
    assert longest[1:] == sorted(longest[1:])
    mean = float((data.lengths.double() ** 2).mean()) ** 0.5
    assert longest[0] == min(length for length in longest if length >= mean)  # a typical batch, for estimates
    certificate = certify(training.head, training.dual, batches, refresh=False)
    assert certificate.primal == pytest.approx(plain.primal, rel=1e-12)
    assert certificate.gap == pytest.approx(plain.gap, rel=1e-9)
