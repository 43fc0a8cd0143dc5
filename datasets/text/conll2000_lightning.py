"""CoNLL-2000 as a LightningDataModule."""

from __future__ import annotations

import os

from torch.utils.data import DataLoader

from torchssvm.steps.orders import Order

from ..data_module import GapDataModule
from .chunking import ChunkingDataset
from .conll2000 import SPLITS, CoNLL2000, locate


class CoNLL2000Data(GapDataModule):
    """Trains on the training set of :class:`torchssvm.datasets.CoNLL2000`; tests and predicts on the test set.

    Validation is on the sentences that were held out of the training set, or on the test set where none were.

    Args:
        batch_size: Sentences per training batch.
        min_count: How often an attribute must occur in what is trained on.
        hold_out: Share of the training set, its end, to be held out.
        root: The folder that has ``conll2000``; None is ``TORCHSSVM_DATA`` and the cache.
        num_workers: Of every loader; batches are made by a few tensor operations, so that 0 is usually the fastest.
        order: Of the training batches; None is the default of ``GapBatchSampler``.
        seed: Of the training batches.
    """

    def __init__(
        self,
        batch_size: int = 64,
        min_count: int = 3,
        hold_out: float = 0.0,
        root: str | os.PathLike[str] | None = None,
        num_workers: int = 0,
        order: Order | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, num_workers, order, seed)
        if not 0.0 <= hold_out < 1.0:
            raise ValueError(f"hold_out={hold_out} must be a share of the training set, from 0 to below 1")
        self.min_count = min_count
        self.hold_out = hold_out
        self.root = root
        self.train: ChunkingDataset | None = None
        self.held_out: ChunkingDataset | None = None
        self.test: ChunkingDataset | None = None

    def prepare_data(self) -> None:
        """Downloads the files, where they are not there."""
        for split in SPLITS:
            locate(split, self.root)

    def setup(self, stage: str | None = None) -> None:
        """Reads the sentences, once; the training set at every stage, because the columns are its attributes."""
        if self.train is None:
            self.train = CoNLL2000("train", min_count=self.min_count, root=self.root)
            if self.hold_out:
                self.train, self.held_out = self.train.hold_out(self.hold_out)
        unread = ("fit", "validate") if self.hold_out else ("fit",)
        if self.test is None and stage not in unread:
            self.test = CoNLL2000("test", vocabulary=self.train.vocabulary, root=self.root)

    def train_dataloader(self) -> DataLoader:
        """Batches in the order of ``order``."""
        self.setup("fit")
        assert self.train is not None
        return self.sampled(self.train)

    def val_dataloader(self) -> DataLoader:
        """The sentences held out, or the test sentences, one after another."""
        self.setup("validate")
        return self.in_order(self.held_out or self.test)

    def test_dataloader(self) -> DataLoader:
        """The test sentences, one after another."""
        self.setup("test")
        return self.in_order(self.test)
