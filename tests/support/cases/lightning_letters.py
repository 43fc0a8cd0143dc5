"""Words of handwritten letters under a Trainer, some with features that are trained."""

from __future__ import annotations

import pytest
from torch import nn
from torch.utils.data import DataLoader

L = pytest.importorskip("lightning")

from cases.problem_data import with_solver  # noqa: E402
from torchssvm import GapBatchSampler, LinearChain  # noqa: E402
from torchssvm.datasets import OCR, PaddedDataset  # noqa: E402
from torchssvm.lightning import StructuredSVM  # noqa: E402

WORDS = 30


def some_words() -> PaddedDataset:
    ocr = OCR()
    return PaddedDataset(ocr.x[:WORDS], ocr.y[:WORDS], ocr.lengths[:WORDS])


def loader(words, workers: int = 0, **options) -> DataLoader:
    sampler = GapBatchSampler(num_examples=len(words), batch_size=3, chunk=4)
    return DataLoader(words, batch_sampler=sampler, collate_fn=words.collate, num_workers=workers, **options)


def everything(words) -> DataLoader:
    return DataLoader(words, batch_size=16, collate_fn=words.collate)


def chain(lam: float = 0.1, **options) -> StructuredSVM:
    return StructuredSVM(LinearChain(128, 26), lam=lam, **with_solver(**options))


def trainer(*callbacks, **options) -> L.Trainer:
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(callbacks=list(callbacks), **(quiet | options))


class Features(nn.Module):
    """With everything that may change unasked: batch statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(128, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, x):
        return self.network(x.flatten(0, 1)).view(*x.shape[:2], 12)
