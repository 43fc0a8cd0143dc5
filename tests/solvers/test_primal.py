"""The exact primal of any weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.problems import PROBLEMS, assert_same, chain, examples, flat, multiclass, reference, rng
from cases.top_label_sets import Approximate, label_sets
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchssvm import certify
from torchssvm.core.potentials import as_potentials
from torchssvm.solvers import primal


def randomise(head, seed=0):
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.randn(p.shape, generator=rng(seed), dtype=torch.float64))


@examples(10)
@given(seed=st.integers(0, 2**31 - 1), kind=st.sampled_from(sorted(PROBLEMS)), size=st.integers(1, 6))
def test_against_brute_force(seed, kind, size):
    problem = PROBLEMS[kind](seed)
    randomise(problem.head, seed)
    truth, w = reference(problem), flat(problem.head.parameters())
    result = primal(problem.head, problem.structure, problem.everything(size), problem.lam)
    assert result.value == result.bound == pytest.approx(truth.primal(w), abs=1e-11)
    assert result.hinge == pytest.approx(truth.hinges(w).mean(), abs=1e-11)
    assert result.exact
    assert result.oracle_calls == problem.n
    assert result.seconds > 0.0
    assert result.lam == problem.lam
    assert str(result) == f"primal {result.value:.6g}"
    lam = np.float32(problem.lam)
    result = primal(problem.head, problem.structure, problem.everything(size), lam)
    assert type(result.lam) is float
    assert result.lam == float(lam)


def test_it_agrees_with_the_certificate_and_changes_nothing():
    problem = chain(2)
    training = problem.train().run([[0, 1], [2], [3, 4]])
    before = training.snapshot()
    result = primal(training.head, problem.structure, problem.everything(2), problem.lam)
    assert_same(training.snapshot(), before)
    assert result.value == certify(training.head, training.dual, problem.everything(2)).primal


def test_an_approximate_oracle_brackets_the_primal():
    head, exact, batch = label_sets(1)
    randomise(head)
    truth = primal(head, exact, [batch], 0.2)
    result = primal(head, Approximate(4, 2), [batch], 0.2)
    assert truth.exact
    assert not result.exact
    assert result.value <= truth.value + 1e-12
    assert result.bound == pytest.approx(truth.value + Approximate.slack, abs=1e-11)
    assert str(result) == f"primal between {result.value:.6g} and {result.bound:.6g} (approximate oracle)"
    scores = batch.x @ head.weight.detach().T
    listed = [exact.loss(y, batch.y) + (scores * (y - batch.y)).sum(1) for y in exact.enumerate(as_potentials(scores))]
    squared = float(head.weight.detach().square().sum())
    assert truth.value == pytest.approx(0.1 * squared + float(torch.stack(listed).max(0).values.mean()), abs=1e-11)


def test_features_below_the_head_are_not_regularised_when_parameters_say_so():
    head, structure, batch = label_sets(1)
    randomise(head)
    features = nn.Linear(3, 3).double()
    model = nn.Sequential(features, head)
    result = primal(model, structure, [batch], 0.2, parameters=head.parameters())
    assert result == primal_of(head, structure, batch.replace(x=features(batch.x).detach()), result)
    everything = primal(model, structure, [batch], 0.2)
    squared = sum(float(p.detach().square().sum()) for p in features.parameters())
    assert everything.value == pytest.approx(result.value + 0.1 * squared)
    with pytest.raises(ValueError, match="parameters"):
        primal(lambda x: model(x), structure, [batch], 0.2)


def primal_of(head, structure, batch, other):
    result = primal(head, structure, [batch], 0.2)
    return type(result)(**{**vars(result), "seconds": other.seconds})


@pytest.mark.parametrize(
    ("change", "lam", "error", "argument"),
    [
        ({}, 0.0, ValueError, "lam"),
        ({}, None, TypeError, "lam"),
        ({"index": torch.arange(6) - 1}, 0.1, ValueError, "index"),
        ({"index": torch.arange(4)}, 0.1, ValueError, "index"),
        ({"y": torch.full((6,), 7)}, 0.1, ValueError, "label"),
        ({"x": torch.full((6, 3), torch.nan).double()}, 0.1, ValueError, "not finite"),
    ],
)
def test_bad_input(change, lam, error, argument):
    problem = multiclass(2)
    with pytest.raises(error, match=argument):
        primal(problem.head, problem.structure, [problem.batch(range(6)).replace(**change)], lam)
