"""The compiled loop between checkpoints, and by turns with the plain torch loop on the same dual."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases.compiled_kinds import ARCS, KINDS
from cases.problems import PROBLEMS, Problem, Training, assert_same, flat, reference, rng, through_a_file
from cases.python_process import fresh_python

from torchssvm import (
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    FrankWolfe,
    Labelings,
    MeanParts,
    Pairwise,
    Permutation,
    Proportional,
    Uniform,
    certify,
)
from torchssvm.steps import Away, Hybrid, MaxOracle

DIRECTIONS = [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()]
ORACLES = [MaxOracle(), CacheOracle()]
KINDS = KINDS | ARCS
directions = pytest.mark.parametrize("direction", DIRECTIONS, ids=repr)
oracles = pytest.mark.parametrize("oracle", ORACLES, ids=repr)


def problem(dtype: torch.dtype = torch.float64, states: int = 3, lam: float = 0.05) -> Problem:
    return PROBLEMS["chain"](5, n=8, states=states, longest=4, lam=lam, dtype=dtype)


def compiled(direction, oracle, order=None, *, capacity: int = 2, seed: int = 0, dtype=torch.float64) -> CompiledBCFW:
    """A new pair of head and dual; of two labelings a block, so that some have to leave."""
    made = problem(dtype)
    dual = DualState.for_head(made.head, made.n, made.lam, storage=Labelings(capacity))
    rules = {"direction": direction, "oracle": oracle, "order": order, "seed": seed}
    return CompiledBCFW(made.head, dual, made.everything(3), **rules)


def state(loop: CompiledBCFW) -> dict:
    return through_a_file({"dual": loop.dual.state_dict(), "loop": loop.state_dict()})


def resumed(loop: CompiledBCFW, saved: dict) -> CompiledBCFW:
    loop.dual.load_state_dict(saved["dual"])
    loop.load_state_dict(saved["loop"])
    return loop


@pytest.mark.parametrize(
    "order, stop", [(Proportional(), 3), (Proportional(), 45), (Permutation(), 29), (Uniform(), 20)]
)
@oracles
@directions
def test_a_resumed_run_is_the_one_left_alone_to_the_bit(direction, oracle, order, stop):
    """Stopped in the first round of the blocks, in the middle of a permutation, and after an exact pass."""

    def first(loop: CompiledBCFW) -> CompiledBCFW:
        loop.step(stop)
        if stop > 40:
            loop.certify()  # its weights are for the next visit
        return loop

    def second(loop: CompiledBCFW) -> CompiledBCFW:
        for _ in range(2):
            loop.step(30)
            loop.certify()
        return loop

    alone = second(first(compiled(direction, oracle, order)))
    stored = state(first(compiled(direction, oracle, order)))
    again = second(resumed(compiled(direction, oracle, order, seed=99), stored))
    assert_same(state(again), state(alone))
    assert bool(alone.dual.storage.mixed.any())
    assert (alone.dual.cache_hits > 0) == oracle.needs_labelings


IN_A_PROCESS = """
from cases.compiled_kinds import KINDS
from torchssvm import CacheOracle, CompiledBCFW, Corrective, DualState, Labelings

for kind in {kinds}:
    problem = KINDS[kind]()
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=Labelings(12))
    loop = CompiledBCFW(problem.head, dual, problem.everything(), direction=Corrective(), oracle=CacheOracle())
    loop.step(400)
print(dual.value().hex())
"""


@pytest.mark.slow
def test_bits_do_not_depend_on_what_the_process_trained_before():
    """Both kinds multiply by a vector operation that LLVM rounds otherwise in the one than in the other."""
    cases = Path(__file__).parents[2] / "support"
    alone, later = (
        fresh_python(IN_A_PROCESS.format(kinds=kinds), path=cases) for kinds in (["matchings"], ["chain", "matchings"])
    )
    assert later == alone


@pytest.mark.parametrize("order", [Uniform(), Permutation()], ids=repr)
@directions
def test_visits_may_be_counted_out_in_any_portions(direction, order):
    whole, pieces = compiled(direction, MaxOracle(), order), compiled(direction, MaxOracle(), order)
    whole.step(60)
    for visits in (1, 19, 3, 37):
        pieces.step(visits)
    assert_same(state(pieces), state(whole))


def test_a_permutation_is_not_begun_again_before_it_is_over():
    loop = compiled(FrankWolfe(), MaxOracle(), Permutation())
    for _ in range(3):
        seen = []
        for _ in range(4):
            before = loop.dual.storage.sets.used.amax(1)
            loop.step(2)
            seen += (loop.dual.storage.sets.used.amax(1) > before).nonzero().flatten().tolist()
        assert sorted(seen) == list(range(8))


@pytest.mark.parametrize("oracle, dtype", [(CacheOracle(), torch.float32), (MaxOracle(), torch.float64)])
@directions
def test_the_two_loops_take_turns_on_one_dual(direction, oracle, dtype):
    """The compiled loop goes on where the torch loop stopped, and the torch loop where the compiled one did."""
    rounding = 1e-10 if dtype == torch.float64 else 2e-5
    task = problem(dtype, states=2, lam=0.5)
    truth = reference(problem(states=2, lam=0.5))
    optimum = truth.optimum()
    training = Training(task, storage=Labelings(3), direction=direction, oracle=oracle)
    loop = CompiledBCFW(task.head, training.dual, task.everything(3), direction=direction, oracle=oracle)
    dual, random, stored = training.dual, rng(1), 0.0
    for _ in range(3):
        for _ in range(10):
            training.step(torch.randint(0, task.n, (2,), generator=random).tolist())
            assert dual.value() >= stored - rounding
            stored = dual.value()
        assert certify(task.head, dual, task.everything(3)).drift < rounding
        for _ in range(5):
            assert loop.step(6) == 6 or not bool(dual.gap_estimates.any())  # then there is nothing left to do
            assert dual.value() >= stored - rounding
            stored = dual.value()
        certificate = loop.certify()
        assert certificate.drift < rounding
        assert certificate.gap >= -rounding
        assert certificate.dual - rounding <= optimum + 1e-7 <= certificate.primal + rounding + 2e-7
    storage = dual.storage
    torch.testing.assert_close(storage.rest_mass + storage.sets.mass.sum(1), torch.ones(task.n, dtype=torch.float64))
    total = storage.rest_loss + (storage.sets.mass * storage.sets.loss).sum(1) / task.n
    torch.testing.assert_close(total, dual.loss, rtol=0, atol=rounding)
    assert dual.steps > 3 * 10 + 30


# To the end: when a corrective step ends sooner, rounding chooses.
ENDING = [*DIRECTIONS[:-1], Corrective(1000, 1e-12)]


def rules_of(kind: str, number: int) -> list:
    """What a kind is trained with: every direction, with the two oracles by turns; the next kind takes the others.

    One of the directions is for the fast tests, another with the next kind: kinds and directions meet in no code.
    """
    results = [(kind, None, FrankWolfe(), MaxOracle()), (kind, 2, FrankWolfe(), CacheOracle())]
    for k, direction in enumerate(ENDING):
        marks = [pytest.mark.slow] if (k - number) % len(ENDING) else []
        results.append(pytest.param(kind, 12, direction, ORACLES[(number + k) % 2], marks=marks))
    return results


kinds = pytest.mark.parametrize("kind", KINDS)


def storage_of(capacity: int | None) -> Labelings | MeanParts:
    return MeanParts() if capacity is None else Labelings(capacity)


def both(kind: str, capacity: int | None, direction=None, oracle=None) -> tuple[Training, CompiledBCFW]:
    """The torch loop and the compiled one, each with a problem of its own; None is mean parts."""
    first, second = KINDS[kind](), KINDS[kind]()
    training = Training(first, storage=storage_of(capacity), direction=direction, oracle=oracle)
    dual = DualState.for_head(second.head, second.n, second.lam, storage=storage_of(capacity))
    return training, CompiledBCFW(second.head, dual, second.everything(3), direction=direction, oracle=oracle)


def same_dual(training: Training, loop: CompiledBCFW, rounding: float = 1e-9) -> None:
    there, here = training.dual, loop.dual
    torch.testing.assert_close(flat(here.parameters), flat(there.parameters), rtol=0, atol=rounding)
    for name in ("loss", "gap_estimates", "oracle_gaps"):
        torch.testing.assert_close(getattr(here, name), getattr(there, name), rtol=0, atol=rounding)
    assert (here.oracle_calls, here.cache_hits, here.steps) == (there.oracle_calls, there.cache_hits, there.steps)


@pytest.mark.parametrize(
    "kind, capacity, direction, oracle",
    [rules for number, kind in enumerate(KINDS) for rules in rules_of(kind, number)],
    ids=repr,
)
def test_both_loops_take_the_same_steps(kind, capacity, direction, oracle):
    """In turn: a block that is visited again at once has atoms that are equally good, and rounding would choose."""
    training, loop = both(kind, capacity, direction, oracle)
    for _ in range(2):
        order = torch.arange(16) * 3 % 8
        training.run([[i] for i in order.tolist()])
        loop.visit(order)
        same_dual(training, loop)
        there = certify(training.head, training.dual, training.problem.everything(3))
        here = loop.certify()
        assert here.drift < 1e-10
        for name in ("primal", "dual", "gap"):
            assert getattr(here, name) == pytest.approx(getattr(there, name), abs=1e-9)
        same_dual(training, loop)


def flattened(several) -> list:
    """Numbers and arrays of named tuples within named tuples."""
    return [leaf for one in several for leaf in (flattened(one) if isinstance(one, tuple) else [one])]


@kinds
def test_an_exact_pass_does_not_depend_on_threads_or_batches(kind):
    made = [both(kind, 3, Pairwise(), CacheOracle())[1] for _ in range(2)]
    threads = torch.get_num_threads()
    try:
        for count, loop in enumerate(made, 1):
            torch.set_num_threads(count)
            loop.visit(torch.arange(30) % 8)
            assert loop.certify(refresh=False).gap > 0.0
            assert loop.dual.recomputed is None
            loop.certify()
    finally:
        torch.set_num_threads(threads)
    assert_same(made[0].dual.state_dict(), made[1].dual.state_dict())
    head, problem = made[0].head, KINDS[kind]()
    dual = DualState.for_head(head, 8, 0.05, storage=Labelings(3))
    with pytest.warns(UserWarning, match="were not zero"):
        loop = CompiledBCFW(head, dual, [problem.batch([5, 1, 7]), problem.batch([0, 2, 3]), problem.batch([6, 4])])
    for a, b in zip(flattened(loop.examples), flattened(made[0].examples), strict=True):
        assert np.all(a == b)


def test_trainings_in_threads_have_the_bits_of_trainings_in_turn():
    problem = KINDS["chain"]()
    batches = problem.everything(3)

    def train(seed: int) -> Any:
        head = copy.deepcopy(problem.head)
        dual = DualState.for_head(head, problem.n, problem.lam, storage=Labelings(3))
        loop = CompiledBCFW(head, dual, batches, direction=Pairwise(), oracle=CacheOracle(), seed=seed)
        results = []
        for _ in range(20):
            loop.step()
            results.append(loop.certify().gap)
        return results, dual.state_dict()

    in_turn = [train(seed) for seed in range(4)]
    with ThreadPoolExecutor(2) as pool:
        assert_same(list(pool.map(train, range(4))), in_turn)


@pytest.mark.parametrize("capacity", [None, 1])
def test_rows_made_for_shorter_sentences_grow(capacity):
    problem = ARCS["arcs, projective"]()
    short = [i for i in range(8) if problem.lengths[i] < 4]
    training = Training(problem, storage=storage_of(capacity)).run([[i] for i in short * 3])
    other = ARCS["arcs, projective"]()
    dual = DualState.for_head(other.head, other.n, other.lam, storage=storage_of(capacity))
    loop = CompiledBCFW(other.head, dual, other.everything(3))
    dual.load_state_dict(training.dual.state_dict())
    order = torch.arange(16) * 3 % 8
    training.run([[i] for i in order.tolist()])
    loop.visit(order)
    same_dual(training, loop)


@oracles
@directions
def test_each_loop_continues_a_checkpoint_of_the_other(direction, oracle):
    def torch_loop() -> Training:
        return Training(problem(), storage=Labelings(3), direction=direction, oracle=oracle)

    loop, training = compiled(direction, oracle, capacity=3), torch_loop()
    loop.step(40)
    training.run([[k % 8] for k in range(40)])
    there, back = torch_loop(), compiled(direction, oracle, capacity=3)
    there.dual.load_state_dict(state(loop)["dual"])
    back.dual.load_state_dict(training.optim.state_dict()["dual"])
    for source, target, go in (
        (loop.dual, there.dual, lambda: there.run([[k % 8, (k + 3) % 8] for k in range(20)])),
        (training.dual, back.dual, lambda: back.step(40)),
    ):
        assert_same(target.state_dict(), source.state_dict())
        before, seen = target.value(), target.oracle_calls + target.cache_hits
        go()
        assert target.value() > before
        assert target.oracle_calls + target.cache_hits == seen + 40
    for head, dual in ((there.head, there.dual), (back.head, back.dual)):
        certificate = certify(head, dual, problem().everything(4))
        assert certificate.drift < 1e-10
        assert certificate.gap >= 0.0
