"""Several batches before one step, with blocks kept as labelings: every direction, with and without a cache."""

from __future__ import annotations

import pytest
import torch
from cases.problems import PROBLEMS, Training, assert_same, examples, reference, rng
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import BlockGap, CacheOracle, Corrective, FrankWolfe, Labelings, Pairwise, certify
from torchssvm.steps import Away, BoxQP, CommonStep, Hybrid

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from(sorted(PROBLEMS))
directions = pytest.mark.parametrize("direction", [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()], ids=repr)


def accumulate(training: Training, batches: list[list[int]], scale: float) -> None:
    training.optim.zero_grad()
    for rows in batches:
        training.backward(rows, scale)
    training.optim.step()


def check(training: Training, truth, rounding: float) -> None:
    """What the blocks, the losses and the weights say of one another."""
    storage, dual = training.dual.storage, training.dual
    assert bool((storage.sets.mass >= 0.0).all())
    assert bool(((storage.rest_mass + storage.sets.mass.sum(1)).sub(1.0).abs() < 1e-12).all())
    total = storage.rest_loss + (storage.sets.mass * storage.sets.loss).sum(1) / dual.num_examples
    torch.testing.assert_close(total, dual.loss, rtol=0, atol=1e-12)
    certificate = certify(training.head, dual, training.problem.everything(2))
    assert certificate.drift < rounding
    assert certificate.gap >= -rounding
    assert certificate.primal == pytest.approx(truth.primal(training.weights()), abs=rounding)
    assert float(dual.gap_estimates.sum()) == pytest.approx(certificate.gap, abs=10 * rounding)


@directions
@examples(8)
@given(
    seed=SEEDS,
    kind=KINDS,
    cache=st.booleans(),
    adjoint=st.booleans(),
    sweeps=st.sampled_from([0, 1, 5]),
    capacity=st.sampled_from([2, 20]),
    scale=st.sampled_from([1.0, 0.5]),
    dtype=st.sampled_from([torch.float64, torch.float64, torch.float32]),
)
def test_accumulated_steps_raise_the_dual(direction, seed, kind, cache, adjoint, sweeps, capacity, scale, dtype):
    """Where the batches are merged into one box QP, an example may be in several of them."""
    problem = PROBLEMS[kind](seed, lam=0.1, adjoint=adjoint, dtype=dtype)
    truth, random = reference(problem), rng(seed)
    rounding = 1e-9 if dtype == torch.float64 else 1e-4
    training = problem.train(
        storage=Labelings(capacity), direction=direction, oracle=CacheOracle(0.5) if cache else None, sweeps=sweeps
    )
    dual, stored, seen = training.dual, 0.0, 0
    for step in range(12):
        order = torch.randperm(problem.n, generator=random)
        batches = [part.tolist() for part in order[: 2 + step % 4].split([1, 1 + step % 4])]
        if adjoint and sweeps:
            batches.append([batches[0][0], batches[1][0]])
        accumulate(training, batches, scale)
        seen += sum(map(len, batches))
        assert dual.value() >= stored - rounding
        stored = dual.value()
        assert dual.oracle_calls + dual.cache_hits == seen
        if step % 6 == 5:
            check(training, truth, rounding)
            seen += problem.n
    assert stored > 0.0
    assert dual.steps == 12


@directions
def test_a_block_cannot_move_twice_from_one_start(direction):
    """Without the box QP an example in two batches would be moved twice: refused before anything has changed."""
    problem = PROBLEMS["chain"](3, adjoint=False)
    training = problem.train(storage=Labelings(), direction=direction).run([[0], [1, 2]])
    training.optim.zero_grad()
    training.backward([0, 1])
    training.backward([2, 1])
    before = training.snapshot()
    with pytest.raises(ValueError, match=r"examples \[1\] came in two batches"):
        training.optim.step()
    assert_same(training.snapshot(), before)
    training.step([1, 2])
    check(training, reference(problem), 1e-9)


@pytest.mark.parametrize("one, other", [(BoxQP(5), BoxQP(1)), (BoxQP(5), CommonStep())])
def test_losses_with_different_block_steps_are_not_accumulated(one, other):
    """One rule chooses the steps of all batches: taking the first one's would ignore the other's unasked."""
    training = PROBLEMS["multiclass"](3).train()
    before = training.snapshot()
    for first, second in ((one, other), (other, one)):
        training.optim.zero_grad()
        for block_steps, rows in ((first, [0, 1]), (second, [2, 3])):
            training.loss = BlockGap(training.dual, block_steps=block_steps)
            training.backward(rows)
        with pytest.raises(RuntimeError, match="block_steps"):
            training.optim.step()
        assert_same(training.snapshot(), before)
