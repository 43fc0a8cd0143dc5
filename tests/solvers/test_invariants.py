"""What must hold after every step, whatever the problem, the order and what else is called in between."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.problems import PROBLEMS, assert_same, chain, examples, reference
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import MeanParts, StructuredHinge, Weights
from torchssvm.core.batch import apply_head

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from(sorted(PROBLEMS))
STORAGES = st.sampled_from([MeanParts, Weights])


@examples(30)
@given(
    seed=SEEDS,
    kind=KINDS,
    storage=STORAGES,
    scale=st.sampled_from([1.0, 0.5, 3.0]),
    overlap=st.booleans(),
    sweeps=st.sampled_from([0, 1, 2]),
    adjoint=st.booleans(),
)
def test_accumulated_batches_equal_one_batch(seed, kind, storage, scale, overlap, sweeps, adjoint):
    """More than one sweep stops early, and rounding may decide when: two sweeps never do."""
    adjoint = adjoint or sweeps > 0
    problem = PROBLEMS[kind](seed, adjoint=adjoint)
    truth = reference(problem)
    together, apart = (problem.copy().train(storage=storage(), sweeps=sweeps) for _ in range(2))
    for first, second in [([0, 1], [2]), ([4], [3, 0]), ([2, 1], [4, 3]), ([0], [1])]:
        if overlap and sweeps:
            second = [*second, first[0]]
        if truth.tied(together.weights(), first + second):
            continue
        together.step(first + second)
        apart.optim.zero_grad()
        apart.backward(first, scale)
        apart.backward(second, scale)
        apart.optim.step()
        torch.testing.assert_close(apart.weights(), together.weights())
        torch.testing.assert_close(apart.dual.loss, together.dual.loss)
        torch.testing.assert_close(apart.dual.gap_estimates, together.dual.gap_estimates)
        assert apart.dual.oracle_calls == together.dual.oracle_calls
    assert together.weights().abs().max() > 0


@examples(15)
@given(seed=SEEDS, kind=KINDS, storage=STORAGES, adjoint=st.booleans(), sweeps=st.sampled_from([0, 1, 10]))
def test_duplicates_count_once(seed, kind, storage, adjoint, sweeps):
    problem = PROBLEMS[kind](seed, adjoint=adjoint)
    truth = reference(problem)
    with_them, without = (problem.copy().train(storage=storage(), sweeps=sweeps) for _ in range(2))
    for rows in ([0, 0], [1, 2, 1, 1], [3, 4, 4], [0, 1, 0]):
        distinct = list(dict.fromkeys(rows))
        if truth.tied(without.weights(), rows):
            continue
        assert with_them.step(rows) == pytest.approx(without.step(distinct), abs=1e-12)
        torch.testing.assert_close(with_them.weights(), without.weights())
        torch.testing.assert_close(with_them.dual.loss, without.dual.loss)
    assert without.weights().abs().max() > 0


@pytest.mark.parametrize("storage", [MeanParts, Weights])
@pytest.mark.parametrize("kind", sorted(PROBLEMS))
@pytest.mark.parametrize("before", [0, 6])
def test_calls_without_a_backward_pass_leave_no_trace(storage, kind, before):
    problem = PROBLEMS[kind](1)
    training = problem.train(storage=storage()).run([[k % problem.n] for k in range(before)])
    training.optim.zero_grad()
    kept = copy.deepcopy(training.optim.state_dict())
    batch = problem.batch([1, 0, 1])
    values = []
    with torch.no_grad():
        values.append(training.forward(batch))
    values.append(training.forward(batch).detach())
    training.head.eval()
    with torch.inference_mode():
        values.append(training.forward(batch))
    training.head.train()
    StructuredHinge(problem.structure)(apply_head(training.head, batch), batch.y)
    assert not training.dual.mailbox.waiting
    assert all(p.grad is None for p in training.dual.parameters)
    assert_same(training.optim.state_dict(), kept)
    assert len({float(value) for value in values}) == 1
    assert not values[0].requires_grad


@pytest.mark.parametrize("storage", [MeanParts, Weights])
def test_zero_grad_discards_the_step(storage):
    training = chain(1).train(storage=storage()).run([[0], [1, 2]])
    before = copy.deepcopy(training.optim.state_dict())
    training.optim.zero_grad()
    training.backward([3])
    assert training.dual.mailbox.waiting
    training.optim.zero_grad()
    assert not training.dual.mailbox.waiting
    with pytest.raises(RuntimeError, match="has no proposal"):
        training.optim.step()
    after = training.optim.state_dict()
    assert after["dual"].pop("visits") == before["dual"].pop("visits") + 1  # the batch was given up
    assert after["dual"].pop("seal") != before["dual"].pop("seal")
    assert_same(after, before)
    training.step([3])


def test_a_validation_call_between_backward_and_step_changes_nothing():
    problem = chain(3)
    a, b = problem.copy().train(), problem.copy().train()
    for rows in ([0], [1, 2], [3, 0]):
        a.step(rows)
        b.optim.zero_grad()
        b.backward(rows)
        with torch.no_grad():
            b.forward(problem.batch([0, 1, 2, 3, 4]))
        b.optim.step()
    assert_same(a.snapshot(), b.snapshot())
