"""Small parts stay as they are where a labeling and the target share states and pairs."""

import pytest
import torch

from torchssvm import Chain, Potentials


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])  # the last one in torch operations
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_added_and_subtracted_leaves_no_rounding(dtype, shared):
    chain = Chain(2, shared=shared)
    target = torch.tensor([[0, 0, 1, 0]])
    labels = torch.tensor([[0, 1, 0, 0]]) if shared else target  # the same pairs at other places
    parts = {
        "emission": torch.full((1, 4, 2), 1e-9, dtype=dtype),
        "transition": torch.full((1, 2, 2) if shared else (1, 3, 2, 2), 1e-9, dtype=dtype),
    }
    before = {name: tensor.clone() for name, tensor in parts.items()}
    after = chain._add_difference(parts, labels, target, Potentials(before))
    assert torch.equal(after["transition"], before["transition"])
    same = labels == target
    assert torch.equal(after["emission"][same], before["emission"][same])
