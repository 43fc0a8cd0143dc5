"""Word alignment as a LightningDataModule."""

from __future__ import annotations

import os

from torch.utils.data import DataLoader

from torchssvm.steps.orders import Order

from ..data_module import GapDataModule
from .word_alignment import WordAlignment


class WordAlignmentData(GapDataModule):
    """Trains on the 100 training sentences of :class:`torchssvm.datasets.WordAlignment`; tests on the other 347.

    Args:
        batch_size: sentence pairs per training step; evaluation, which keeps nothing, takes at least 64 at a time.
        num_workers: worker processes of each loader.
        order: how training sentences are drawn; default: in proportion to their gaps. The sampler of the training
            loader must be bound to a dual, which ``StructuredSVM`` does.
        seed: seed of the draws.
        root: the folder that ``hansards`` lies in; None is what ``TORCHSSVM_DATA`` names, or the cache.
    """

    def __init__(
        self,
        batch_size: int = 4,
        num_workers: int = 0,
        order: Order | None = None,
        seed: int = 0,
        root: str | os.PathLike[str] | None = None,
    ):
        super().__init__(batch_size, num_workers, order, seed, evaluation_size=64)
        self.root = root
        self._splits: dict[str, WordAlignment] = {}

    @property
    def train(self) -> WordAlignment:
        """The first 100 annotated sentences."""
        return self._split("train")

    @property
    def dev(self) -> WordAlignment:
        """The 37 trial sentences."""
        return self._split("dev")

    @property
    def test(self) -> WordAlignment:
        """The other 347 sentences."""
        return self._split("test")

    def setup(self, stage: str | None = None) -> None:
        """Reads what the stage needs, once."""
        for name in {"fit": ("train", "dev"), "validate": ("dev",), None: ("train", "dev", "test")}.get(
            stage, ("test",)
        ):
            self._split(name)

    def train_dataloader(self) -> DataLoader:
        """Batches in the order of ``order``."""
        return self.sampled(self.train)

    def val_dataloader(self) -> DataLoader:
        """The trial sentences, one after another."""
        return self.in_order(self.dev)

    def test_dataloader(self) -> DataLoader:
        """The test sentences, one after another."""
        return self.in_order(self.test)

    def _split(self, name: str) -> WordAlignment:
        if name not in self._splits:
            known = next((split.features for split in self._splits.values()), None)
            self._splits[name] = WordAlignment(name, self.root, known)  # type: ignore[arg-type]
        return self._splits[name]
