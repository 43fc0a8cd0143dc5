"""The compiled loop in several processes: each visits its examples, and the blocks are blended with the old ones."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from cases.compiled_kinds import ARCS, KINDS, Weighing, lists
from cases.problems import PROBLEMS, assert_same, flat
from cases.processes import in_processes

from torchssvm import CacheOracle, CompiledBCFW, Corrective, DualState, FrankWolfe, Labelings, Pairwise
from torchssvm.dual import state as dual_state
from torchssvm.steps import MaxOracle

pytestmark = pytest.mark.slow

KINDS = {
    "chain": lambda: PROBLEMS["chain"](5, n=14, states=3, features=5, longest=4, lam=0.02),
    "chain, weights": lambda: Weighing(PROBLEMS["chain"](5, n=14, states=3, features=5, longest=4, lam=0.02)),
    "chain, lists": KINDS["chain, sparse, nine states"],
    "multiclass": lambda: PROBLEMS["multiclass"](4, n=14, classes=5, lam=0.02),
    "arcs": ARCS["arcs, projective"],
    "many weights": lists,
}
RULES = [(direction, oracle) for direction in (FrankWolfe, Pairwise, Corrective) for oracle in (MaxOracle, CacheOracle)]


def make(problem, storage=None, direction=None, oracle=None, **options):
    problem = problem.copy()
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=storage)
    batches = problem.everything(1)
    return CompiledBCFW(problem.head, dual, batches, direction=direction, oracle=oracle, **options)


def rules():
    yield None, FrankWolfe(), MaxOracle()
    for direction, oracle in RULES:
        yield Labelings(capacity=2), direction(), oracle()


def check_blocks(loop):
    """Every block is a distribution."""
    storage = loop.dual.storage
    if isinstance(storage, Labelings):
        assert bool((storage.sets.mass >= 0.0).all())
        assert bool((storage.rest_mass >= -1e-12).all())
        torch.testing.assert_close(
            storage.sets.mass.sum(1) + storage.rest_mass, torch.ones(len(loop.dual.own), dtype=torch.float64)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_keep_blocks_losses_and_weights_together(kind):
    problem = KINDS[kind]()

    def train(rank, size):
        if kind == "many weights":
            dual_state._LARGE = 10  # in this process alone: directions are rows
        results = []
        for storage, direction, oracle in rules():
            loop = make(problem, storage, direction, oracle, **({"round_visits": 3} if size > 1 else {}))
            values, proofs, evicted = [0.0], [], False
            for _ in range(3):
                assert loop.step(8 * size) > 0
                values.append(loop.dual.value())
                check_blocks(loop)
                estimate = loop.dual.gap_estimate
                proofs.append(loop.certify())
                assert math.isclose(proofs[-1].dual, values[-1], rel_tol=1e-11)
                assert proofs[-1].drift < 1e-11
                values.append(loop.dual.value())
            if isinstance(storage, Labelings):
                evicted = bool(storage.mixed.any())
            results.append(
                (values, [(p.primal, p.dual) for p in proofs], flat(loop.dual.parameters), estimate, evicted)
            )
        return results

    if kind != "many weights":
        train(0, 1)  # loads the kernels
    first, *others = in_processes(2, lambda rank: train(rank, 2))
    for values, proofs, *_ in first:
        assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))
        assert max(low for _, low in proofs) <= min(high for high, _ in proofs) + 1e-12
        assert values[-1] > values[1] > 0.0
    assert any(evicted for *_, evicted in first) or kind in ("arcs",)
    for other in others:
        for mine, its in zip(first, other, strict=True):
            assert_same(mine[:4], its[:4])


@pytest.mark.parametrize("kind", ["chain", "many weights"])
def test_a_process_without_gaps_waits_for_the_others(kind):
    problem = KINDS[kind]()

    def train(rank):
        dual_state._LARGE = 10 if kind == "many weights" else dual_state._LARGE
        loop = make(problem, round_visits=2)
        loop.step(problem.n + 1)
        value = loop.dual.value()
        if rank == 1:
            loop.dual.gap_estimates.zero_()
        assert loop.step(4) == 2
        assert loop.certify().drift < 1e-11
        return loop.dual.value() > value

    assert in_processes(2, train) == [True, True]


def test_several_processes_solve_and_repeat_the_same_bits():
    problem = KINDS["chain"]()
    problem.lam = 0.3

    def solve(size):
        options = {} if size == 1 else {"round_visits": 2}
        loop = make(problem, Labelings(), Corrective(), CacheOracle(), **options)
        proof = loop.solve(0.03, max_passes=100, progress=False)
        return proof.primal, proof.dual, proof.passes, flat(loop.dual.parameters)

    ((primal, dual, passes, _),) = in_processes(1, lambda rank: solve(1))
    for size in (3,):
        first, again = (in_processes(size, lambda rank, size=size: solve(size)) for _ in range(2))
        assert_same(first, again)
        assert all(torch.equal(first[0][3], other[3]) for other in first)
        assert first[0][0] - first[0][1] <= 0.03
        assert max(dual, first[0][1]) <= min(primal, first[0][0])
        assert first[0][2] < 2.0 * passes
