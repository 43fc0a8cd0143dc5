"""What users call, in several processes: solve, bounds, averages, orders, loaders, paths and grids."""

from __future__ import annotations

import math

import pytest
import torch
from cases.problem_data import Items
from cases.problems import PROBLEMS, assert_same, flat
from cases.processes import in_processes
from torch.utils.data import DataLoader

from torchssvm import (
    BCFW,
    BlockGap,
    ByLength,
    DualState,
    GapBatchSampler,
    Permutation,
    Relative,
    Solver,
    Weights,
    certify,
    choose_lam,
    in_order,
    regularization_path,
    solve,
)
from torchssvm.path import Heuristic
from torchssvm.path.run import start_at_largest_lam
from torchssvm.solvers import UniformAverage
from torchssvm.steps import LargestGap

pytestmark = pytest.mark.slow


def overlap(brackets):
    return max(low for low, _ in brackets) <= min(high for _, high in brackets)


def same_everywhere(job, sizes=(1, 3)):
    """What the first process returns, for each number of them; all return the same bits."""
    results = []
    for size in sizes:
        first, *others = in_processes(size, job)
        for other in others:
            assert_same(other, first)
        results.append(first)
    return results


RUNS = {
    "compiled": {"solver": Solver(round_visits=4)},
    "weights": {"solver": Solver(compiled=False, storage=Weights())},
    "bounds": {"solver": Solver(bounds={"transition": (0.0, None), "emission": (-0.4, 0.5)})},
    "by length": {
        "solver": Solver(compiled=False, order=ByLength(PROBLEMS["chain"](5, n=17, longest=4).lengths), batch_size=2)
    },
    "largest gap": {"solver": Solver(compiled=False, order=LargestGap(), batch_size=2)},
    "permutations": {"solver": Solver(compiled=False, order=Permutation(), batch_size=2)},
}


@pytest.mark.parametrize("name", RUNS)
def test_solve(name):
    problem = PROBLEMS["chain"](5, n=17, states=3, features=3, longest=4, lam=0.3)

    def job(rank):
        head, checks = problem.copy().head, []
        proof = solve(
            head,
            Items(problem),
            0.3,
            tolerance=0.02,
            max_passes=200,
            progress=False,
            on_check=checks.append,
            **RUNS[name],
        )
        assert len(checks) >= 1
        return proof.primal, proof.dual, proof.oracle_calls, flat(head.parameters())

    brackets = [(dual, primal) for primal, dual, *_ in same_everywhere(job)]
    assert overlap(brackets)
    assert all(primal - dual <= 0.04 for dual, primal in brackets)


def test_averages_are_certified():
    problem = PROBLEMS["chain"](5, n=17, states=3, features=3, longest=4, lam=0.3)
    items = Items(problem)

    def job(rank):
        training = problem.copy().train()
        average = UniformAverage.following(training.dual)
        sampler = GapBatchSampler(training.dual, batch_size=2)
        for _ in range(2):
            for rows in sampler:
                training.step(rows)
        with average.apply():
            proof = certify(training.head, training.dual, in_order(items), refresh=False)
        assert average.count == training.dual.steps
        return proof.primal, proof.dual, flat(average.weights)

    result = same_everywhere(job)
    assert overlap([(dual, primal) for primal, dual, _ in result])
    assert all(primal >= dual > 0.0 for primal, dual, _ in result)


@pytest.mark.parametrize("order", [None, Permutation()])
def test_loaders_read_own_examples_alone(order):
    problem = PROBLEMS["multiclass"](5, n=17, lam=0.3)
    read = set()

    class Watched(Items):
        def __getitem__(self, i):
            read.add(i)
            return i

    items = Watched(problem)

    def job(rank):
        read.clear()
        head = problem.copy().head
        dual = DualState.for_head(head, 17, 0.3)
        loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
        sampler = GapBatchSampler(dual, batch_size=2, order=order)
        loader = DataLoader(items, batch_sampler=sampler, collate_fn=items.collate)
        batches = []
        for _ in range(3):
            for batch in loader:
                optim.zero_grad()
                loss(head(batch.x), batch.y, batch.index).backward()
                optim.step()
                batches.append(len(batch.index))
        proof = certify(head, dual, in_order(items))
        if order is not None:
            assert read == set(dual.own)
        assert read <= set(dual.own)
        return len(batches), dual.steps, dual.passes, proof.gap

    (steps, taken, passes, gap), *others = in_processes(3, job)
    assert steps == taken == 9  # three epochs of ceil(6 / 2) batches
    assert passes >= 3.0 * (order is not None)
    assert others == [(steps, taken, passes, gap)] * 2


@pytest.mark.parametrize("rule", [None, Heuristic()])
def test_the_path_covers_every_lambda(rule):
    problem = PROBLEMS["multiclass"](5, n=9, lam=0.3)

    def job(rank):
        solver = Solver(batch_size=2, round_visits=4)
        path = regularization_path(
            problem.copy().head, Items(problem), epsilon=0.3, lam_min=0.2, rule=rule, solver=solver, progress=False
        )
        return [(point.lam, point.gap, point.primal, point.passes) for point in path.points], path.lowest

    result = same_everywhere(job)
    largest = [points[0][0] for points, _ in result]
    assert largest == pytest.approx([largest[0]] * 2, rel=1e-9)
    for points, lowest in result:
        assert lowest <= 0.2
        assert all(gap <= 0.3 for _, gap, *_ in points)


def test_the_path_starts_where_one_process_starts():
    problem = PROBLEMS["chain"](5, n=17, states=3, features=3, longest=3, lam=0.3)

    def job(rank):
        training = problem.copy().train()
        bound = start_at_largest_lam(training.head, training.dual, Items(problem), tolerance=Relative(0.05))
        dual = training.dual
        proof = certify(training.head, dual, in_order(Items(problem)))
        assert proof.gap <= bound * (1.0 + 1e-9)
        assert dual.gap_estimate >= proof.gap - 1e-9
        return dual.lam, bound, proof.primal, proof.dual, flat(dual.parameters)

    alone, *others = same_everywhere(job)
    for other in others:
        for mine, its in zip(alone, other, strict=True):
            torch.testing.assert_close(torch.as_tensor(its), torch.as_tensor(mine), rtol=1e-6, atol=1e-9)


def test_all_follow_the_score_of_the_first():
    problem = PROBLEMS["multiclass"](5, n=9, lam=0.3)

    def job(rank):
        scores = iter((2.0, 1.0, 0.0) if rank == 0 else (1.0, 2.0, 3.0))
        chosen = choose_lam(
            problem.copy().head,
            Items(problem),
            Items(PROBLEMS["multiclass"](6, n=7)),
            [3.0, 2.0, 1.0],
            tolerance=Relative(0.5),
            score=lambda head: next(scores),
            patience=1,
            solver=Solver(compiled=False),
            progress=False,
        )
        return [(point.lam, point.score) for point in chosen.points], chosen.best.lam

    assert in_processes(2, job) == [([(3.0, 2.0), (2.0, 1.0)], 3.0)] * 2


def test_the_choice_of_lambda():
    problem = PROBLEMS["multiclass"](5, n=9, lam=0.3)
    held_out = Items(PROBLEMS["multiclass"](6, n=7))

    def job(rank):
        head, solver = problem.copy().head, Solver(batch_size=4, round_visits=8)
        chosen = choose_lam(head, Items(problem), held_out, tolerance=Relative(0.3), solver=solver, progress=False)
        return [
            [(point.lam, point.certificate.primal, point.certificate.dual, point.score) for point in chosen.points],
            flat(head.parameters()),
        ]

    result = same_everywhere(job, (1, 2))
    one, two = ({lam: (dual, primal) for lam, primal, dual, _ in each[0]} for each in result)
    assert len(one.keys() & two.keys()) >= 5  # how far the choice goes on beyond its guess depends on the scores
    assert all(overlap([one[lam], two[lam]]) for lam in one.keys() & two.keys())
    assert all(math.isfinite(score) for *_, score in result[1][0])
