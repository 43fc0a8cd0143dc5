"""Lengths that another thread changes after they were checked change nothing: kernels read a copy of their own."""

import pytest
import torch

from torchssvm import Chain, Potentials
from torchssvm.core import launch
from torchssvm.structures import max_sum_tree, viterbi
from torchssvm.structures.arborescence.oracle import eisner, max_arborescence

SCORES, PAIRS, ARCS = torch.rand(2, 4, 3), torch.rand(2, 3, 3), torch.rand(2, 4, 5)
ORACLES = {
    "viterbi": lambda lengths: viterbi(SCORES, PAIRS, lengths),
    "max_sum_tree": lambda lengths: max_sum_tree(SCORES, PAIRS, torch.tensor([-1, 0, 1, 1]), lengths),
    "eisner": lambda lengths: eisner(ARCS, lengths),
    "max_arborescence": lambda lengths: max_arborescence(ARCS, lengths),
}


@pytest.mark.parametrize("name", ORACLES)
def test_the_kernels_lengths_are_a_copy(name, monkeypatch):
    lengths, run = torch.tensor([4, 2]), launch.run_in_chunks
    labels, value = ORACLES[name](lengths)

    def change_first(*args, **options):
        lengths.fill_(10**6)
        return run(*args, **options)

    monkeypatch.setattr(launch, "run_in_chunks", change_first)
    again, same = ORACLES[name](lengths)
    assert torch.equal(again, labels)
    assert torch.equal(same, value)


def test_potentials_keep_lengths_of_their_own():
    lengths = torch.tensor([4, 2])
    potentials = Potentials({"emission": SCORES, "transition": PAIRS}, lengths, ragged={"emission": 0})
    before = Chain(3).argmax(potentials).labeling
    lengths.fill_(10**6)
    assert torch.equal(Chain(3).argmax(potentials).labeling, before)
