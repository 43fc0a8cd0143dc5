"""The Leeds Sports Poses as a LightningDataModule."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.utils.data import DataLoader

from torchssvm.steps.orders import Order

from ..data_module import GapDataModule
from .lspet import LSPET
from .pose_targets import PoseTargets


class LSPETData(GapDataModule):
    """Trains on the training images of :class:`torchssvm.datasets.LSPET`; tests on the other 200.

    ``train``, ``held_out`` and ``test`` are :class:`torchssvm.datasets.PoseTargets`: batches have labelings as
    targets. ``images`` are the training images themselves, to make ``label`` of.

    Args:
        label: Joints on the grid ``[n, 14, 2]`` -> labelings ``[n, P, 4]``; see
            :class:`torchssvm.datasets.PoseTargets`.
        batch_size: Images per training step; evaluation, which keeps nothing, takes at least 16 at a time.
        size: ``"large"`` or ``"small"``, 800 or 100 images to train on.
        hold_out: Share of them, from their end, that is validated on and not trained on; with 0 it is the test images
            that are validated on.
        canvas: (H, W) in pixels.
        stride: Pixels of a place of the grid, a side.
        root: The folder that holds ``lspet``; None is ``TORCHSSVM_DATA`` or the cache.
        keep: Whether images stay in memory once they were read.
        num_workers: Worker processes of each loader.
        order: How training images are drawn; default: in proportion to their gaps. The sampler of the training loader
            must be bound to a dual, which ``StructuredSVM`` does.
        seed: Seed of the draws.

    Raises:
        ValueError: ``hold_out`` leaves no image on one of the sides, or is out of range.
    """

    def __init__(
        self,
        label: Callable[[Tensor], Tensor],
        batch_size: int = 8,
        size: Literal["small", "large"] = "large",
        hold_out: float = 0.0,
        canvas: tuple[int, int] = (192, 192),
        stride: int = 4,
        root: str | os.PathLike[str] | None = None,
        keep: bool = False,
        num_workers: int = 0,
        order: Order | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, num_workers, order, seed, evaluation_size=16)
        if not 0.0 <= hold_out < 1.0:
            raise ValueError(f"hold_out={hold_out} must be a share, at least 0 and below 1")
        self.label = label
        self.size = size
        self.hold_out = hold_out
        self.canvas = canvas
        self.stride = stride
        self.root = root
        self.keep = keep
        self._splits: dict[str, PoseTargets] = {}

    @property
    def train(self) -> PoseTargets:
        """The images that are trained on."""
        self.setup("fit")
        return self._splits["train"]

    @property
    def held_out(self) -> PoseTargets:
        """The images that are validated on."""
        self.setup("fit" if self.hold_out else "test")
        return self._splits["held_out" if self.hold_out else "test"]

    @property
    def test(self) -> PoseTargets:
        """The test images."""
        self.setup("test")
        return self._splits["test"]

    def setup(self, stage: str | None = None) -> None:
        """Reads what the stage needs, once."""
        training = stage in (None, "fit", "validate")
        if training and "train" not in self._splits:
            images = LSPET("train", self.size, canvas=self.canvas, root=self.root, keep=self.keep)
            first = len(images) - round(self.hold_out * len(images))
            if first < 1 or (self.hold_out and first == len(images)):
                raise ValueError(f"hold_out={self.hold_out} of {len(images)} images leaves {first} to train on")
            self._splits["train"] = PoseTargets(images, self.label, self.stride, range(first))
            if self.hold_out:
                self._splits["held_out"] = PoseTargets(images, self.label, self.stride, range(first, len(images)))
        if (not training or stage is None or not self.hold_out) and "test" not in self._splits:
            images = LSPET("test", canvas=self.canvas, root=self.root, keep=self.keep)
            self._splits["test"] = PoseTargets(images, self.label, self.stride)

    def train_dataloader(self) -> DataLoader:
        """Batches in the order of ``order``."""
        return self.sampled(self.train)

    def val_dataloader(self) -> DataLoader:
        """The images held out, or the test images, one after another."""
        return self.in_order(self.held_out)

    def test_dataloader(self) -> DataLoader:
        """The test images, one after another."""
        return self.in_order(self.test)
