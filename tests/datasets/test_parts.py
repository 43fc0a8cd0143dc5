"""Held-out examples of any dataset."""

import math

import pytest
import torch
from cases.problem_data import Items
from cases.problems import PROBLEMS

from torchssvm import in_order, solve
from torchssvm.datasets import OCR, PaddedDataset, PrecomputedFeatures, hold_out


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_every_example_is_in_one_part(kind):
    problem = PROBLEMS[kind](3)
    train, held_out = hold_out(Items(problem), 1 / 3)
    assert (len(train), len(held_out)) == (problem.n - round(problem.n / 3), round(problem.n / 3))
    assert sorted([*train.rows.tolist(), *held_out.rows.tolist()]) == list(range(problem.n))
    for part in (train, held_out):
        (batch,) = in_order(part)
        assert batch.index.tolist() == list(range(len(part)))
        assert [part[i] for i in range(len(part))] == batch.index.tolist()
        whole = problem.batch(part.rows.tolist())
        assert torch.equal(batch.x, whole.x)
        assert torch.equal(batch.y, whole.y)


def test_a_part_trains_as_the_same_examples_alone():
    problem = PROBLEMS["chain"](3)
    data = PaddedDataset(problem.x, problem.y, problem.lengths)
    train, _ = hold_out(data, 0.5, seed=1)
    rows = train.rows
    assert torch.equal(train.lengths, problem.lengths[rows])
    alone = PaddedDataset(problem.x[rows], problem.y[rows], problem.lengths[rows])
    first, second = (solve(PROBLEMS["chain"](3).head, examples, 0.5) for examples in (train, alone))
    assert (first.primal, first.dual) == (second.primal, second.dual)


def test_the_seed_decides():
    data = Items(PROBLEMS["chain"](3, n=30))
    one, same, other = (hold_out(data, 0.3, seed=seed)[1].rows for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    for share in (0.0, 1.0, 0.01, math.nan, "a"):
        with pytest.raises((TypeError, ValueError)):
            hold_out(data, share)


def test_wrappers_keep_what_describes_the_labels():
    x, y = torch.zeros(6, 2, 3), torch.tensor([[0, -100]] * 6)
    part = hold_out(hold_out(PaddedDataset(x, y), 0.5)[0], 0.5)[0]
    features = PrecomputedFeatures(part, torch.nn.Linear(3, 4))
    assert features.y[0].tolist() == [0, -100]
    letters = PrecomputedFeatures(hold_out(OCR(), 0.01)[1], torch.nn.Linear(128, 4))
    assert letters.num_states == 26
    assert not hasattr(letters, "in_features")
