"""Synthetic chains of any number: batches are made when they are asked for, the same ones each time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchssvm import Batch
from torchssvm.datasets import PaddedDataset

from .training import Problem


class Chains:
    """n chains of one length; labels are those that a random linear model prefers, after noise.

    Args:
        n: Chains.
        length: T.
        states: K.
        features: F, dense and normal.
        batch_size: Chains of a batch.
        seed: Of everything.
    """

    def __init__(
        self, n: int, length: int, states: int, features: int, *, batch_size: int = 4096, seed: int = 0
    ) -> None:
        self.n, self.length, self.states, self.features = n, length, states, features
        self.batch_size, self.seed = batch_size, seed
        generator = torch.Generator().manual_seed(seed)
        self.weights = torch.randn(features, states, generator=generator) / features**0.5

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, self.n, self.batch_size):
            size = min(self.batch_size, self.n - start)
            generator = torch.Generator().manual_seed(1_000_003 * (self.seed + 1) + start)
            x = torch.randn(size, self.length, self.features, generator=generator)
            noise = torch.randn(size, self.length, self.states, generator=generator)
            y = (x @ self.weights + 0.3 * noise).argmax(2)
            index = torch.arange(start, start + size)
            yield Batch(x, y, index, torch.full((size,), self.length))

    def problem(self) -> Problem:
        """For a loop that keeps what it needs."""
        return Problem(self, self.n, self.features, self.states)

    def dataset(self) -> PaddedDataset:
        """All of them in memory, for a loop that draws single examples."""
        x = torch.empty(self.n, self.length, self.features)
        y = torch.empty(self.n, self.length, dtype=torch.int64)
        for batch in self:
            x[batch.index], y[batch.index] = batch.x, batch.y
        return PaddedDataset(x, y)
