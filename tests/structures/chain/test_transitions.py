"""Forbidden transitions: their arguments, and the training of heads that have them.

The oracles are compared with enumeration where the other chains are: ``ChainTransitionsCase``.
"""

import copy
import pickle

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
    "arguments, message",
    [
        ({"pairs": EVERY.float()}, r"pairs must be bool \[K, K\], got torch.float32"),
        ({"pairs": EVERY[:2]}, r"pairs must be bool \[K, K\]"),
        ({"pairs": EVERY, "first": NONE[:2]}, r"first must be bool \[3\]"),
        ({"pairs": EVERY, "last": NONE.long()}, r"last must be bool \[3\], got torch.int64"),
        ({"pairs": EVERY, "first": NONE}, "no sequence of length 1 is allowed"),
        ({"pairs": EVERY & (EVERY.cumsum(1) > EVERY.cumsum(0))}, "no sequence of length 4 is allowed"),
        ({"pairs": EVERY.tril(), "first": ~NONE & (torch.arange(3) == 0), "last": torch.arange(3) == 2}, "length 1"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        Transitions(arguments.pop("pairs"), **arguments)


def test_two_states_in_turn_have_sequences_of_each_length():
    turns = torch.tensor([[False, True], [True, False]])
    assert Transitions(turns).allows(torch.tensor([[0, 1, 0], [0, 0, 1], [1, -1, -1]])).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="no sequence of length 2"):
        Transitions(turns, first=torch.tensor([True, False]), last=torch.tensor([True, False]))


def test_the_structure_checks_them():
    with pytest.raises(TypeError, match="transitions must be Transitions, or None, not a Tensor"):
        Chain(3, transitions=EVERY)
    with pytest.raises(ValueError, match="transitions are for 3 states, and num_states=4"):
        Chain(4, transitions=Transitions(EVERY))
    assert not Chain(3, transitions=TRANSITIONS).same_as(Chain(3))
    assert not Chain(3, transitions=TRANSITIONS).same_as(Chain(3, transitions=Transitions(EVERY)))
    assert Chain(3).same_as(Chain(3))


def test_targets_are_named():
    structure = Chain(3, transitions=TRANSITIONS)
    potentials = Potentials({"emission": torch.zeros(2, 3, 3), "transition": torch.zeros(2, 3, 3)})
    fine = torch.tensor([[0, 1, 2], [1, 1, 1]])
    assert torch.equal(structure.check_target(fine, potentials), fine)
    with pytest.raises(ValueError, match="has state 2 after 0 at position 1 in row 1 of the batch"):
        structure.check_target(torch.tensor([[0, 1, 2], [0, 2, 2]]), potentials)


@pytest.mark.slow
def test_the_optimum_is_that_of_the_allowed_outputs():
    """All three: plain steps in torch, compiled ones, and corrective ones with stored labelings."""
    training, own, other = Training(make()), make(), make()
    for _ in range(40):
        training.step(range(5))
    plain = CompiledBCFW(own.head, DualState.for_head(own.head, own.n, own.lam), own.everything())
    dual = DualState.for_head(other.head, other.n, other.lam, storage=Labelings())
    rules = {"direction": Corrective(), "oracle": CacheOracle()}
    corrective = CompiledBCFW(other.head, dual, other.everything(), **rules)
    found = [certify(training.head, training.dual, training.problem.everything())]
    for loop in (plain, corrective):
        found.append(loop.solve(tolerance=1e-5))
        assert certify(loop.head, loop.dual, own.everything()).primal == pytest.approx(found[-1].primal, abs=1e-9)
    optimum = reference(own).optimum()
    for certificate in found:
        assert certificate.dual - 1e-7 <= optimum <= certificate.primal + 1e-7
    assert max(found[1].gap, found[2].gap) <= 1e-5
    labelings, count = dual.storage.sets.labelings[0], dual.storage.sets.count
    for i, length in enumerate(own.lengths.tolist()):
        assert all(is_allowed(TRANSITIONS, one[:length]) for one in labelings[i, : count[i]].tolist())
    own.structure.transitions = None
    assert reference(own).optimum() > optimum + 1e-3


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
    found = structure.argmax(Potentials({"emission": emission[:, :-1], "transition": transition}))
    assert bool(structure.transitions.allows(found.labeling))
    with pytest.raises(ValueError, match="no sequence of length 2310 is allowed"):
        structure.argmax(Potentials({"emission": emission, "transition": transition}))


def test_rules_pickled_by_an_older_version_are_read():
    rules = copy.copy(TRANSITIONS)
    for name in ("_checked", "_reached", "_landmark"):
        delattr(rules, name)
    scores = {"emission": torch.zeros(1, 4, 3), "transition": torch.zeros(1, 3, 3)}
    found = Chain(3, transitions=pickle.loads(pickle.dumps(rules))).decode(Potentials(scores))
    assert bool(TRANSITIONS.allows(found))


def test_factorwise_training_refuses_them():
    own = make()
    with pytest.raises(TypeError, match="forbids transitions"):
        GDMM(own.head, own.everything(), num_examples=own.n, lam=own.lam)
