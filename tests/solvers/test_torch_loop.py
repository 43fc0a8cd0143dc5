from __future__ import annotations

import pytest
import torch
from cases.problem_data import Items
from cases.problems import PROBLEMS, Problem, chain, multiclass, reference

from torchssvm import BCFW, BlockGap, DualState, Permutation, Solver, TorchLoop, Uniform, in_order, make_trainer
from torchssvm.solvers import Certificate, EveryPasses, WhenEstimated


def solve(head, loss, dataset, *, loop=None, **limits) -> Certificate:
    return TorchLoop(head, loss, dataset, **(loop or {})).solve(**limits)


def block_gap(problem: Problem) -> BlockGap:
    return BlockGap(DualState.for_head(problem.head, problem.n, problem.lam))


@pytest.mark.parametrize("order", [None, Uniform(), Permutation()])
@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_the_gap_is_reached_and_proved(kind, order):
    problem = PROBLEMS[kind](1, lam=0.3)
    seen: list[Certificate] = []
    loss = block_gap(problem)
    loop = {"batch_size": 2, "order": order}
    proof = solve(problem.head, loss, Items(problem), tolerance=0.05, on_check=seen.append, loop=loop)
    assert proof is seen[-1]
    assert proof.gap <= 0.05
    assert all(certificate.gap > 0.05 for certificate in seen[:-1])
    truth = reference(problem)
    optimum = truth.optimum()
    weights = torch.nn.utils.parameters_to_vector(problem.head.parameters()).detach()
    assert truth.primal(weights) == pytest.approx(proof.primal, abs=1e-9)
    assert proof.dual - 1e-6 <= optimum <= proof.primal + 1e-6


def test_nothing_is_left_behind():
    problem = chain(2)
    loss = block_gap(problem)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    solve(problem.head, loss, Items(problem), tolerance=0.05, loop={"batch_size": 2})
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in problem.head.parameters())
    assert not list(loss.dual.mailbox._observers)
    assert not loss.dual.mailbox.waiting


def test_a_dual_that_is_good_enough_already_costs_one_pass():
    problem = multiclass(5)
    loss = block_gap(problem)
    first = solve(problem.head, loss, Items(problem), tolerance=0.01)
    steps = loss.dual.steps
    second = solve(problem.head, loss, Items(problem), tolerance=0.01)
    assert loss.dual.steps == steps
    assert second.passes == pytest.approx(first.passes + 1)


def test_every_passes():
    problem = multiclass(6, n=8, lam=1e-5)
    seen: list[float] = []
    limits = {"tolerance": 1e-9, "max_passes": 16, "schedule": EveryPasses(3)}
    told = {"on_check": lambda c: seen.append(c.passes), "loop": {"batch_size": 4}}
    solve(problem.head, block_gap(problem), Items(problem), **limits, **told)
    # the count begins with the first step; an exact pass counts too
    assert seen[:3] == [4.5, 8.5, 12.5]


def test_when_estimated():
    dual = multiclass(7).train().dual
    dual.gap_estimates.fill_(0.01)
    schedule = WhenEstimated(passes=4, at_least=0.5)
    assert not schedule.due(dual, 1.0)
    dual.oracle_calls += 2
    assert not schedule.due(dual, 1.0)
    dual.oracle_calls += 1
    assert schedule.due(dual, 1.0)
    assert not schedule.due(dual, 0.05)
    dual.oracle_calls += 4 * dual.num_examples
    assert schedule.due(dual, 0.05)


def test_estimates_save_passes():
    def passes(schedule) -> float:
        problem = multiclass(8, n=20, lam=0.5)
        return solve(problem.head, block_gap(problem), Items(problem), tolerance=0.05, schedule=schedule).passes

    assert passes(WhenEstimated()) < passes(EveryPasses(10))


def test_all_gaps_zero_is_the_end():
    problem = multiclass(9, cost=torch.zeros(3, 3))
    certificate = solve(problem.head, block_gap(problem), Items(problem), tolerance=0.0, max_passes=1000)
    assert certificate.gap == 0.0
    assert certificate.passes < 20


@pytest.mark.slow
def test_steps_that_call_no_oracle_are_not_endless():
    class FromCache(BCFW):
        """Counts no oracle call after the first pass, as if everything came from a cache."""

        def step(self, closure=None):
            calls = self.dual.oracle_calls
            result = super().step(closure)
            if calls >= self.dual.num_examples:
                self.dual.cache_hits += self.dual.oracle_calls - calls
                self.dual.oracle_calls = calls
            return result

    problem = multiclass(10, lam=1e-3)
    loss = block_gap(problem)
    optimizer = FromCache(problem.head.parameters(), loss.dual)
    seen: list[Certificate] = []
    limits, loop = {"tolerance": 1e-12, "max_passes": 3.5}, {"batch_size": 3, "optimizer": optimizer}
    certificate = solve(problem.head, loss, Items(problem), **limits, on_check=seen.append, loop=loop)
    assert certificate.passes == 4.0
    assert len(seen) == 3
    assert loss.dual.steps == 2 + 3 * 200


def test_a_dataset_may_fetch_whole_batches():
    class Batched(Items):
        def __getitems__(self, index):
            assert isinstance(index, list)
            return self.problem.batch(index)

        def __getitem__(self, i):
            raise AssertionError("not one by one")

        def collate(self, batch):
            return batch

    problem = chain(11)
    certificate = solve(problem.head, block_gap(problem), Batched(problem), tolerance=0.05)
    assert certificate.gap <= 0.05
    assert [batch.index.tolist() for batch in in_order(Batched(problem), batch_size=2)] == [[0, 1], [2, 3], [4]]


def test_steps_say_how_many_blocks_they_visited():
    problem = multiclass(12, n=6)
    loop = TorchLoop(problem.head, block_gap(problem), Items(problem), batch_size=4, order=Permutation())
    assert [loop.step() for _ in range(4)] == [4, 2, 4, 2]


def test_an_approximate_oracle_is_certified_less_and_less_often():
    """Its gap may stay above the tolerance, whatever the steps do."""
    dual = multiclass(7).train().dual
    dual.gap_estimates.fill_(0.0)
    schedule = WhenEstimated(passes=4, at_least=0.5)
    schedule.due(dual, 1.0)
    waits = []
    for exact in (False, False, False, False, True, True):
        start = dual.passes
        while not schedule.due(dual, 1.0):
            dual.oracle_calls += 1
        waits.append(dual.passes - start)
        numbers = dict.fromkeys(("primal", "dual", "gap", "drift", "seconds", "lam"), 1.0)
        schedule.after(
            Certificate(exact=exact, oracle_calls=0, passes=dual.passes, num_examples=dual.num_examples, **numbers)
        )
    assert waits == pytest.approx([0.5, 1.0, 2.0, 4.0, 4.0, 0.5])


def test_the_schedule_of_the_options_holds_for_compiled_trainers():
    problem = chain(1, n=8, lam=0.3)
    trainer = make_trainer(problem.head, Items(problem), 0.3, solver=Solver(schedule=EveryPasses(3)))
    seen: list[Certificate] = []
    trainer.solve(1e-6, max_passes=20, on_check=seen.append)
    assert seen[0].passes < 6
    assert len(seen) >= 4
