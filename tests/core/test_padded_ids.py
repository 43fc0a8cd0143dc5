"""Networks on ids below a head: whether padding changes their features."""

import pytest
import torch
from torch import nn

from torchssvm.core.modules import check_padded_ids

IDS, LENGTHS = torch.arange(12).reshape(2, 6), torch.tensor([6, 4])


class Network(nn.Module):
    """Embeddings and noise; it counts its calls, and ``make`` gives their form."""

    def __init__(self, make):
        super().__init__()
        self.embedding, self.make = nn.Embedding(12, 4), make
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.make(self.embedding(x) + 1e-6 * torch.randn(*x.shape, 4))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda vectors: vectors, id="one for each id"),
        pytest.param(lambda vectors: vectors.reshape(len(vectors), -1, 8), id="one for two ids"),
        pytest.param(lambda vectors: (vectors, vectors), id="several"),
        pytest.param(lambda vectors: vectors.reshape(len(vectors), 6, 4), id="one length only"),
    ],
)
def test_networks_that_padding_does_not_change_are_left_as_they_are(make):
    network, state = Network(make).train(), torch.get_rng_state()
    assert check_padded_ids(network, IDS, LENGTHS)
    assert float(network.calls) == 0.0
    assert network.training
    assert torch.equal(torch.get_rng_state(), state)
    assert not check_padded_ids(network, IDS, torch.tensor([6, 6]))  # there is no padding to look at


def test_a_mean_over_padding_is_refused():
    with pytest.raises(ValueError, match="features=Network"):
        check_padded_ids(Network(lambda result: result + result.mean(1, keepdim=True)), IDS, LENGTHS)
