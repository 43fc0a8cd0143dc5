"""What one process refuses, all refuse before anything changes; none hangs where another has ended."""

from __future__ import annotations

import copy
import os
import time

import pytest
import torch
from cases.problem_data import Items
from cases.problems import PROBLEMS, assert_same
from cases.processes import ENDED, in_processes, refused

from torchssvm import GDMM, BlockGap, CacheOracle, CompiledBCFW, DualState, Labelings, Pairwise, TorchLoop, certify
from torchssvm.core.ranks import RankError
from torchssvm.dual import state as dual_state
from torchssvm.solvers.kernel import KernelSSVM

pytestmark = pytest.mark.slow


def kept(dual):
    return copy.deepcopy((dual.own_state(), dual.value(), dual.gap_estimate, dual.held_norm))


def nan_features(training, rank, rows):
    batch = training.problem.batch(rows)
    training.optim.zero_grad()
    training.step(batch.replace(x=batch.x * (torch.nan if rank == 1 else 1.0)))


def clipped(training, rank, rows):
    training.optim.zero_grad()
    training.backward(rows)
    if rank == 1:
        torch.nn.utils.clip_grad_norm_(training.head.parameters(), 1e-3)
    training.optim.step()


def no_proposal(training, rank, rows):
    training.optim.zero_grad()
    if rank != 1:
        training.backward(rows)
    training.optim.step()


def foreign_example(training, rank, rows):
    training.step([0] if rank == 1 else rows)


def lost_examples(training, rank, rows):
    batches = training.problem.everything(1)
    certify(training.head, training.dual, batches[:6] if rank == 1 else batches)


def changed_target(training, rank, rows):
    problem = training.problem
    certify(training.head, training.dual, [b.replace(y=(b.y + (rank == 1)) % 3) for b in problem.everything(1)])


ERRORS = {
    nan_features: ("ValueError", "not finite"),
    clipped: ("RuntimeError", "gradient"),
    no_proposal: ("RuntimeError", "proposal"),
    foreign_example: ("ValueError", "index"),
    lost_examples: ("ValueError", "left out"),
    changed_target: ("RuntimeError", "other targets"),
}


def test_an_error_in_one_process_is_one_in_all_and_training_goes_on():
    problem = PROBLEMS["multiclass"](3, n=15, lam=0.05)

    def train(rank):
        training, results = problem.copy().train(), []
        examples = training.dual.own
        for place, error in enumerate(ERRORS):
            training.step([examples[place % len(examples)]])
            training.step([examples[0]])
            before = kept(training.dual)
            results.append(refused(lambda error=error: error(training, rank, [examples[1]])))
            training.optim.zero_grad()
            after = kept(training.dual)
            for state in (before[0], after[0]):
                del state["seal"], state["visits"]
            assert_same(after, before)
        training.step([examples[2]])
        return results, training.dual.value()

    problem.copy().train().step([0])
    every = in_processes(3, train, timeout=10.0)
    for place, (kind, text) in enumerate(ERRORS.values()):
        raised, told = every[1][0][place]
        assert (raised, text in told) == (kind, True), told
        for rank in (0, 2):
            raised, told = every[rank][0][place]
            assert raised == "RankError"
            assert f"rank 1 of 3 refuses, so that rank {rank} does too" in told
            assert text in told or len(told) > 500
    assert len({value for _, value in every}) == 1


def test_a_compiled_round_that_one_process_refuses_is_taken_back():
    problem = PROBLEMS["chain"](3, n=15, lam=0.05)

    def train(rank):
        training = problem.copy().train(storage=Labelings(capacity=2))
        rules = {"direction": Pairwise(), "oracle": CacheOracle()}
        loop = CompiledBCFW(training.head, training.dual, problem.everything(1), **rules, round_visits=3)
        loop.step(30)
        proof = loop.certify()
        loop.step(6)
        dual_state._LARGE, dual_state._PER_BLOCK = 10, 0  # the norm is updated, not computed
        before = kept(loop.dual)
        visit = loop._visit

        def wrong(*args, **options):
            visit(*args, **options)
            raise RuntimeError("an error after the visits")

        if rank == 1:
            loop._visit = wrong
        result = refused(lambda: loop.step(6))
        loop._visit = visit
        for state in (before[0], (after := kept(loop.dual))[0]):
            for name in ("seal", "storage"):  # the blocks hold their mass in other slots
                del state[name]
        assert_same(after, before)
        again = loop.certify()
        assert again.dual == pytest.approx(before[1], rel=1e-12)
        assert again.drift < 1e-12
        loop.step(6)
        return result, loop.dual.value() >= before[1] > proof.dual

    (first, one), (second, two) = in_processes(2, train, timeout=10.0)
    assert one
    assert two
    assert first[0] == "RankError"
    assert "an error after the visits" in first[1]
    assert second == ("RuntimeError", "an error after the visits")


def test_a_process_that_ends_does_not_leave_the_others_hanging():
    problem = PROBLEMS["multiclass"](3, n=15, lam=0.05)

    def train(rank):
        training = problem.copy().train()
        examples = training.dual.own
        training.step([examples[0]])
        if rank == 1:
            os._exit(9)
        before = kept(training.dual)[0]
        start = time.monotonic()
        with pytest.raises(RankError, match=r"cannot reach the others.*Start again from the last checkpoint"):
            training.step([examples[1]])
        training.optim.zero_grad()
        after = kept(training.dual)[0]
        for state in (before, after):
            del state["seal"], state["visits"]
        assert_same(after, before)
        return time.monotonic() - start

    first, second, third = in_processes(3, train, timeout=2.0)
    assert second == ENDED
    assert max(first, third) < 15.0


def test_what_must_be_the_same_is_compared():
    problem = PROBLEMS["multiclass"](3, n=15, lam=0.05)

    def make(rank):
        head = problem.head
        dual = DualState.for_head(head, 15, 0.1)
        return [
            refused(lambda: DualState.for_head(head, 15 - rank, 0.1)),
            refused(lambda: DualState.for_head(head, 15, 0.1 + rank)),
            refused(lambda: DualState.for_head(head, 15, 0.1, storage=Labelings() if rank else None)),
            refused(lambda: CompiledBCFW(head, dual, problem.everything(1), round_visits=1 + rank)),
            refused(lambda: DualState.for_head(head, 0 if rank else 15, 0.1)),
            refused(lambda: DualState.for_head(head, 15, 0.1, storage="other" if rank else None)),
            refused(lambda: DualState.for_head(head, 1, 0.1)),
        ]

    first, second = in_processes(2, make)
    for place, name in enumerate(("num_examples", "lam", "storage", "round_visits")):
        assert first[place] == second[place]
        assert first[place][0] == "ValueError"
        assert f"{name} must be the same in all processes" in first[place][1]
    assert (first[4][0], second[4][0]) == ("RankError", "ValueError")
    assert (first[5][0], second[5][0]) == ("RankError", "TypeError")
    assert "num_examples=1" in first[6][1]


def test_loops_tell_errors_of_one_process():
    problem = PROBLEMS["multiclass"](3, n=15, lam=0.05)

    def train(rank):
        head, dual, batches = (made := problem.copy().train()).head, made.dual, problem.everything(1)
        loop = TorchLoop(head, BlockGap(dual), Items(problem), optimizer=made.optim)
        loop.step()
        certify(head, dual, batches)
        other = [b.replace(y=(b.y + (rank == 1)) % 3) for b in batches]
        before = kept(dual)[0]
        errors = [refused(lambda: CompiledBCFW(head, dual, other))]

        def wrong(gradient):
            raise RuntimeError("in the backward pass")

        hook = dual.parameters[0].register_hook(wrong if rank == 1 else lambda gradient: gradient)
        errors.append(refused(loop.step))
        hook.remove()
        for state in (before, after := kept(dual)[0]):
            del state["seal"], state["visits"]
        assert_same(after, before)
        loop.step()
        return errors

    first, second = in_processes(2, train, timeout=10.0)
    for place, text in enumerate(("other targets", "in the backward pass")):
        assert second[place][0] == "RuntimeError"
        assert first[place][0] == "RankError"
        assert all(text in errors[place][1] for errors in (first, second))


def test_what_runs_in_one_process_says_so():
    problem = PROBLEMS["multiclass"](3, n=15, lam=0.05)

    def make(rank):
        batches, head, options = problem.everything(), problem.head, {"num_examples": 15, "lam": 0.1}
        return [
            refused(lambda: GDMM(head, batches, **options)),
            refused(lambda: KernelSSVM(head, problem.x, problem.y, lam=0.1)),
        ]

    for errors in in_processes(2, make):
        for kind, text in errors:
            assert kind == "ValueError", text
            assert "world size 2" in text
