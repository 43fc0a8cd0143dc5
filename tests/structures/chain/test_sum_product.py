"""Sum-product against enumeration and against torch-struct."""

import itertools

import pytest
import torch
from cases.problems import examples, rng
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchssvm.structures.chain.sum_product import sum_product

SEEDS = st.integers(0, 2**31 - 1)
SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))  # B, N, K


def draw(seed: int, size: tuple[int, int, int], axes: int, dtype=torch.float64, scale: float = 2.0):
    random, (batch, longest, states) = rng(seed), size
    shape = {2: (), 3: (batch,), 4: (batch, longest - 1)}[axes]
    emission = scale * torch.randn(batch, longest, states, generator=random, dtype=torch.float64)
    transition = scale * torch.randn(*shape, states, states, generator=random, dtype=torch.float64)
    lengths = torch.randint(1, longest + 1, (batch,), generator=random)
    return emission.to(dtype), transition.to(dtype), lengths


def at(transition: Tensor, row: int, t: int) -> Tensor:
    return transition if transition.ndim == 2 else transition[row] if transition.ndim == 3 else transition[row, t]


def by_enumeration(emission: Tensor, transition: Tensor, row: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """State and pair marginals of one chain (pairs by position), and log Z."""
    states = emission.shape[2]
    sequences = list(itertools.product(range(states), repeat=length))
    scores = torch.stack(
        [
            sum(
                (at(transition, row, t)[y[t], y[t + 1]] for t in range(length - 1)),
                sum(emission[row, t, y[t]] for t in range(length)),
            )
            for y in sequences
        ]
    ).double()
    single = torch.zeros(emission.shape[1], states, dtype=torch.float64)
    pairs = torch.zeros(max(emission.shape[1] - 1, 0), states, states, dtype=torch.float64)
    for probability, y in zip(scores.softmax(0), sequences, strict=True):
        for t in range(length):
            single[t, y[t]] += probability
        for t in range(length - 1):
            pairs[t, y[t], y[t + 1]] += probability
    return single, pairs if transition.ndim == 4 else pairs.sum(0), scores.logsumexp(0)


@examples(60)
@given(
    seed=SEEDS,
    size=SIZES,
    axes=st.sampled_from([2, 3, 4]),
    ragged=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_marginals_are_those_of_all_sequences(seed, size, axes, ragged, dtype):
    emission, transition, lengths = draw(seed, size, axes, dtype)
    states, pairs, log_partition = sum_product(emission, transition, lengths if ragged else None)
    assert states.dtype == pairs.dtype == dtype
    assert log_partition.dtype == torch.float64
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    for row in range(size[0]):
        length = int(lengths[row]) if ragged else size[1]
        single, both, total = by_enumeration(emission, transition, row, length)
        torch.testing.assert_close(states[row].double(), single, atol=tolerance, rtol=0)
        torch.testing.assert_close(pairs[row].double(), both, atol=tolerance, rtol=0)
        torch.testing.assert_close(log_partition[row], total, atol=10 * tolerance, rtol=0)


@examples(20)
@given(seed=SEEDS, size=SIZES, junk=st.sampled_from([0.0, 1e6, float("nan")]))
def test_padding_never_matters(seed, size, junk):
    emission, transition, lengths = draw(seed, size, 4)
    beyond = torch.arange(size[1]) >= lengths.unsqueeze(1)
    padded = emission.masked_fill(beyond.unsqueeze(2), junk)
    pairs = transition.masked_fill(beyond[:, 1:, None, None], junk)
    for a, b in zip(sum_product(padded, pairs, lengths), sum_product(emission, transition, lengths), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e2, 1e4, 1e7])
def test_large_potentials_still_give_a_distribution(scale, dtype):
    emission, transition, lengths = draw(3, (4, 9, 5), 4, dtype, scale)
    states, pairs, log_partition = sum_product(emission, transition, lengths)
    rounding = 20 * torch.finfo(dtype).eps
    real = torch.arange(9) < lengths.unsqueeze(1)
    assert bool(torch.isfinite(log_partition).all())
    torch.testing.assert_close(states.sum(2), real.to(dtype), atol=rounding, rtol=0)
    both = real[:, 1:].unsqueeze(2)
    torch.testing.assert_close(pairs.sum(3), states[:, :-1] * both, atol=rounding, rtol=0)
    torch.testing.assert_close(pairs.sum(2), states[:, 1:] * both, atol=rounding, rtol=0)


def test_long_chains_lose_no_digits():
    emission, transition, _ = draw(0, (1, 3000, 3), 2, torch.float32)
    exact = sum_product(emission.double(), transition.double())
    means = sum_product(emission, transition)
    torch.testing.assert_close(means[0].double(), exact[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(means[2], exact[2], atol=0, rtol=1e-6)
