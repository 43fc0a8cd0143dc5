"""Word alignment as a LightningDataModule."""

from __future__ import annotations

import os

from torch.utils.data import DataLoader

from torchssvm.sampling import GapBatchSampler, Order

from .word_alignment import WordAlignment

try:
    import lightning as L
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "lightning":
        raise
    raise ImportError("WordAlignmentData needs Lightning: pip install 'torchssvm[lightning]'") from error


class WordAlignmentData(L.LightningDataModule):
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
        super().__init__()
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.order = order
        self.seed = seed
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
        sampler = GapBatchSampler(
            num_examples=len(self.train), batch_size=self.batch_size, order=self.order, seed=self.seed
        )
        return DataLoader(
            self.train,
            batch_sampler=sampler,
            collate_fn=self.train.collate,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )

    def val_dataloader(self) -> DataLoader:
        """The trial sentences, one after another."""
        return self._in_order(self.dev)

    def test_dataloader(self) -> DataLoader:
        """The test sentences, one after another."""
        return self._in_order(self.test)

    def predict_dataloader(self) -> DataLoader:
        """The test sentences, one after another."""
        return self._in_order(self.test)

    def _split(self, name: str) -> WordAlignment:
        if name not in self._splits:
            known = next((split.features for split in self._splits.values()), None)
            self._splits[name] = WordAlignment(name, self.root, known)  # type: ignore[arg-type]
        return self._splits[name]

    def _in_order(self, dataset: WordAlignment) -> DataLoader:
        return DataLoader(
            dataset,
            batch_size=max(self.batch_size, 64),
            shuffle=False,
            collate_fn=dataset.collate,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )
