"""The torch loop in several processes: rounds, certificates, and what all processes hold."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from cases.compiled_kinds import lists
from cases.problem_data import Items
from cases.problems import PROBLEMS, assert_same, flat, rng
from cases.processes import in_processes

from torchssvm import (
    BlockGap,
    CacheOracle,
    GapBatchSampler,
    Labelings,
    MeanParts,
    Pairwise,
    TorchLoop,
    Weights,
    certify,
)
from torchssvm.core import ranks as ranks_module
from torchssvm.distributed.exchange import Exchange

STORAGES = {
    "mean parts": lambda: {"storage": MeanParts()},
    "labelings": lambda: {"storage": Labelings(capacity=2), "oracle": CacheOracle()},
    "weights": lambda: {"storage": Weights()},
}


def figures(training):
    dual = training.dual
    numbers = [dual.value(), dual.gap_estimate, dual.total_loss, dual.passes, dual.moved, dual.steps]
    return torch.tensor([*numbers, *flat(dual.parameters).tolist()], dtype=torch.float64)


def rounds_of(problem, ranks, options, *, size=3, rounds=12):
    """What a run holds after every round in which each rank visits one example, and its certificate."""
    training, random, seen = problem.copy().train(sweeps=50, **options), rng(5), []
    for _ in range(rounds):
        places = torch.randint(0, problem.n // size, (size,), generator=random)
        training.step([problem.n // size * rank + int(places[rank]) for rank in ranks])
        seen.append(figures(training))
    return torch.stack(seen), certify(training.head, training.dual, problem.everything(4)), training


@pytest.fixture
def in_slices(monkeypatch):
    """No head is small: directions go in slices."""
    monkeypatch.setattr(ranks_module, "_SMALL", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, storage, small",
    [  # every two of a kind, a storage and a way to send directions
        (kind, storage, (k + s) % 2 == 0)
        for k, kind in enumerate(["chain", "multiclass", "lists"])
        for s, storage in enumerate(STORAGES)
    ],
)
def test_one_example_of_each_process_is_a_batch_of_one_process(small, kind, storage, monkeypatch):
    monkeypatch.setattr(ranks_module, "_SMALL", 1 << 16 if small else 0)
    problem = lists() if kind == "lists" else PROBLEMS[kind](3, n=12, lam=0.05)
    alone, proof, _ = rounds_of(problem, range(3), STORAGES[storage]())
    every = in_processes(3, lambda rank: rounds_of(problem, [rank], STORAGES[storage]())[:2])
    for seen, other in every:
        torch.testing.assert_close(seen, alone, rtol=1e-12, atol=1e-13)
        assert math.isclose(other.primal, proof.primal, rel_tol=1e-12)
        assert math.isclose(other.dual, proof.dual, rel_tol=1e-12)
        assert (other.passes, other.num_examples) == (proof.passes, 12)
        assert torch.equal(seen, every[0][0])  # to the bit


@pytest.mark.slow
def test_rows_are_exchanged_where_they_are_few(in_slices):
    def train(rank, sparse):  # patches are of this process alone
        sizes, exchange = [], ranks_module.Ranks.exchange

        def counted(self, rows, sent, received):
            sizes.append((sum(sent) - sent[rank]) * rows[:1].nbytes)
            return exchange(self, rows, sent, received)

        ranks_module.Ranks.exchange = counted
        if not sparse:
            Exchange._counts = lambda self, gradient: torch.full((3,), -1.0, dtype=torch.float64)
        return rounds_of(lists(), [rank], {})[0], sum(sizes)

    rounds_of(lists(), range(3), {})
    (rows, few), (dense, many) = (in_processes(3, lambda rank, s=s: train(rank, s))[0] for s in (True, False))
    torch.testing.assert_close(rows, dense, rtol=1e-12, atol=1e-13)
    assert few < many / 2


def test_visits_are_those_of_all_processes():
    problem = PROBLEMS["multiclass"](3, n=5, lam=0.05)

    def train(rank):
        made = problem.copy().train()
        loop = TorchLoop(made.head, BlockGap(made.dual), Items(problem), batch_size=3)
        return list(itertools.islice(loop._steps(100.0), 2))

    assert in_processes(2, train) == [[5, 5], [5, 5]]


def sampled(problem, batch_size, options, *, order=None, steps=18):
    """A run on batches of the sampler, and what it holds after every step."""
    training, seen = problem.copy().train(sweeps=50, **options), []
    sampler = GapBatchSampler(training.dual, batch_size=batch_size, order=order)
    while len(seen) < steps:
        for rows in sampler:
            training.step(rows)
            seen.append(figures(training))
    return training, torch.stack(seen), certify(training.head, training.dual, problem.everything(1))


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["mean parts", "pairwise"])
def test_every_round_gains_and_certificates_overlap(storage):
    problem = PROBLEMS["chain"](4, n=23, states=3, features=4, longest=4, lam=0.03)
    make = STORAGES.get(storage, lambda: {"storage": Labelings(capacity=2), "direction": Pairwise()})

    def train(rank):
        training, seen, proof = sampled(problem, 3, make())
        return seen, proof, training.dual.value(), training.dual.rho

    brackets = []
    for size in (1, 2, 4):
        every = in_processes(size, train)
        seen, proof, value, rho = every[0]
        assert bool((seen[:, 0].diff() >= -1e-12).all())
        assert seen[-1, 0] > seen[0, 0] > 0.0
        assert math.isclose(proof.dual, value, rel_tol=1e-12)
        assert 0.0 <= rho <= size + 1e-9
        assert proof.exact
        assert proof.drift < 1e-12
        for other in every:
            assert_same(other[0], seen)
            assert (other[1].primal, other[1].dual, other[1].oracle_calls) == (
                proof.primal,
                proof.dual,
                proof.oracle_calls,
            )
        brackets.append((proof.dual, proof.primal))
    assert max(low for low, _ in brackets) <= min(high for _, high in brackets)
