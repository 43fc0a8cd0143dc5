"""Every direction and oracle rule on a dual that is kept as labelings."""

from __future__ import annotations

import functools
import io

import pytest
import torch
from cases.problems import PROBLEMS, Reference, Training, assert_same, reference, rng, steps_of

from torchssvm import BlockGap, CacheOracle, Corrective, FrankWolfe, Labelings, LinearChain, Pairwise, certify
from torchssvm.dual import DualState
from torchssvm.steps import Away, Hybrid, MaxOracle
from torchssvm.steps.directions import Proportional, Uniform

RULES = [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()]
ORACLES = [MaxOracle(), CacheOracle()]


def training(problem, direction, oracle, capacity=20, sweeps=5) -> Training:
    made = Training(problem, storage=Labelings(capacity))
    made.loss = BlockGap(made.dual, direction, oracle=oracle, block_steps=steps_of(sweeps))
    return made


def schedule(n: int, steps: int, seed: int = 0) -> list[list[int]]:
    random = rng(seed)
    return [torch.randint(0, n, (1 + k % 3,), generator=random).tolist() for k in range(steps)]


@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
@pytest.mark.parametrize("direction", RULES, ids=repr)
def test_resume_to_the_same_bits(direction, oracle):
    def made():
        return training(PROBLEMS["chain"](3, lam=0.05, n=6), direction, oracle, capacity=3)

    whole, first, second = made(), made(), made()
    batches = schedule(6, 60)
    whole.run(batches)
    first.run(batches[:35])
    file = io.BytesIO()
    torch.save(first.optim.state_dict(), file)
    file.seek(0)
    second.optim.load_state_dict(torch.load(file, weights_only=True))
    second.run(batches[35:])
    assert_same(second.snapshot(), whole.snapshot())


@functools.cache
def solved(kind: str, seed: int) -> tuple[Reference, float]:
    truth = reference(PROBLEMS[kind](seed, lam=0.1))
    return truth, truth.optimum()


@pytest.mark.parametrize("capacity", [1, 2, 20])
@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
@pytest.mark.parametrize("direction", RULES, ids=repr)
def test_invariants(direction, oracle, capacity):
    turn = [1, 2, 20].index(capacity) + RULES.index(direction)
    for kind, seed in zip(sorted(PROBLEMS), (turn % 2, (turn + 1) % 2), strict=True):  # 0: common steps, 1: a box QP
        problem = PROBLEMS[kind](seed, lam=0.1)
        truth, optimum = solved(kind, seed)
        run = training(problem, direction, oracle, capacity, sweeps=5 * seed)
        before = 0.0
        for k, rows in enumerate(schedule(problem.n, 24, seed)):
            run.step(rows)
            assert run.dual.value() >= before - 1e-12
            before = run.dual.value()
            if k % 12 == 11:
                certificate = certify(run.head, run.dual, problem.everything(2))
                assert certificate.gap >= -1e-12
                assert certificate.drift < 1e-10
                assert certificate.primal == pytest.approx(truth.primal(run.weights()), abs=1e-10)
                assert certificate.dual - 1e-9 <= optimum + 1e-7
                assert certificate.primal >= optimum - 1e-7
        storage = run.dual.storage
        assert (storage.rest_mass + storage.sets.mass.sum(1)).sub(1.0).abs().max() < 1e-12
        total = storage.rest_loss + (storage.sets.mass * storage.sets.loss).sum(1) / problem.n
        assert torch.allclose(total, run.dual.loss, atol=1e-12)
        assert (
            run.dual.oracle_calls + run.dual.cache_hits == sum(map(len, schedule(problem.n, 24, seed))) + 2 * problem.n
        )
        assert (run.dual.cache_hits == 0) or oracle.needs_labelings


def compiled_pair(direction, oracle, capacity, lam=0.05):
    from torchssvm import CompiledBCFW

    problem = PROBLEMS["chain"](5, n=8, states=3, longest=4, lam=lam)
    twin = problem.copy()
    run = training(problem, direction, oracle, capacity)
    assert isinstance(twin.head, LinearChain)
    dual = DualState.for_head(twin.head, twin.n, lam, storage=Labelings(capacity))
    return problem, run, CompiledBCFW(twin.head, dual, twin.everything(3), direction=direction, oracle=oracle)


def tied(run: Training, i: int) -> bool:
    """Whether rounding alone says which atom of the block is best, or which active one is worst."""
    batch = run.problem.batch([i])
    potentials = run.head(batch.x, batch.lengths).detach()
    target = run.dual.structure.check_target(batch.y, potentials)
    stored = run.dual.storage.gather(batch.index, potentials, target)
    mass, scores, losses, valid = stored.atoms(potentials, run.dual.loss[batch.index])
    hinges = (scores + losses)[valid].sort(descending=True).values
    active = (scores + losses)[valid & (mass > 0.0)].sort().values
    return any(len(h) > 1 and abs(float(h[0] - h[1])) < 1e-12 for h in (hinges, active))


@pytest.mark.parametrize("capacity", [2, 20])
@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
@pytest.mark.parametrize("direction", RULES, ids=repr)
def test_the_compiled_loop_takes_the_same_steps(direction, oracle, capacity):
    """Step by step from the same state; where exact steps have made two atoms equal, rounding may choose either."""
    if isinstance(direction, Corrective):  # solved to the end its value is unique, whatever ties decide on the way
        direction = Corrective(steps=5000, tolerance=0.0)
    _, run, compiled = compiled_pair(direction, oracle, capacity)
    compared = 0
    for k, i in enumerate(torch.randint(0, 8, (30,), generator=rng(0)).tolist()):
        compiled.dual.load_state_dict(run.dual.state_dict())
        calls, any_choice = run.dual.oracle_calls, tied(run, i)
        run.step([i])
        compiled.visit(torch.tensor([i]))
        same = compiled.dual.value() == pytest.approx(run.dual.value(), abs=1e-9)
        assert same or any_choice, f"step {k}: {compiled.dual.value()} and {run.dual.value()}"
        compared += not any_choice
        assert compiled.dual.oracle_calls - calls == run.dual.oracle_calls - calls
        assert compiled.dual.gap_estimates[i] == pytest.approx(float(run.dual.gap_estimates[i]), abs=1e-10)
    assert run.dual.value() > 0.05
    assert compared > 10


@pytest.mark.parametrize("order", [Proportional(), Uniform()], ids=repr)
@pytest.mark.parametrize("direction", RULES, ids=repr)
def test_the_compiled_loop_alone(direction, order):
    from torchssvm import CompiledBCFW

    problem = PROBLEMS["chain"](1, lam=0.5)
    truth = reference(problem)
    dual = DualState.for_head(problem.head, problem.n, 0.5, storage=Labelings(2))
    rules = {"direction": direction, "oracle": CacheOracle(), "order": order}
    loop = CompiledBCFW(problem.head, dual, problem.everything(), **rules)
    before = 0.0
    for _ in range(20):
        assert loop.step(16) == 16 or not bool(dual.gap_estimates.any())
        assert dual.value() >= before - 1e-12
        before = dual.value()
        certificate = loop.certify()
        assert certificate.gap >= -1e-12
        assert certificate.drift < 1e-10
        weights = torch.cat([p.detach().flatten() for p in dual.parameters])
        assert certificate.primal == pytest.approx(truth.primal(weights))
    assert certificate.dual <= truth.optimum() + 1e-7 <= certificate.primal + 2e-7
