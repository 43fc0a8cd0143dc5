"""Forbidden transitions: their arguments, and the training of heads that have them.

The oracles are compared with enumeration where the other chains are: ``ChainTransitionsCase``.
"""

import pytest
import torch
from cases.compiled_kinds import TRANSITIONS
from cases.problems import PROBLEMS, Training, is_allowed, reference

from torchssvm import GDMM, CacheOracle, Chain, CompiledBCFW, Corrective, DualState, Labelings, Potentials, certify
from torchssvm.structures.chain import Transitions

EVERY = torch.ones(3, 3, dtype=torch.bool)
NONE = torch.zeros(3, dtype=torch.bool)


def make():
    return PROBLEMS["chain"](5, n=5, states=3, longest=3, lam=0.5, transitions=TRANSITIONS)


@pytest.mark.parametrize(
    "arguments, argument",
    [
        ({"pairs": EVERY.float()}, "pairs"),
        ({"pairs": EVERY[:2]}, "pairs"),
        ({"pairs": EVERY, "first": NONE[:2]}, "first"),
        ({"pairs": EVERY, "last": NONE.long()}, "last"),
        ({"pairs": EVERY, "first": NONE}, "length 1"),
        ({"pairs": EVERY & (EVERY.cumsum(1) > EVERY.cumsum(0))}, "length 4"),
        ({"pairs": EVERY.tril(), "first": ~NONE & (torch.arange(3) == 0), "last": torch.arange(3) == 2}, "length 1"),
    ],
)
def test_arguments_are_checked(arguments, argument):
    with pytest.raises(ValueError, match=argument):
        Transitions(arguments.pop("pairs"), **arguments)


def test_two_states_in_turn_have_sequences_of_each_length():
    turns = torch.tensor([[False, True], [True, False]])
    assert Transitions(turns).allows(torch.tensor([[0, 1, 0], [0, 0, 1], [1, -1, -1]])).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="length 2"):
        Transitions(turns, first=torch.tensor([True, False]), last=torch.tensor([True, False]))


def test_structures_and_solvers_check_them():
    with pytest.raises(TypeError, match="transitions"):
        Chain(3, transitions=EVERY)
    with pytest.raises(ValueError, match="transitions"):
        Chain(4, transitions=Transitions(EVERY))
    problem = make()
    with pytest.raises(TypeError, match="transitions"):
        GDMM(problem.head, problem.everything(), num_examples=problem.n, lam=problem.lam)
    assert not Chain(3, transitions=TRANSITIONS).same_as(Chain(3))
    assert not Chain(3, transitions=TRANSITIONS).same_as(Chain(3, transitions=Transitions(EVERY)))
    assert Chain(3).same_as(Chain(3))


def cycles(*sizes):
    """States in cycles, all of which begin in the first one."""
    pairs = torch.block_diag(*(torch.roll(torch.eye(size), 1, 1) for size in sizes)).bool()
    first = torch.cat([torch.arange(size) == 0 for size in sizes])
    return pairs, first


def test_rules_of_a_long_period_are_made_at_once():
    pairs, first = cycles(2, 3, 5, 7, 11, 13, 17, 19)  # the same states come again after 9,699,690 places
    assert Transitions(pairs, first=first).allows(torch.tensor([[0, 1, 0], [1, 0, 1]])).tolist() == [True, False]


def test_lengths_without_a_sequence_are_refused_when_they_come():
    pairs, first = cycles(2, 3, 5, 7, 11)
    last = ~torch.cat([torch.arange(size) == size - 1 for size in (2, 3, 5, 7, 11)])  # none at length 2310
    structure = Chain(28, transitions=Transitions(pairs, first=first, last=last))
    emission, transition = torch.zeros(1, 2310, 28), torch.zeros(1, 28, 28)
    decoding = structure.argmax(Potentials({"emission": emission[:, :-1], "transition": transition}))
    assert bool(structure.transitions.allows(decoding.labeling))
    with pytest.raises(ValueError, match="length 2310"):
        structure.argmax(Potentials({"emission": emission, "transition": transition}))


@pytest.mark.slow
def test_the_optimum_is_that_of_the_allowed_outputs():
    """All three: plain steps in torch, compiled ones, and corrective ones with stored labelings."""
    training, problem, other = Training(make()), make(), make()
    for _ in range(40):
        training.step(range(5))
    plain = CompiledBCFW(problem.head, DualState.for_head(problem.head, problem.n, problem.lam), problem.everything())
    dual = DualState.for_head(other.head, other.n, other.lam, storage=Labelings())
    rules = {"direction": Corrective(), "oracle": CacheOracle()}
    corrective = CompiledBCFW(other.head, dual, other.everything(), **rules)
    results = [certify(training.head, training.dual, training.problem.everything())]
    for loop in (plain, corrective):
        results.append(loop.solve(tolerance=1e-5))
        assert certify(loop.head, loop.dual, problem.everything()).primal == pytest.approx(results[-1].primal, abs=1e-9)
    optimum = reference(problem).optimum()
    for certificate in results:
        assert certificate.dual - 1e-7 <= optimum <= certificate.primal + 1e-7
    assert max(results[1].gap, results[2].gap) <= 1e-5
    labelings, count = dual.storage.sets.labelings[0], dual.storage.sets.count
    for i, length in enumerate(problem.lengths.tolist()):
        assert all(is_allowed(TRANSITIONS, one[:length]) for one in labelings[i, : count[i]].tolist())
    problem.structure.transitions = None
    assert reference(problem).optimum() > optimum + 1e-3
