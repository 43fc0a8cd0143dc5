"""Multilabel data as a LightningDataModule."""

from __future__ import annotations

import os
from typing import Literal

from torch.utils.data import DataLoader

from torchssvm.steps.orders import Order

from ..data_module import GapDataModule
from .dataset import Multilabel, locate


class MultilabelData(GapDataModule):
    """Trains on the training set of a :class:`torchssvm.datasets.Multilabel`; everything else is on the test set.

    Args:
        dataset: ``"bibtex"``, ``"medical"`` or ``"scene"``.
        batch_size: Examples per training batch.
        unit_rows: Whether the features of every example are divided by their Euclidean norm.
        bias: Whether there is one more feature, always 1.
        dense: Whether ``x`` is a dense tensor.
        root: The folder that has ``multilabel``; None is ``TORCHSSVM_DATA`` and the cache.
        num_workers: Of every loader; batches are made by a few tensor operations, so that 0 is usually the fastest.
        order: Of the training batches; None is the default of ``GapBatchSampler``.
        seed: Of the training batches.
    """

    def __init__(
        self,
        dataset: Literal["bibtex", "medical", "scene"] = "bibtex",
        batch_size: int = 64,
        unit_rows: bool = True,
        bias: bool = True,
        dense: bool = False,
        root: str | os.PathLike[str] | None = None,
        num_workers: int = 0,
        order: Order | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, num_workers, order, seed)
        self.dataset = dataset
        self.unit_rows = unit_rows
        self.bias = bias
        self.dense = dense
        self.root = root
        self._splits: dict[str, Multilabel] = {}

    @property
    def train(self) -> Multilabel:
        """The training set, read when it is first asked for."""
        return self._split("train")

    @property
    def test(self) -> Multilabel:
        """The test set, likewise."""
        return self._split("test")

    def prepare_data(self) -> None:
        """Says which files are missing, if any."""
        for split in ("train", "test"):
            locate(self.dataset, split, self.root)

    def setup(self, stage: str | None = None) -> None:
        """Reads what the stage needs, once."""
        for split in ("train", "test") if stage in (None, "fit") else ("test",):
            self._split(split)

    def train_dataloader(self) -> DataLoader:
        """Batches in the order of ``order``."""
        return self.sampled(self.train)

    def val_dataloader(self) -> DataLoader:
        """The test examples, one after another."""
        return self.in_order(self.test)

    def test_dataloader(self) -> DataLoader:
        """The test examples, one after another."""
        return self.in_order(self.test)

    def _split(self, split: Literal["train", "test"]) -> Multilabel:
        if split not in self._splits:
            self._splits[split] = Multilabel(
                self.dataset, split, unit_rows=self.unit_rows, bias=self.bias, dense=self.dense, root=self.root
            )
        return self._splits[split]
