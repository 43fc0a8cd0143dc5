"""What every average of the iterates must do: inherit ``AverageTestCase``, say its shares, get the tests."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases.problems import (
    PROBLEMS,
    Problem,
    Training,
    assert_same,
    chain,
    examples,
    flat,
    reference,
    rng,
    through_a_file,
)
from torchssvm import Labelings, MeanParts, Weights, certify
from torchssvm.core.batch import to_device
from torchssvm.solvers import Average, primal
from torchssvm.solvers.certificate import weights_kept

SEEDS = st.integers(0, 2**31 - 1)
SOLVED = st.integers(0, 59)  # problems that the QP solver of the reference solves to the last digits
KINDS = st.sampled_from(sorted(PROBLEMS))
STORAGES = st.sampled_from([MeanParts, Weights, Labelings])


def schedule(problem: Problem, seed: int, steps: int) -> list[list[int]]:
    random = rng(seed)
    sizes = torch.randint(1, 3, (steps,), generator=random).tolist()
    return [torch.randint(0, problem.n, (size,), generator=random).tolist() for size in sizes]


class Recorder:
    """Every iterate of a training, kept in full."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.weights: list[Tensor] = []

    def step(self, rows) -> None:
        self.training.step(rows)
        self.weights.append(self.training.weights().double())


def mean(shares: list[float], values: list) -> Tensor:
    """``sum_t shares_t values_t`` over the last values, one for each share."""
    return sum(share * value for share, value in zip(shares, values, strict=True))


class AverageTestCase(ABC):
    kind: type[Average]

    @abstractmethod
    def shares(self, count: int) -> list[float]:
        """The share of each of ``count`` iterates in their average, written down without a recursion."""

    def followed(self, problem: Problem, steps: int = 0, seed: int = 0) -> tuple[Problem, Training, Average]:
        """A training after so many steps, which its average has followed."""
        training = problem.train()
        average = self.kind.following(training.dual)
        return problem, training.run(schedule(problem, seed, steps)), average

    @pytest.mark.every_variant
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_the_average_is_the_explicit_sum(self, dtype):
        random = rng(0)
        params = [torch.zeros(3, 2, dtype=dtype), torch.zeros(4, dtype=dtype)]
        average = self.kind(params)
        iterates = []
        for count in range(1, 34):
            for p in params:
                p.copy_(torch.randn(p.shape, generator=random, dtype=dtype))
            iterates.append(flat(params).double())
            average.update()
            shares = self.shares(count)
            assert sum(shares) == pytest.approx(1.0)
            assert average.count == count
            assert [(w.shape, w.dtype) for w in average.weights] == [(p.shape, torch.float64) for p in params]
            torch.testing.assert_close(flat(average.weights), mean(shares, iterates), rtol=1e-13, atol=1e-13)
            assert 0.0 < average.coefficient(count) <= 1.0

    @examples(6)
    @given(seed=SEEDS, kind=KINDS, storage=STORAGES, adjoint=st.booleans(), dtype=st.sampled_from(["32", "64"]))
    def test_it_follows_the_dual(self, seed, kind, storage, adjoint, dtype):
        problem = PROBLEMS[kind](seed, adjoint=adjoint, dtype=getattr(torch, f"float{dtype}"))
        training = problem.train(storage=storage())
        average, record = self.kind.following(training.dual), Recorder(training)
        for count, rows in enumerate(schedule(problem, seed, 20), 1):
            record.step(rows)
            shares = self.shares(count)
            assert average.count == count == training.dual.steps
            torch.testing.assert_close(flat(average.weights), mean(shares, record.weights), rtol=1e-12, atol=1e-13)

    def test_discarded_and_refused_steps_are_not_averaged(self):
        problem = chain(1)
        training = problem.train()
        average, record = self.kind.following(training.dual), Recorder(training)
        for rows in schedule(problem, 1, 9):
            record.step(rows)
            training.backward([0])
            training.optim.zero_grad()  # told of too
            training.backward([0])
            torch.nn.utils.clip_grad_norm_(training.dual.parameters, 1e-4)
            with pytest.raises(RuntimeError, match="gradient differs"):
                training.optim.step()
        assert average.count == 9
        torch.testing.assert_close(flat(average.weights), mean(self.shares(9), record.weights))

    @examples(8)
    @given(seed=SOLVED, kind=KINDS, storage=STORAGES, adjoint=st.booleans(), steps=st.integers(1, 40))
    def test_certificates_bracket_the_optimum_and_leave_the_run_alone(self, seed, kind, storage, adjoint, steps):
        problem = PROBLEMS[kind](seed, adjoint=adjoint)
        truth = reference(problem)
        optimum = truth.optimum()
        training = problem.train(storage=storage())
        average, record = self.kind.following(training.dual), Recorder(training)
        for rows in schedule(problem, seed, steps):
            record.step(rows)
        before = training.snapshot()
        run = certify(training.head, training.dual, problem.everything(2), refresh=False)
        with average.apply():
            certificate = certify(training.head, training.dual, problem.everything(2), refresh=False)
        assert certificate.dual - 1e-9 <= optimum <= certificate.primal + 1e-9
        assert certificate.primal == pytest.approx(
            truth.primal(mean(self.shares(steps), record.weights).numpy()), abs=1e-11
        )
        assert certificate.dual == pytest.approx(run.dual, abs=1e-11)
        assert certificate.gap == certificate.primal - certificate.dual
        assert certificate.exact
        assert torch.equal(training.weights(), flat(before["weights"]))
        assert certificate.oracle_calls == run.oracle_calls + problem.n == training.dual.oracle_calls
        training.step([0])

    def test_a_certificate_changes_oracle_calls_alone(self):
        problem = chain(5, dtype=torch.float32)
        training = problem.train()
        average = self.kind.following(training.dual)
        training.run(schedule(problem, 5, 18))
        before = training.snapshot()
        with average.apply():
            certify(training.head, training.dual, problem.everything(2), refresh=False)
        before["dual"]["oracle_calls"] += problem.n
        assert_same(training.snapshot(), before)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize(("dtype", "distance"), [(torch.float64, 8e-6), (torch.float32, 5e-3)])
    def test_an_average_close_to_the_weights_is_none_of_the_run(self, dtype, distance):
        problem, training, _ = self.followed(chain(5, dtype=dtype), 6)
        certify(training.head, training.dual, problem.everything(2), refresh=False)
        average = self.kind(training.dual.parameters)
        before = training.snapshot()
        with weights_kept(training.dual.parameters), torch.no_grad():
            for p in training.dual.parameters:
                p += distance * p.flip(0)
            average.update()
        with average.apply():
            certificate = certify(training.head, training.dual, problem.everything(2), refresh=False)
        assert certificate.drift > 0.1 * distance
        before["dual"]["oracle_calls"] += problem.n
        assert_same(training.snapshot(), before)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_apply_swaps_and_restores_to_the_bit(self, dtype):
        problem = chain(6, dtype=dtype)
        training = problem.train()
        average, other = self.kind.following(training.dual), self.kind.following(training.dual)
        training.run(schedule(problem, 0, 7))
        before = training.snapshot()
        mine = flat(average.weights).to(dtype)
        assert not torch.equal(mine, training.weights())
        with average.apply():
            assert torch.equal(training.weights(), mine)
            with other.apply():
                assert torch.equal(training.weights(), mine)
            result = primal(training.head, problem.structure, problem.everything(), problem.lam)
            inside = certify(training.head, training.dual, problem.everything(), refresh=False)
        assert result.value == pytest.approx(inside.primal, abs=1e-12)
        assert torch.equal(training.weights(), flat(before["weights"]))
        with pytest.raises(KeyboardInterrupt), average.apply():
            raise KeyboardInterrupt
        assert torch.equal(training.weights(), flat(before["weights"]))
        training.step([0])
        assert average.count == 8

    def test_copying_the_average_ends_training(self):
        _, training, average = self.followed(chain(6, lam=0.05), 7)
        average.copy_to_parameters()
        assert torch.equal(training.weights(), flat(average.weights))
        with pytest.raises(RuntimeError, match="weights"):
            training.step([1])

    @pytest.mark.every_variant
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("stop", [1, 7, 8])
    def test_a_resumed_average_is_the_uninterrupted_one_to_the_bit(self, stop, dtype):
        class Run:
            def __init__(run):
                run.problem = chain(11, n=9, lam=0.05, dtype=dtype)
                run.training = run.problem.train()
                run.average = self.kind.following(run.training.dual)

            def forward(run, first, last):
                for count, rows in list(enumerate(schedule(run.problem, 7, 24)))[first:last]:
                    run.training.step(rows)
                    if count % 4 == 2:  # a refresh that the next step takes up
                        certify(run.training.head, run.training.dual, run.problem.everything())
                return run

            def state(run):
                return {"optim": run.training.optim.state_dict(), "average": run.average.state_dict()}

        whole, half = Run().forward(0, 24), Run().forward(0, stop)
        state = through_a_file(half.state())
        frozen = copy.deepcopy(state)
        resumed = Run()
        resumed.training.optim.load_state_dict(state["optim"])
        resumed.average.load_state_dict(state["average"])
        assert_same(resumed.state(), half.state())
        resumed.forward(stop, 24)
        assert_same(resumed.state(), whole.state())
        assert whole.average.count == 24
        assert_same(state, frozen)

    def test_weights_that_are_not_finite_are_refused(self):
        params = [torch.ones(3), torch.ones(2)]
        average = self.kind(params)
        average.update()
        before = average.state_dict()
        params[1][0] = torch.inf
        with pytest.raises(ValueError, match="not finite"):
            average.update()
        assert_same(average.state_dict(), before)

    def test_devices(self, device):
        """Rounding may break ties otherwise than on the CPU: each average is compared with iterates of its device."""
        here, there = chain(5), chain(5).to(device)
        training = there.train()
        average, record = self.kind.following(training.dual), Recorder(training)
        for rows in schedule(here, 0, 9):
            record.step(to_device(here.batch(rows), device))
        shares = self.shares(9)
        torch.testing.assert_close(flat(average.weights), mean(shares, record.weights), rtol=1e-12, atol=1e-13)
        twin = here.train()
        twin.optim.load_state_dict(through_a_file(training.optim.state_dict()))
        moved = self.kind.following(twin.dual)
        moved.load_state_dict(through_a_file(average.state_dict()))
        assert torch.equal(flat(moved.weights), flat(average.weights).cpu())
