"""The exact primal of any weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.custom import Approximate, label_sets
from cases.problems import PROBLEMS, assert_same, chain, examples, flat, multiclass, reference, rng
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
    found = primal(problem.head, problem.structure, problem.everything(size), problem.lam)
    assert found.value == found.bound == pytest.approx(truth.primal(w), abs=1e-11)
    assert found.hinge == pytest.approx(truth.hinges(w).mean(), abs=1e-11)
    assert found.exact
    assert found.oracle_calls == problem.n
    assert found.seconds > 0.0
    assert found.lam == problem.lam
    assert str(found) == f"primal {found.value:.6g}"
    lam = np.float32(problem.lam)
    found = primal(problem.head, problem.structure, problem.everything(size), lam)
    assert type(found.lam) is float
    assert found.lam == float(lam)


def test_it_agrees_with_the_certificate_and_changes_nothing():
    problem = chain(2)
    training = problem.train().run([[0, 1], [2], [3, 4]])
    before = training.snapshot()
    found = primal(training.head, problem.structure, problem.everything(2), problem.lam)
    assert_same(training.snapshot(), before)
    assert found.value == certify(training.head, training.dual, problem.everything(2)).primal


def test_float32_is_summed_in_float64():
    problem, wide = chain(3, dtype=torch.float32), chain(3)
    for p, q in zip(problem.head.parameters(), wide.head.parameters(), strict=True):
        with torch.no_grad():
            p.copy_(torch.randn(p.shape, generator=rng(1)))
            q.copy_(p)
    found = primal(problem.head, problem.structure, problem.everything(2), problem.lam)
    expected = primal(wide.head, wide.structure, wide.everything(2), wide.lam)
    assert found.value == pytest.approx(expected.value, rel=1e-6)


def test_an_approximate_oracle_brackets_the_primal():
    head, exact, batch = label_sets(1)
    randomise(head)
    truth = primal(head, exact, [batch], 0.2)
    found = primal(head, Approximate(4, 2), [batch], 0.2)
    assert truth.exact
    assert not found.exact
    assert found.value <= truth.value + 1e-12
    assert found.bound == pytest.approx(truth.value + Approximate.slack, abs=1e-11)
    assert str(found) == f"primal between {found.value:.6g} and {found.bound:.6g} (approximate oracle)"
    scores = batch.x @ head.weight.detach().T
    listed = [exact.loss(y, batch.y) + (scores * (y - batch.y)).sum(1) for y in exact.enumerate(as_potentials(scores))]
    squared = float(head.weight.detach().square().sum())
    assert truth.value == pytest.approx(0.1 * squared + float(torch.stack(listed).max(0).values.mean()), abs=1e-11)


def test_features_below_the_head_are_not_regularised_when_parameters_say_so():
    head, structure, batch = label_sets(1)
    randomise(head)
    features = nn.Linear(3, 3).double()
    model = nn.Sequential(features, head)
    found = primal(model, structure, [batch], 0.2, parameters=head.parameters())
    assert found == primal_of(head, structure, batch.replace(x=features(batch.x).detach()), found)
    everything = primal(model, structure, [batch], 0.2)
    squared = sum(float(p.detach().square().sum()) for p in features.parameters())
    assert everything.value == pytest.approx(found.value + 0.1 * squared)
    with pytest.raises(ValueError, match="parameters"):
        primal(lambda x: model(x), structure, [batch], 0.2)


def primal_of(head, structure, batch, other):
    found = primal(head, structure, [batch], 0.2)
    return type(found)(**{**vars(found), "seconds": other.seconds})


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
