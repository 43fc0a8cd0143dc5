"""The OCR words as a LightningDataModule."""

from __future__ import annotations

from typing import Literal

from torch.utils.data import DataLoader

from torchssvm.core.arguments import check_whole
from torchssvm.steps.orders import Order

from ..data_module import GapDataModule
from .dataset import OCR


class OCRData(GapDataModule):
    """Trains on one split of :class:`torchssvm.datasets.OCR`; validates, tests and predicts on the other.

    Args:
        size: ``"small"`` or ``"large"``, the papers' sizes.
        batch_size: words per training step; evaluation, which keeps nothing, takes at least 256 at a time.
        fold: which of the ten folds stands alone.
        num_workers: worker processes of each loader.
        order: how training words are drawn; default: in proportion to their gaps. The sampler of the training
            loader must be bound to a dual, which ``StructuredSVM`` does.
        seed: seed of the draws.
    """

    def __init__(
        self,
        size: Literal["small", "large"] = "small",
        batch_size: int = 16,
        fold: int = 0,
        num_workers: int = 0,
        order: Order | None = None,
        seed: int = 0,
    ):
        super().__init__(batch_size, num_workers, order, seed)
        if size not in ("small", "large"):
            raise ValueError(f"size must be 'small' or 'large', not {size!r}")
        self.size = size
        self.fold = check_whole(fold, "fold", 0, most=9)
        self.train: OCR | None = None
        self.test: OCR | None = None

    def setup(self, stage: str | None = None) -> None:
        """Reads the words, once."""
        if self.train is None and stage in (None, "fit"):
            self.train = OCR("train", self.size, self.fold)
        if self.test is None:
            self.test = OCR("test", self.size, self.fold)

    def train_dataloader(self) -> DataLoader:
        """Batches in the order of ``order``."""
        self.setup("fit")
        assert self.train is not None
        return self.sampled(self.train)

    def val_dataloader(self) -> DataLoader:
        """The test words, one after another."""
        self.setup("validate")
        assert self.test is not None
        return self.in_order(self.test)

    def test_dataloader(self) -> DataLoader:
        """The test words, one after another."""
        return self.val_dataloader()
