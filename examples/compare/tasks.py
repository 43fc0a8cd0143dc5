"""The tasks on which solvers are compared: training and test examples, a new head, an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm import LinearChain, LinearMulticlass, evaluate, in_order
from torchssvm.datasets import OCR, PaddedDataset
from torchssvm.models import ocr_chain

DEFAULT = "ocr-small"


@dataclass(frozen=True)
class Task:
    """A training problem but for lambda.

    Attributes:
        name: As it is asked for.
        train: Training examples.
        test: Test examples.
        make_head: A new head, all weights zero.
    """

    name: str
    train: PaddedDataset
    test: PaddedDataset
    make_head: Callable[[], nn.Module]

    @property
    def is_chain(self) -> bool:
        """Whether the head is a linear chain: what the compiled loop is for."""
        return isinstance(self.make_head(), LinearChain)

    def first(self, size: int) -> Task:
        """The same with the first training examples only.

        Raises:
            ValueError: There are fewer.
        """
        if size > len(self.train):
            raise ValueError(f"size={size}: the task {self.name} has {len(self.train)} training examples")
        train = self.train
        lengths = None if train.lengths is None else train.lengths[:size]
        return replace(self, train=PaddedDataset(train.x[:size], train.y[:size], lengths))

    def error(self, head: nn.Module) -> float:
        """Share of wrong tokens of the test examples (letters; for a multiclass task, examples)."""
        structure: Any = head.structure
        error = evaluate(head, structure, in_order(self.test)).token_error
        assert error is not None
        return error


def ocr(size: str) -> Task:
    """Handwritten words, the papers' chain on pixels."""
    return Task(f"ocr-{size}", OCR("train", size), OCR("test", size), ocr_chain)


def letters() -> Task:
    """The letters of the same words one by one, 26 classes: 4617 to train on, 47535 to test on."""

    def split(name: str) -> PaddedDataset:
        words = OCR(name, "small")
        real = words.y >= 0
        return PaddedDataset(words.x[real], words.y[real])

    return Task("letters", split("train"), split("test"), lambda: LinearMulticlass(OCR.in_features, OCR.num_states))


def chain() -> Task:
    """A small chain of drawn data: states that mostly stay, seen through noise."""
    states, features, longest, n = 5, 10, 8, 400
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, longest + 1, (n,), generator=random)
    y = torch.randint(states, (n, longest), generator=random)
    for t in range(1, longest):
        stays = torch.rand(n, generator=random) < 0.6
        y[:, t] = torch.where(stays, y[:, t - 1], y[:, t])
    means = torch.randn(states, features, generator=random)
    x = means[y] + 2.0 * torch.randn(n, longest, features, generator=random)
    padding = torch.arange(longest) >= lengths.unsqueeze(1)
    x, y = x.masked_fill(padding.unsqueeze(2), 0.0), y.masked_fill(padding, -1)

    def split(rows: slice) -> PaddedDataset:
        parts: list[Tensor] = [x[rows], y[rows], lengths[rows]]
        return PaddedDataset(*parts)

    half = n // 2
    return Task("chain", split(slice(half)), split(slice(half, n)), lambda: LinearChain(features, states))


TASKS: dict[str, Callable[[], Task]] = {
    "ocr-small": lambda: ocr("small"),
    "ocr-large": lambda: ocr("large"),
    "letters": letters,
    "chain": chain,
}
ABOUT = {
    "ocr-small": "626 handwritten words, a chain on pixels",
    "ocr-large": "the same with 6251 words",
    "letters": "their 4617 letters one by one, multiclass",
    "chain": "200 drawn sequences, a small chain",
}
