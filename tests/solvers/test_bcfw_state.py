"""Checkpoints that continue to the bit, and the torch.optim.Optimizer interface."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
from cases.problems import PROBLEMS, assert_same, chain, flat, multiclass, through_a_file

from torchssvm import BCFW, BlockGap, DualState, GapBatchSampler, MeanParts, Weights, certify

STORAGES = {"mean_parts": MeanParts, "weights": Weights}


class Run:
    """Training with a sampler and an exact pass now and then, stopped after any number of steps."""

    def __init__(self, kind, storage, dtype, adjoint=True):
        self.problem = PROBLEMS[kind](11, n=14, lam=0.05, dtype=dtype, adjoint=adjoint)
        self.training = self.problem.train(storage=STORAGES[storage]())
        self.sampler = GapBatchSampler(self.training.dual, batch_size=3, seed=2, chunk=2)
        self.steps = 0

    def forward(self, steps: int) -> Run:
        stop = self.steps + steps
        while self.steps < stop:
            for batch in self.sampler:
                self.training.step(batch)
                self.steps += 1
                if self.steps % 8 == 0:
                    certify(self.training.head, self.training.dual, self.problem.everything(4))
                if self.steps == stop:
                    break
        return self

    def state(self):
        return {
            "optim": self.training.optim.state_dict(),
            "sampler": self.sampler.state_dict(),
            "head": self.training.head.state_dict(),
        }

    def load(self, state, steps: int) -> Run:
        self.training.optim.load_state_dict(state["optim"])
        self.sampler.load_state_dict(state["sampler"])
        self.steps = steps
        return self


@functools.cache
def end_of(*case) -> Any:
    """What a run that is left alone ends with."""
    return through_a_file(Run(*case).forward(24).state())


@pytest.mark.parametrize("stop", [0, 1, 7, 8, 13, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("storage", sorted(STORAGES))
@pytest.mark.parametrize("kind", sorted(PROBLEMS))
@pytest.mark.parametrize("adjoint", [True, False])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(kind, storage, dtype, stop, adjoint):
    """Stops lie before the first step, in the middle of an epoch, at its end, and right after an exact pass."""

    def run() -> Run:
        return Run(kind, storage, dtype, adjoint)

    state = through_a_file(run().forward(stop).state())
    resumed = run().forward({0: 5, 7: 17}.get(stop, 0))  # what was there before must not shine through
    assert_same(resumed.load(state, stop).forward(24 - stop).state(), end_of(kind, storage, dtype, adjoint))
    assert resumed.training.weights().abs().max() > 0


@pytest.mark.parametrize("storage", sorted(STORAGES))
def test_states_are_copies(storage):
    run = Run("chain", storage, torch.float64).forward(9)
    state = run.state()
    frozen = copy.deepcopy(state)
    other = Run("chain", storage, torch.float64).load(state, 9)
    run.forward(5)
    other.forward(5)
    state["head"] = frozen["head"]  # a module's state_dict is a view, that is torch's way
    assert_same(state, frozen)


def test_loading_drops_a_proposed_step():
    training = multiclass(1).train().run([[0], [1]])
    state = copy.deepcopy(training.optim.state_dict())
    training.optim.zero_grad()
    training.backward([2])
    training.optim.load_state_dict(state)
    assert not training.dual.mailbox.waiting
    with pytest.raises(RuntimeError, match="no proposal"):
        training.optim.step()


def test_checkpoints_move_between_devices(device):
    source = chain(3)
    training = source.train().run([[0, 1], [2], [3]])
    certify(training.head, training.dual, source.everything(2))
    state = through_a_file(training.optim.state_dict())
    moved = chain(3).to(device)
    other = moved.train()
    other.optim.load_state_dict(state)
    for rows in ([1, 2], [4], [0, 3]):
        training.step(rows)
        batch = source.batch(rows)
        other.step(type(batch)(*(t.to(device) for t in batch)))
    torch.testing.assert_close(other.weights().cpu(), training.weights())
    back = chain(3).train()
    back.optim.load_state_dict(through_a_file(other.optim.state_dict()))
    torch.testing.assert_close(back.weights(), training.weights())


def test_the_learning_rate_is_published():
    problem = chain(2)
    training = problem.train()
    assert training.optim.param_groups[0]["lr"] == 0.0
    for rows in ([0], [1, 2], [3], [0]):
        before = training.weights()
        training.optim.zero_grad()
        training.backward(rows[:1])
        gradient = flat(p.grad for p in training.dual.parameters)
        training.optim.step()
        rate = training.optim.param_groups[0]["lr"]
        assert isinstance(rate, float)
        assert 0 < rate <= 1 / problem.lam * (1 + 1e-12)
        torch.testing.assert_close(training.weights(), before - rate * gradient)


def test_several_param_groups_are_one_problem():
    problem = chain(2)
    one = problem.copy().train()
    several = problem.copy()
    dual = DualState.for_head(several.head, several.n, several.lam)
    groups = [{"params": [p]} for p in reversed(list(several.head.parameters()))]
    optim, loss = BCFW(groups, dual), BlockGap(dual)
    for rows in ([0], [1, 2], [3], [0, 4]):
        one.step(rows)
        batch = several.batch(rows)
        optim.zero_grad()
        loss(several.head(batch.x, batch.lengths), batch.y, batch.index).backward()
        optim.step()
    assert torch.equal(flat(several.head.parameters()), flat(one.head.parameters()))
    assert {group["lr"] for group in optim.param_groups} == {one.optim.param_groups[0]["lr"]}
    assert len(optim.param_groups) == len(groups)


def test_a_closure_computes_the_loss():
    problem = chain(2)
    plain, closed = problem.copy().train(), problem.copy().train()
    for rows in ([0], [1, 2], [3]):
        expected = plain.step(rows)

        def closure(rows=rows):
            closed.optim.zero_grad()
            return closed.backward(rows)

        assert closed.optim.step(closure) == expected
    assert_same(closed.snapshot(), plain.snapshot())
    assert plain.optim.zero_grad() is None
    plain.backward([0])
    assert plain.optim.step() is None


def test_weights_that_are_not_zero_are_set_to_zero_with_a_warning():
    problem = multiclass(0)
    torch.nn.init.constant_(problem.head.weight, 2.0)
    with pytest.warns(UserWarning, match="weights were not zero"):
        training = problem.train()
    assert training.weights().count_nonzero() == 0
    training.step([0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BCFW(problem.head.parameters(), training.dual)  # the weights are the dual's now
    assert training.weights().count_nonzero() > 0
