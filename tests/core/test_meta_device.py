"""Models that are made on the meta device, as transformers makes them."""

import copy

import pytest
import torch
from cases.every_head import HEADS

from torchssvm import Chain, HiddenStates


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_weights_are_zero_where_they_get_memory_and_structures_hold_numbers(make):
    with torch.device("meta"):
        head = make()
    assert all(weights.is_meta for weights in head.parameters())
    assert repr(head.structure) == repr(make().structure)
    copied = copy.deepcopy(head)
    for one in (head, copied):
        with torch.no_grad():
            waste = [torch.full_like(weights, 1e38, device="cpu") for weights in one.parameters()]
        del waste
        one.to_empty(device="cpu")
        assert not any(bool(weights.any()) for weights in one.parameters())
        assert {type(weights) for weights in one.parameters()} == {torch.nn.Parameter}


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_reset_parameters_sets_all_weights_to_zero(make):
    head = make()
    with torch.no_grad():
        for weights in head.parameters():
            weights.fill_(1e38)
    head.reset_parameters()
    assert not any(bool(weights.any()) for weights in head.parameters())


def test_labels_are_shown_by_hidden_states_of_a_model_on_the_meta_device():
    with torch.device("meta"):
        structure = HiddenStates(Chain(4), [0, 0, 1, 1])
    assert structure.num_labels == 2
