"""What validation logs: each name says what its number is, for every kind of output."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

L = pytest.importorskip("lightning")

from cases.short_words import trainer  # noqa: E402

from torchssvm import (  # noqa: E402
    Chain,
    LinearChain,
    LinearMulticlass,
    LinearMultilabel,
    Multilabel,
)
from torchssvm.datasets import PaddedDataset  # noqa: E402
from torchssvm.lightning import StructuredSVM  # noqa: E402

# Four words of 1, 3, 2 and 2 letters with 1, 1, 0 and 0 wrong ones: letters that are predicted, and the right ones.
PREDICTED = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]])
RIGHT = torch.tensor([[0, -1, -1], [0, 0, 0], [1, 0, -1], [1, 1, -1]])
LENGTHS = torch.tensor([1, 3, 2, 2])


def identity(head: nn.Module, name: str) -> nn.Module:
    with torch.no_grad():
        getattr(head, name).copy_(torch.eye(*getattr(head, name).shape))
    return head


def of_chain(**options):
    head = identity(LinearChain(2, 2, structure=Chain(2, **options)), "emission")
    data = PaddedDataset(nn.functional.one_hot(PREDICTED, 2).float(), RIGHT, LENGTHS)
    return head, data, data.collate


def of_classes():
    head = identity(LinearMulticlass(3, 3), "weight")
    data = PaddedDataset(torch.eye(3)[[0, 1, 2, 2]], torch.tensor([0, 1, 0, 2]))
    return head, data, data.collate


def of_label_sets():
    """Three labels for each of four examples; one label is wrong in the first, two in the last."""
    predicted = torch.tensor([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]])
    right = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 0], [1, 1, 0]])
    structure = Multilabel(3, pairwise=False, normalize=False)
    head = identity(LinearMultilabel(3, 3, pairwise=False, structure=structure), "unary")
    data = PaddedDataset(2.0 * predicted - 1.0, right)
    return head, data, data.collate


CASES = {
    # Mean loss, share of wrong tokens, share of examples with an error.
    "words": (of_chain, (1 / 1 + 1 / 3) / 4, 2 / 8, 2 / 4),
    "counted": (lambda: of_chain(normalize=False), 2 / 4, 2 / 8, 2 / 4),
    "classes": (of_classes, 1 / 4, 1 / 4, 1 / 4),
    "label sets": (of_label_sets, 3 / 4, 3 / 12, 2 / 4),
}


@pytest.mark.parametrize("batch_size", [1, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_every_figure_is_what_its_name_says(name: str, batch_size: int):
    make, loss, token_error, example_error = CASES[name]
    head, data, collate = make()
    model = StructuredSVM(head, lam=0.1)
    batches = DataLoader(data, batch_size=batch_size, collate_fn=collate)
    for stage, run in (("val", trainer().validate), ("test", trainer().test)):
        (figures,) = run(model, batches, verbose=False)
        named = {"loss": loss, "token_error": token_error, "example_error": example_error}
        expected = {f"{stage}_{key}": value for key, value in named.items() if value is not None}
        assert figures == pytest.approx(expected, abs=1e-6)
