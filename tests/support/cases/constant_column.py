"""Points of three classes with a column that is the same for all."""

from __future__ import annotations

import torch

from torchssvm import Batch


class Rows:
    """``x`` ``[n, 6]``, whose last column is ``value``, and ``y`` ``[n]``."""

    def __init__(self, value: float, n: int = 60) -> None:
        x = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))
        self.x, self.y = torch.cat([x, torch.full((n, 1), value)], 1), x[:, :3].argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> int:
        return i

    def collate(self, index: list[int]) -> Batch:
        rows = torch.tensor(index)
        return Batch(self.x[rows], self.y[rows], rows)
