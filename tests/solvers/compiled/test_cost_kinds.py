"""Rankings, matchings and decisions in the compiled loop: what the battery of all kinds does not reach."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.compiled_kinds import SIX, decisions, matchings, rankings
from cases.problems import Problem, Training, flat, rng

from torchssvm import (
    CompiledBCFW,
    Decisions,
    DualState,
    Labelings,
    LinearDecisions,
    LinearRanking,
    MeanParts,
    Ranking,
    certify,
)
from torchssvm.kinds.adapter import find_adapter
from torchssvm.structures.decisions import Assignment, Knapsack, Selection, ShortestPath, SpanningTree
from torchssvm.structures.ranking import NDCG, PairSwaps, PrecisionAt


def loop_of(problem: Problem, storage=None) -> CompiledBCFW:
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=storage or MeanParts())
    return CompiledBCFW(problem.head, dual, problem.everything(3))


def same_hinges(problem: Problem) -> None:
    """At random weights that a dual stands for, both certificates are the same."""
    training = Training(problem, storage=MeanParts()).run([[i] for i in range(problem.n)])
    there = certify(problem.head, training.dual, problem.everything(3))
    here = CompiledBCFW(problem.head, training.dual, problem.everything(3)).certify()
    for name in ("primal", "dual", "gap"):
        assert getattr(here, name) == pytest.approx(getattr(there, name), rel=1e-10, abs=1e-12)


MEASURES = [PairSwaps(), NDCG(5), PrecisionAt(3)]


@pytest.mark.parametrize("measure", MEASURES, ids=repr)
def test_long_lists_are_sorted_as_by_torch(measure):
    same_hinges(rankings(measure, longest=60))


@pytest.mark.parametrize("measure", MEASURES, ids=repr)
def test_a_list_of_one_document_costs_nothing(measure):
    head = LinearRanking(2, structure=Ranking(measure)).double()
    loop = loop_of(Problem(head, torch.ones(2, 1, 2).double(), torch.ones(2, 1).long(), torch.tensor([1, 1]), 0.1))
    loop.visit(torch.tensor([0, 1]))
    assert loop.certify().primal == 0.0


ORACLES = [ShortestPath.grid(4, 5), Selection(31, 7), Knapsack(np.arange(31) % 5, 20), SpanningTree(SIX), Assignment(4)]


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: type(oracle).__name__)
def test_large_decisions_are_those_of_the_oracle(oracle):
    same_hinges(decisions(oracle))


def test_labelings_of_larger_batches_are_cut():
    """The torch loop pads to the batch; the compiled one, to the largest graph."""
    problem = matchings()
    wide = torch.nn.functional.pad(problem.y, (0, 2, 0, 1)), torch.nn.functional.pad(problem.x, (0, 0, 0, 2, 0, 1))

    def padded(rows):
        batch = problem.batch(rows)
        return batch.replace(x=batch.x._replace(features=wide[1][batch.index]), y=wide[0][batch.index])

    first, second = Training(problem, storage=Labelings(3)), matchings()
    for row in range(8):
        first.step(padded([row]))
    loop = loop_of(second, Labelings(3))
    loop.dual.load_state_dict(first.dual.state_dict())
    order = torch.arange(16) * 3 % 8
    loop.visit(order)
    for row in order.tolist():
        first.step(padded([row]))
    torch.testing.assert_close(flat(loop.dual.parameters), flat(first.dual.parameters), rtol=0, atol=1e-9)
    assert loop.dual.storage.sets.labelings[0].shape[2:] == (3, 4)


class OwnMeasure(NDCG):
    """A user's measure."""


class OwnOracle(Selection):
    """A user's oracle."""


@pytest.mark.parametrize(
    "head",
    [
        LinearRanking(2, structure=Ranking(OwnMeasure())),
        LinearDecisions(2, structure=Decisions(OwnOracle(3, 1))),
        LinearDecisions(2, structure=Decisions(lambda costs: None, num_costs=3)),
    ],
    ids=["measure", "oracle", "function"],
)
def test_what_is_ones_own_has_no_compiled_form(head):
    before = flat(head.parameters()).clone()
    with pytest.raises(TypeError, match="has no compiled loop"):
        find_adapter(head)
    assert torch.equal(flat(head.parameters()), before)


def test_targets_that_are_not_optimal_are_refused():
    problem = decisions(ShortestPath.grid(2, 3))
    batch = problem.everything()[0]
    target = batch.y._replace(y=batch.y.y[torch.randperm(8, generator=rng(1))])
    dual = DualState.for_head(problem.head, 8, 0.1)
    before = dual.state_dict()
    with pytest.raises(ValueError, match="is not optimal for its costs"):
        CompiledBCFW(problem.head, dual, [batch.replace(y=target)])
    assert str(dual.state_dict()) == str(before)


@pytest.mark.parametrize("number", [2, -1, 1000])
def test_targets_that_are_no_choices_are_refused(number):
    problem = decisions(Selection(4, 2))
    batch = problem.everything()[0]
    batch.y.y[5, 1] = number  # stored labelings have room for 0 and 1
    dual = DualState.for_head(problem.head, 8, 0.1, storage=Labelings(2))
    before = dual.state_dict()
    with pytest.raises(ValueError, match=r"target\.y"):
        CompiledBCFW(problem.head, dual, [batch])
    assert str(dual.state_dict()) == str(before)
