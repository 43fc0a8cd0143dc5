"""Chains that were made up: their distribution, and their best weights."""

import itertools

import pytest
import torch
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import SparseFeatures, SparseLinearChain
from torchssvm.datasets import LargeChains, SparseChains

SMALL = {"num_states": 4, "in_features": 5, "lengths": (1, 5), "successors": 2, "own": 2, "num_chains": 20}


def features(chains: SparseChains) -> torch.Tensor:
    """``[tokens, F]``."""
    x = torch.zeros(len(chains.states), chains.in_features)
    token = torch.repeat_interleave(torch.arange(len(x)), chains.rows.diff())
    return x.index_put_((token, chains.columns.long()), chains.values, accumulate=True)


@pytest.mark.parametrize("surprise,noise", [(0.1, 0.3), (0.6, 0.8)])
def test_the_truth_is_log_odds(surprise, noise):
    truth = LargeChains(num_states=30, in_features=12, surprise=surprise, noise=noise, num_chains=1).truth
    transition = surprise / 30 * truth.transition.dense().double().exp()
    assert torch.allclose(transition.sum(1), torch.ones(30, dtype=torch.float64), atol=1e-5)
    emission = noise / 12 * truth.emission.dense().double().exp()
    assert torch.allclose(emission.sum(0), torch.ones(30, dtype=torch.float64), atol=1e-5)
    assert float(truth.transition.values.min()) >= 0.0
    assert truth.transition.indptr.diff().max() <= 4
    assert truth.emission.counts().max() <= 4


def test_frequencies_are_the_probabilities():
    chains = LargeChains(num_states=5, in_features=7, num_chains=8000, lengths=(4, 6), surprise=0.3, noise=0.4, draws=2)
    states, x = chains.states, features(chains).double()
    first = chains.offsets[:-1]
    assert torch.allclose(torch.bincount(states[first]).double() / 8000, torch.full((5,), 0.2).double(), atol=0.02)
    inner = torch.ones(len(states), dtype=torch.bool)
    inner[chains.offsets[1:] - 1] = False
    pairs = torch.bincount(states[:-1][inner[:-1]] * 5 + states[1:][inner[:-1]], minlength=25).view(5, 5).double()
    wanted = 0.3 / 5 * chains.truth.transition.dense().double().exp()
    assert torch.allclose(pairs / pairs.sum(1, keepdim=True), wanted, atol=0.03)
    drawn = torch.zeros(5, 7, dtype=torch.float64).index_add_(0, states, x)
    wanted = 0.4 / 7 * chains.truth.emission.dense().double().exp().T
    assert torch.allclose(drawn / drawn.sum(1, keepdim=True), wanted, atol=0.02)
    assert torch.equal(x.sum(1), torch.full((len(x),), 2.0).double())
    assert sorted(set(chains.lengths.tolist())) == [4, 5, 6]


def test_the_same_seed_gives_the_same_chains():
    a, b = LargeChains(**SMALL, seed=3), LargeChains(**SMALL, seed=3)
    test, other = LargeChains("test", **SMALL, seed=3), LargeChains(**SMALL, seed=4)
    for name in ("offsets", "rows", "columns", "values", "states"):
        assert torch.equal(getattr(a, name), getattr(b, name))
    for name in ("indptr", "indices", "values"):
        assert torch.equal(getattr(a.truth.emission, name), getattr(test.truth.emission, name))
        assert torch.equal(getattr(a.truth.transition, name), getattr(test.truth.transition, name))
    assert a.states.tolist() != test.states.tolist()
    assert a.truth.emission.indices.tolist() != other.truth.emission.indices.tolist()


@examples(25)
@given(st.integers(0, 1000), st.sampled_from([0.05, 0.5, 0.95]))
def test_decoding_is_enumeration(seed, surprise):
    chains = LargeChains(**SMALL, seed=seed, surprise=surprise)
    emission = features(chains).double() @ chains.truth.emission.dense().double()
    transition = chains.truth.transition.dense().double()
    labels = chains.truth.decode(chains)
    for i in range(4):
        tokens = chains.tokens(i)
        rows = emission[tokens]

        def score(path, rows=rows):
            ways = sum(float(transition[a, b]) for a, b in itertools.pairwise(path))
            return ways + sum(float(row[k]) for row, k in zip(rows, path, strict=True))

        best = max(score(path) for path in itertools.product(range(4), repeat=len(rows)))
        assert score(labels[tokens].tolist()) == pytest.approx(best)


def test_decoding_is_that_of_the_head(monkeypatch):
    chains = LargeChains(num_states=60, num_chains=40, seed=1)
    head = SparseLinearChain(chains.in_features, chains.num_states)
    torch.nn.init.normal_(head.bias)  # what the truth does not have is 0 afterwards
    chains.truth.load_into(head)
    batch = chains.__getitems__(range(40))
    labels = head.structure.argmax(head(batch.x, batch.lengths)).labeling
    inside = batch.y >= 0
    assert torch.equal(labels[inside], chains.truth.decode(chains))
    error = float((labels != batch.y)[inside].double().mean())
    assert chains.truth_error == pytest.approx(error)
    assert 0.0 < error < 0.1
    whole = chains.truth.decode(chains)
    monkeypatch.setattr("torchssvm.datasets.synthetic.large_chains._ENTRIES", 3000)  # two chains at a time
    assert torch.equal(chains.truth.decode(chains), whole)


def test_the_truth_fits_its_head_only():
    truth = LargeChains(**SMALL).truth
    with pytest.raises(ValueError, match="head"):
        truth.load_into(SparseLinearChain(5, 5))
    with pytest.raises(ValueError, match="chains"):
        truth.decode(LargeChains(**{**SMALL, "in_features": 6}))


def test_items_and_batches():
    chains = LargeChains(**SMALL)
    x = features(chains)
    assert (chains.rows.dtype, chains.columns.dtype, chains.values.dtype) == (torch.int64, torch.int32, torch.float32)
    assert (chains.offsets.dtype, chains.states.dtype) == (torch.int64, torch.int64)
    batch = chains.__getitems__([3, -1, 3])
    assert isinstance(batch.x, SparseFeatures)
    assert batch.index.tolist() == [3, 19, 3]
    dense = batch.x.dense(5)
    for row, i in enumerate([3, 19, 3]):
        tokens, length = chains.tokens(i), int(batch.lengths[row])
        assert length == chains.lengths[i] == tokens.stop - tokens.start
        assert torch.equal(dense[row, :length], x[tokens])
        assert torch.equal(batch.y[row, :length], chains.states[tokens])
        assert (batch.y[row, length:] == -1).all()
        assert (dense[row, length:] == 0).all()
    items = chains.collate([chains[i] for i in (3, 19, 3)])
    assert torch.equal(items.x.dense(5), dense)
    assert torch.equal(items.y, batch.y)
    assert torch.equal(items.lengths, batch.lengths)


@pytest.mark.parametrize(
    "wrong",
    [{"split": "dev"}, {"num_states": 1}, {"lengths": (0, 3)}, {"lengths": (4, 3)}, {"draws": True}, {"noise": 1.0}],
)
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LargeChains(**wrong)
