"""A decoder that ``torch.jit.trace`` records decodes other inputs as the structure does."""

import pytest
import torch

from torchssvm import LinearChain, LinearMulticlass
from torchssvm.deployment import Decoder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("head", [LinearChain(4, 3), LinearMulticlass(4, 3)])
def test_other_inputs_are_decoded(head):
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random))
    shape = (2, 5, 4) if isinstance(head, LinearChain) else (2, 4)
    traced = torch.jit.trace(Decoder(head), torch.randn(shape, generator=random), check_trace=False)
    for _ in range(6):
        x = torch.randn(shape, generator=random)
        assert torch.equal(traced(x), head.structure.decode(head(x)))
