"""Short words that train in no time under a Trainer, by every module of the package."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

L = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import Callback  # noqa: E402

from cases.problem_data import with_solver  # noqa: E402
from torchssvm import Batch, GapBatchSampler, LinearChain  # noqa: E402
from torchssvm.lightning import FactorwiseSVM, StructuredSVM  # noqa: E402

N = 12


class Words:
    """Short chains of 3 states whose features say the state, with noise."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(1)
        self.y = torch.randint(3, (N, 4), generator=random)
        self.x = nn.functional.one_hot(self.y, 3) + 0.4 * torch.randn(N, 4, 3, generator=random)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> int:
        return i

    def collate(self, items: list[int]) -> Batch:
        index = torch.tensor(items)
        return Batch(self.x[index], self.y[index], index, torch.full((len(items),), 4))

    def everything(self) -> DataLoader:
        return DataLoader(self, batch_size=N, collate_fn=self.collate)

    def training(self, **options) -> DataLoader:
        order = torch.Generator().manual_seed(2)
        return DataLoader(self, batch_size=3, collate_fn=self.collate, shuffle=True, generator=order, **options)

    def by_gaps(self) -> DataLoader:
        return DataLoader(
            self, batch_sampler=GapBatchSampler(num_examples=N, batch_size=3, seed=3), collate_fn=self.collate
        )


def trainer(*callbacks: Callback, **options) -> L.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 7}
    return L.Trainer(callbacks=list(callbacks), accelerator="cpu", **(quiet | options))


def svm(compiled: bool | None = False, **rules) -> StructuredSVM:
    return StructuredSVM(LinearChain(3, 3), lam=0.1, **with_solver(compiled=compiled, **rules))


MODELS = {"torch": svm, "compiled": lambda: svm(None), "factorwise": lambda: FactorwiseSVM(LinearChain(3, 3), lam=0.1)}


class Watch(Callback):
    """What a callback finds at the end of every epoch."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})
