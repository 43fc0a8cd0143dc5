"""Targets that a structure cannot return, where it does not override ``check_target``."""

from __future__ import annotations

import pytest
import torch
from cases.one_of_each import KINDS
from torch import nn

from torchssvm import Chain, SlackRescaling, Structure, make_trainer
from torchssvm.core.decoding import Decoding
from torchssvm.core.max_oracle import has_target_check, unreachable
from torchssvm.datasets import PaddedDataset


class AtMostOne(Structure):
    """One of K labels, or none."""

    def argmax(self, potentials):
        scores = potentials.single
        best = nn.functional.one_hot(scores.argmax(1), scores.shape[1])
        return best * (scores.amax(1, keepdim=True) > 0)

    def parts(self, labeling):
        return labeling.to(torch.get_default_dtype())

    def loss(self, labeling, target):
        return (labeling != target).sum(1).double()

    def loss_potentials(self, target):
        return 1.0 - 2.0 * target, target.sum(1).double()

    def enumerate(self, potentials):
        rows, labels = potentials.single.shape
        yield torch.zeros(rows, labels, dtype=torch.int64)
        for k in range(labels):
            yield nn.functional.one_hot(torch.full((rows,), k), labels)


class WithoutPotentialsOfTheLoss(AtMostOne):
    def loss_potentials(self, target):
        raise NotImplementedError

    def augmented_argmax(self, potentials, target):
        return self.argmax(potentials.replace({"": potentials.single + 1.0 - 2.0 * target}))


class Approximate(AtMostOne):
    def argmax(self, potentials):
        return Decoding(super().argmax(potentials), bound=potentials.single.clamp(min=0.0).sum(1), exact=False)


class Scores(nn.Module):
    def __init__(self, structure):
        super().__init__()
        self.weight, self.structure = nn.Parameter(torch.ones(3, 4)), structure

    def forward(self, x):
        return x @ self.weight.T


def data(*wrong):
    labels = nn.functional.one_hot(torch.arange(40) % 3, 3)
    for place in wrong:
        labels[place] = torch.tensor([1, 1, 0])
    return PaddedDataset(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), labels)


STRUCTURES = [AtMostOne(), SlackRescaling(AtMostOne()), WithoutPotentialsOfTheLoss()]


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: type(structure).__name__)
def test_such_a_target_is_named_before_anything_is_trained(structure):
    head = Scores(structure)
    make_trainer(head, data(), 0.1)
    nn.init.ones_(head.weight)
    with pytest.raises(ValueError, match=r"cannot return the target of examples \[39\]"):
        make_trainer(head, data(39), 0.1)
    assert bool((head.weight == 1).all())


def test_a_bound_that_the_target_keeps_is_no_proof():
    make_trainer(Scores(Approximate()), data(39), 0.1)


class Forbidding(Chain):
    """A user's decoder; the base class checks the targets."""

    def argmax(self, potentials):
        return super().argmax(potentials)


def test_whose_decoder_it_is_decides_who_checks():
    assert not any(has_target_check(structure) for structure in [*STRUCTURES, Forbidding(3)])
    random = torch.Generator().manual_seed(0)
    assert all(has_target_check(make(random)[0]) for make in KINDS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_our_own_targets_are_within_reach(kind):
    if kind == "cut":
        pytest.importorskip("maxflow")
    structure, potentials, target = KINDS[kind](torch.Generator().manual_seed(0))
    wrong = unreachable(structure, potentials, structure.check_target(target, potentials))
    assert wrong is None or not bool(wrong.any())
