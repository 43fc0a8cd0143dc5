"""Images of horses as a LightningDataModule."""

from __future__ import annotations

import os
from typing import Literal

from torch.utils.data import DataLoader

from torchssvm.steps.orders import Order

from ..data_module import GapDataModule
from .horses import HorseSegmentation
from .pixel_segmentation import PixelSegmentation
from .region_features import GraphSettings
from .superpixel_graphs import SuperpixelGraphs


class HorseData(GapDataModule):
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
        super().__init__(batch_size, num_workers, order, seed, evaluation_size=16)
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
        return self.sampled(self._shown(self.train))

    def val_dataloader(self) -> DataLoader:
        """The test images, one after another."""
        return self.in_order(self._shown(self.test))

    def test_dataloader(self) -> DataLoader:
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
