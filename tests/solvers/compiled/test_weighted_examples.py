"""Weights of examples in the compiled loop, for every kind of output."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.compiled_kinds import ARCS, KINDS, Weighing
from cases.problems import Training, assert_same, flat, through_a_file

from torchssvm import (
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    FrankWolfe,
    Labelings,
    MeanParts,
    Pairwise,
    certify,
)
from torchssvm.kinds.adapter import find_adapter
from torchssvm.steps import Away, Hybrid, MaxOracle

KINDS = KINDS | ARCS
RULES = [
    (MeanParts(), FrankWolfe(), MaxOracle()),
    (Labelings(2), FrankWolfe(), CacheOracle()),
    (Labelings(12), Pairwise(), CacheOracle()),
    (Labelings(12), Away(), MaxOracle()),
    (Labelings(2), Hybrid(), CacheOracle()),
    (Labelings(2), Corrective(1000, 1e-12), MaxOracle()),
]
kinds = pytest.mark.parametrize("kind", KINDS)


def name_of(rules) -> str:
    return f"{type(rules[0]).__name__}, {rules[1]}, {rules[2]}"


def loop_of(head, batches, n, lam, storage, direction, oracle, **options) -> CompiledBCFW:
    dual = DualState.for_head(head, n, lam, storage=copy.deepcopy(storage))
    return CompiledBCFW(head, dual, batches, direction=direction, oracle=oracle, **options)


def weighted(kind: str, rules=RULES[-1], **options) -> CompiledBCFW:
    problem = Weighing(KINDS[kind]())
    return loop_of(problem.head, problem.everything(3), problem.n, problem.lam, *rules, **options)


@pytest.mark.parametrize("kind, turn", [(kind, turn) for turn, kind in enumerate(KINDS)])
def test_both_loops_take_the_same_steps(kind, turn):
    """By a third of the rules, the next kind by others."""
    for storage, direction, oracle in RULES[turn % 3 :: 3]:
        problem, loop = Weighing(KINDS[kind]()), weighted(kind, (storage, direction, oracle))
        training = Training(problem, storage=copy.deepcopy(storage), direction=direction, oracle=oracle)
        order = torch.arange(32) * 3 % 8
        training.run([[i] for i in order.tolist()])
        loop.visit(order)
        for name in ("loss", "gap_estimates", "oracle_gaps"):
            here, there = getattr(loop.dual, name), getattr(training.dual, name)
            torch.testing.assert_close(here, there, rtol=0, atol=1e-9)
        torch.testing.assert_close(flat(loop.dual.parameters), flat(training.dual.parameters), rtol=0, atol=1e-9)
        there = certify(training.head, training.dual, problem.everything(3))
        here = loop.certify()
        assert here.drift < 1e-10
        for name in ("primal", "dual", "gap"):
            assert getattr(here, name) == pytest.approx(getattr(there, name), abs=1e-9)


@pytest.mark.slow
@kinds
def test_an_example_of_weight_2_is_there_twice(kind):
    """With ``lam n`` as it was, the objective is n times that of the repeated examples, over their number."""
    problem = Weighing(KINDS[kind]())
    many, head = int(problem.times.sum()), problem.inner.head
    whole = [(MeanParts(), Corrective(), MaxOracle())] if find_adapter(head).whole() else []
    for rules in [(Labelings(12), Corrective(), CacheOracle()), *whole]:
        one, repeated = weighted(kind, rules), problem.repeated()
        two = loop_of(copy.deepcopy(head), [repeated], many, problem.lam * problem.n / many, *rules)
        first, second = (loop.solve(1e-5, max_passes=400.0, progress=False) for loop in (one, two))
        share = problem.n / many
        assert share * first.dual <= second.primal + 1e-9
        assert second.dual <= share * first.primal + 1e-9
        if first.exact and second.exact:
            assert max(first.relative_gap, second.relative_gap) < 0.1


@pytest.mark.parametrize("rules", [*RULES, (MeanParts(), Corrective(), MaxOracle())], ids=name_of)
def test_a_resumed_run_is_the_one_left_alone_to_the_bit(rules):
    kind = "multiclass" if name_of(rules).startswith("MeanParts, Corrective") else "chain"
    alone, again = weighted(kind, rules, seed=3), weighted(kind, rules, seed=9)
    alone.step(30)
    alone.certify()
    stored = through_a_file({"dual": alone.dual.state_dict(), "loop": alone.state_dict()})
    again.dual.load_state_dict(stored["dual"])
    again.load_state_dict(stored["loop"])
    for loop in (alone, again):
        loop.step(40)
        loop.certify()
    assert_same(again.dual.state_dict(), alone.dual.state_dict())
    assert again.dual.value() > 0.0


@pytest.mark.parametrize("wrong", [-1.0, torch.nan, torch.inf])
def test_weights_are_finite_and_not_negative(wrong):
    problem = Weighing(KINDS["chain"]())
    problem.times = problem.times.double()
    problem.times[5] = wrong
    with pytest.raises(ValueError, match="weights"):
        loop_of(problem.head, problem.everything(), problem.n, problem.lam, *RULES[0])
    with pytest.raises(ValueError, match="weights"):
        Training(problem).run([[5]])
