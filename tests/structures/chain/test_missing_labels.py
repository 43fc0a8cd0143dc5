"""A label of -1 inside a chain has no parts, neither alone nor with its neighbours, wherever the parts are added up."""

import pytest
import torch

from torchssvm import Chain, Potentials


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # compiled, and in torch operations
@pytest.mark.parametrize("shared", [True, False])
def test_parts_and_scores_leave_it_out(dtype, shared):
    chain, labels, target = Chain(2, shared=shared), torch.tensor([[1, -1, 0, 1, -1]]), torch.tensor([[0, 0, 0, 0, 0]])
    pairs = (2, 2) if shared else (4, 2, 2)
    potentials = Potentials(
        {
            "emission": torch.arange(10, dtype=dtype).view(1, 5, 2),
            "transition": torch.arange(len(torch.zeros(pairs).flatten()), dtype=dtype).view(1, *pairs),
        }
    )
    parts = chain._difference(labels, target, potentials)
    added = {name: part + chain.parts(target)[name].to(dtype) for name, part in parts.items()}
    assert added["emission"].sum(2).tolist() == [[1.0, 0.0, 1.0, 1.0, 0.0]]
    pair = added["transition"] if shared else added["transition"][:, 2]
    assert pair[0, 0, 1] == 1.0
    assert added["transition"].sum() == 1.0
    score = sum((parts[name] * potentials[name]).double().sum() for name in parts)
    assert chain.relative_scores(labels.unsqueeze(1), target, potentials).tolist() == [[float(score)]]
