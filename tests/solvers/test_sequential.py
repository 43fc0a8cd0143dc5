"""Exact steps on the blocks of a batch one after another, in the torch loop."""

from __future__ import annotations

import pytest
import torch
from cases.compiled_kinds import SEQUENCES as KINDS
from cases.problems import PROBLEMS, Training, WithoutAdjoint, assert_same, flat, reference, refused

from torchssvm import (
    BlockGap,
    CacheOracle,
    CompiledBCFW,
    DualState,
    Labelings,
    LinearChain,
    MeanParts,
    Pairwise,
    Sequential,
    SlackRescaling,
    Weights,
    certify,
)

kinds = pytest.mark.parametrize("kind", KINDS)


def sequential(kind: str, **options) -> Training:
    training = Training(KINDS[kind](**options))
    training.loss = BlockGap(training.dual, block_steps=Sequential())
    return training


@kinds
def test_batches_of_one_are_the_steps_of_the_compiled_loop(kind):
    training, own = sequential(kind), KINDS[kind]()
    loop = CompiledBCFW(own.head, DualState.for_head(own.head, own.n, own.lam), own.everything())
    for i in range(24):
        value = training.step([i % 8])
        loop.visit(torch.tensor([i % 8]))
        assert value == pytest.approx(float(loop.dual.gap_estimates[i % 8]), abs=1e-12)
    torch.testing.assert_close(flat(training.dual.parameters), flat(loop.dual.parameters), rtol=0, atol=1e-10)
    torch.testing.assert_close(training.dual.loss, loop.dual.loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(training.dual.gap_estimates, loop.dual.gap_estimates, rtol=0, atol=1e-10)
    assert training.dual.oracle_calls == loop.dual.oracle_calls == 24


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@kinds
def test_a_batch_gains_at_least_what_single_steps_do(kind, dtype):
    """The line search over the batch comes last, so that a step may even gain more."""
    rounding = 1e-10 if dtype == torch.float64 else 2e-5
    training, own = sequential(kind, dtype=dtype), KINDS[kind](dtype=dtype)
    loop = CompiledBCFW(own.head, DualState.for_head(own.head, own.n, own.lam), own.everything())
    held = 0.0
    for k in range(12):
        rows = [(3 * k + j) % 8 for j in range(5)]
        loop.dual.load_state_dict(training.dual.state_dict())
        value = training.step(rows)
        loop.visit(torch.tensor(rows))
        assert value == pytest.approx(float(loop.dual.gap_estimates[rows].sum()), abs=rounding)
        assert training.dual.value() >= loop.dual.value() - rounding
        assert training.dual.value() >= held - rounding
        held = training.dual.value()
    found = certify(training.head, training.dual, training.problem.everything(3))
    assert found.drift < rounding
    assert found.gap > -rounding


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_optimum_is_that_of_the_qp(kind):
    problem = PROBLEMS[kind](3, lam=0.3)
    optimum = reference(problem.copy()).optimum()
    training = Training(problem)
    training.loss = BlockGap(training.dual, block_steps=Sequential())
    for k in range(600):
        training.step([k % problem.n, (k + 2) % problem.n])
        if k % 60 == 59:
            found = certify(problem.head, training.dual, problem.everything())
            if found.gap < 0.02:
                break
    assert found.dual - 1e-9 <= optimum + 1e-7
    assert optimum <= found.primal + 2e-7
    assert found.gap < 0.02


@kinds
def test_nothing_is_left_behind_without_a_step(kind):
    training = sequential(kind)
    training.step([0, 1, 2])
    before = training.snapshot()
    batch = training.problem.batch([3, 4])
    with torch.no_grad():
        plain = training.forward(batch)
    gaps = BlockGap(training.dual)
    torch.testing.assert_close(plain, gaps(training.head(*head_inputs(batch)), batch.y, batch.index).detach())
    training.forward(batch)
    assert_same(training.snapshot(), before)


def head_inputs(batch):
    return (batch.x,) if batch.lengths is None else (batch.x, batch.lengths)


def test_accumulated_batches_make_one_step():
    training = sequential("chain")
    for k in range(6):
        held = training.dual.value()
        training.optim.zero_grad()
        training.backward([k % 8, (k + 1) % 8])
        training.backward([(k + 2) % 8, (k + 4) % 8], scale=0.5)
        training.optim.step()
        assert training.dual.value() >= held - 1e-12
    assert certify(training.head, training.dual, training.problem.everything()).drift < 1e-10


def test_an_example_that_is_there_twice_counts_once():
    training, plain = sequential("chain"), Training(KINDS["chain"]())
    assert training.step([1, 2, 1]) == pytest.approx(plain.step([1, 2, 1]))
    torch.testing.assert_close(flat(training.dual.parameters), flat(plain.dual.parameters))


def test_a_gradient_that_was_changed_is_refused():
    training = sequential("chain")
    training.step([0, 1])
    training.optim.zero_grad()
    training.backward([2, 3])
    with torch.no_grad():
        training.head.emission.grad *= 0.5
    with refused(training, RuntimeError, "gradient"):
        training.optim.step()


@pytest.mark.parametrize(
    "storage, rules",
    [
        (Labelings(), {"direction": Pairwise()}),
        (Labelings(), {"oracle": CacheOracle()}),
        (Labelings(), {}),
        (Weights(), {}),
    ],
)
def test_other_rules_and_storages_are_refused(storage, rules):
    problem = KINDS["chain"]()
    dual = DualState.for_head(problem.head, 8, 0.1, storage=storage)
    with pytest.raises(ValueError, match=r"Sequential\(\) is for"):
        BlockGap(dual, block_steps=Sequential(), **rules)


def test_other_heads_and_structures_are_refused():
    problem = KINDS["chain"](adjoint=False)
    assert isinstance(problem.head, WithoutAdjoint)
    training = Training(problem)
    training.loss = BlockGap(training.dual, block_steps=Sequential())
    with pytest.raises(ValueError, match=r"Sequential\(\) needs a LinearChain or LinearMulticlass"):
        training.forward(problem.batch([0]))
    head = LinearChain(2, 3)
    dual = DualState.for_head(head, 8, 0.1, structure=SlackRescaling(head.structure), storage=MeanParts())
    batch = KINDS["chain"](dtype=torch.float32).batch([0, 1])
    with pytest.raises(TypeError, match="the dual's structure is"):
        BlockGap(dual, block_steps=Sequential())(head(batch.x, batch.lengths), batch.y, batch.index)
    positions = LinearChain(2, 3, positions=4)
    dual = DualState.for_head(positions, 8, 0.1)
    with pytest.raises(TypeError, match="has no compiled loop"):
        BlockGap(dual, block_steps=Sequential())(positions(batch.x, batch.lengths), batch.y, batch.index)


def test_features_that_are_not_finite_are_named():
    training = sequential("chain")
    training.step([0, 1])
    training.problem.x[1, 0, 0] = float("nan")
    with refused(training, ValueError, r"the potentials of examples \[1\] are not finite"):
        training.forward(training.problem.batch([0, 1]))
