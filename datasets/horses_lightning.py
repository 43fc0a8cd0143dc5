"""Images of horses as a LightningDataModule. Only this file imports Lightning for them."""

from __future__ import annotations

import os
from typing import Literal

from torch.utils.data import DataLoader

from torchssvm.sampling import GapBatchSampler, Order

from .horses import HorseSegmentation
from .pixel_segmentation import PixelSegmentation
from .region_features import GraphSettings
from .superpixel_graphs import SuperpixelGraphs

try:
    import lightning as L
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "lightning":
        raise
    raise ImportError("HorseData needs Lightning: pip install 'torchssvm[lightning]'") from error


class HorseData(L.LightningDataModule):
    """Trains on one split of :class:`torchssvm.datasets.HorseSegmentation`; validates, tests and predicts on the other.

    Args:
        batch_size: Images per training step; evaluation, which keeps nothing, takes at least 16 at a time.
        root: The folder of the images, see :class:`HorseSegmentation`, as for what follows.
        images: Subfolder of the images.
        masks: Subfolder of the masks.
        num_train: Images to train on, where there is no folder ``test``.
        size: HorseSeg's training set.
        settings: How graphs are made.
        balanced: Whether both classes cost the same in the loss.
        cache: Folder of the graphs.
        rebuild: Whether a cache that is stale or damaged is replaced.
        on_bad: ``"raise"`` or ``"skip"``, for images that cannot be used.
        empty_masks: Whether masks without foreground are usable.
        pixels: Whether batches have the pixels too: :class:`torchssvm.datasets.PixelSegmentation`.
        num_workers: Worker processes of each loader, and those that make the graphs, once.
        order: How training images are drawn; default: in proportion to their gaps. The sampler of the training loader
            must be bound to a dual, which ``StructuredSVM`` does.
        seed: Seed of the draws.
    """

    def __init__(
        self,
        batch_size: int = 4,
        root: str | os.PathLike[str] | None = None,
        images: str | None = None,
        masks: str | None = None,
        num_train: int = 200,
        size: Literal["small", "medium", "large"] | None = None,
        settings: GraphSettings | None = None,
        balanced: bool = True,
        cache: str | os.PathLike[str] | None = None,
        rebuild: bool = False,
        on_bad: Literal["raise", "skip"] = "raise",
        empty_masks: bool = False,
        pixels: bool = False,
        num_workers: int = 0,
        order: Order | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.root = root
        self.images = images
        self.masks = masks
        self.num_train = num_train
        self.size = size
        self.settings = settings
        self.balanced = balanced
        self.cache = cache
        self.rebuild = rebuild
        self.on_bad = on_bad
        self.empty_masks = empty_masks
        self.pixels = pixels
        self.num_workers = num_workers
        self.order = order
        self.seed = seed
        self._splits: dict[str, HorseSegmentation] = {}

    @property
    def train(self) -> HorseSegmentation:
        """The training images."""
        return self._split("train")

    @property
    def test(self) -> HorseSegmentation:
        """The test images."""
        return self._split("test")

    def prepare_data(self) -> None:
        """Makes the graphs, where they are not there."""
        self._split("train")

    def setup(self, stage: str | None = None) -> None:
        """Opens what the stage needs, once."""
        for name in ("train", "test") if stage in (None, "fit") else ("test",):
            self._split(name)

    def train_dataloader(self) -> DataLoader:
        """Batches in the order of ``order``."""
        dataset = self._shown(self.train)
        sampler = GapBatchSampler(
            num_examples=len(dataset), batch_size=self.batch_size, order=self.order, seed=self.seed
        )
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=dataset.collate,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )

    def val_dataloader(self) -> DataLoader:
        """The test images, one after another."""
        dataset = self._shown(self.test)
        return DataLoader(
            dataset,
            batch_size=max(self.batch_size, 16),
            shuffle=False,
            collate_fn=dataset.collate,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )

    def test_dataloader(self) -> DataLoader:
        """The test images, one after another."""
        return self.val_dataloader()

    def predict_dataloader(self) -> DataLoader:
        """The test images, one after another."""
        return self.val_dataloader()

    def _split(self, name: Literal["train", "test"]) -> HorseSegmentation:
        if name not in self._splits:
            self._splits[name] = HorseSegmentation(
                name,
                self.root,
                images=self.images,
                masks=self.masks,
                num_train=self.num_train,
                size=self.size,
                settings=self.settings,
                balanced=self.balanced,
                cache=self.cache,
                rebuild=self.rebuild,
                on_bad=self.on_bad,
                empty_masks=self.empty_masks,
                workers=self.num_workers,
            )
        return self._splits[name]

    def _shown(self, dataset: SuperpixelGraphs) -> SuperpixelGraphs | PixelSegmentation:
        return PixelSegmentation(dataset) if self.pixels else dataset
