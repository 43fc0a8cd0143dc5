"""Kinds whose oracles are approximate, in the compiled loop: what the battery of all kinds does not reach."""

from __future__ import annotations

import pytest
import torch
from cases.compiled_kinds import ARCS, label_sets, labelled_graphs, matchings
from cases.problems import Problem, assert_same, flat

from torchssvm import CompiledBCFW, DualState, Labelings, MeanParts, Multilabel, certify
from torchssvm.structures.multilabel import BranchAndBound, MessagePassing
from torchssvm.structures.pairwise_graph import TreeReweighted


class OwnOracle(TreeReweighted):
    """Not the package's, and so not compiled."""


CASES = {
    "graphs": (lambda: labelled_graphs(TreeReweighted(1, 0, 0)), "oracle", TreeReweighted()),
    "label sets": (
        lambda: label_sets(labels=9, structure=Multilabel(9, decoder=MessagePassing(1))),
        "decoder",
        BranchAndBound(),
    ),
}


def loop_of(problem: Problem, storage: Labelings | MeanParts | None = None) -> CompiledBCFW:
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=storage or Labelings(4))
    return CompiledBCFW(problem.head, dual, problem.everything(3))


@pytest.mark.parametrize("kind", CASES)
def test_the_oracle_may_change_between_passes(kind):
    """A new oracle sets the limits of the next pass, with bounds as in the torch loop; a user's oracle is refused."""
    make, name, better = CASES[kind]
    problem = make()
    loop = loop_of(problem)
    loop.visit(torch.arange(24) % 8)

    def certified():
        here = loop.certify(refresh=False)
        there = certify(problem.head, loop.dual, problem.everything(3), refresh=False)
        assert (here.exact, here.relaxed) == (there.exact, there.relaxed)
        assert here.primal == pytest.approx(there.primal, rel=1e-10)
        return here

    loose = certified()
    setattr(problem.structure, name, better)
    tight = certified()
    assert (loose.exact, tight.exact) == (False, True)
    assert tight.primal < loose.primal - 1e-6
    setattr(problem.structure, name, OwnOracle())
    before = loop.dual.state_dict()
    for use in (lambda: loop.step(3), loop.certify):
        with pytest.raises(TypeError, match=r"OwnOracle\("):
            use()
    assert_same(loop.dual.state_dict(), before)


def test_graphs_that_have_changed_are_refused():
    """An edge that leads elsewhere, or back."""
    problem = labelled_graphs()
    loop = loop_of(problem)
    loop.visit(torch.arange(8))
    loop.certify()
    before = loop.dual.state_dict()
    problem.edges[3] = problem.edges[3].flip(1)
    with pytest.raises(RuntimeError, match="index names"):
        loop.check_targets(problem.batch([3, 4]))
    with pytest.raises(RuntimeError, match=r"1 of 8 examples have other targets.*edges"):
        CompiledBCFW(problem.head, loop.dual, problem.everything(3))
    assert_same(loop.dual.state_dict(), before)


@pytest.mark.parametrize(
    "make", [labelled_graphs, matchings, ARCS["arcs, projective"]], ids=["graphs", "edges", "arcs"]
)
def test_rows_for_the_longer_examples_of_another_process_are_taken(make):
    alone, other = (loop_of(make(), MeanParts()) for _ in range(2))
    for loop in (alone, other):
        loop.visit(torch.arange(8))
    for name, buffer in other.dual.storage.buffers.items():
        if name != "node":  # whose rows are states
            buffer.widen((buffer.values.shape[1] + 2, *buffer.values.shape[2:]))
    other.dual.version += 1
    for loop in (alone, other):
        loop.visit(torch.arange(16) % 8)
    assert torch.equal(flat(other.head.parameters()), flat(alone.head.parameters()))
    assert other.certify().gap == alone.certify().gap
