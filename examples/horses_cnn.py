"""Horses with learned features: a small U-Net below the graph cuts.

The U-Net is trained on pixels by cross-entropy, pooled over superpixels, smaller ones than in horses.py, and frozen;
the graph cuts on top of it are trained to a certified duality gap. With --joint EPOCHS, U-Net and graph cuts are first
trained together, on the structured hinge. The loss is the share of the pixels that are wrong.

python examples/horses_cnn.py --lam 100
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from torchssvm import LinearGraph, Solver
from torchssvm.datasets import (
    GapDataModule,
    GraphSettings,
    HorseSegmentation,
    PixelSegmentation,
    PrecomputedGraphs,
    segmentation_scores,
)
from torchssvm.datasets.images.segmentation_augmentation import random_views, resized
from torchssvm.lightning import DualityGap, JointTraining, Report, StructuredSVM
from torchssvm.models import ForegroundClassifier, PixelFeatures, RegionGraphs

SIZE = (128, 160)  # of the images that the network sees
ADAMW = partial(torch.optim.AdamW, weight_decay=0.05)


class OnPixels(L.LightningModule):
    """Cross-entropy of the pixels and the Dice loss of the images, on random views of them."""

    def __init__(self, features: PixelFeatures) -> None:
        super().__init__()
        self.classifier = ForegroundClassifier(features)

    def training_step(self, batch, batch_idx):
        """The loss of some images."""
        image, mask = random_views(*batch)
        logits = self.classifier(image)
        predicted = logits.sigmoid()
        dice = 1 - (2 * (predicted * mask).sum((1, 2)) + 1) / (predicted.sum((1, 2)) + mask.sum((1, 2)) + 1)
        return functional.binary_cross_entropy_with_logits(logits, mask) + 0.5 * dice.mean()

    def configure_optimizers(self):
        """AdamW, with one rise and fall of the learning rate."""
        optimizer = torch.optim.AdamW(self.parameters(), weight_decay=0.05)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(
    lam: PositiveFloat = 100.0,
    gap: PositiveFloat = 0.003,
    max_passes: PositiveFloat = 500.0,
    batch_size: PositiveInt = 4,
    epochs: PositiveInt = 60,
    joint: NonNegativeInt = 0,
    segments: PositiveInt = 1000,
    data: str | None = None,
    num_train: PositiveInt = 200,
    workers: NonNegativeInt = 0,
    seed: int = 0,
    report: Path = Path("runs/horses_cnn"),
) -> Report:
    """Train a U-Net, and graph cuts on top of it to a certified gap.

    Args:
        lam: Regularisation.
        gap: Stop at this certified gap.
        max_passes: Or after so many passes.
        batch_size: Images of a step.
        epochs: Of the U-Net on pixels.
        joint: Epochs of joint training before the U-Net is frozen.
        segments: Superpixels to aim at.
        data: Folder of the images; by default in TORCHSSVM_DATA.
        num_train: Images to train on, the first.
        workers: Processes that make superpixels, once.
        seed: Of everything.
        report: Folder of report.json and the picture.
    """
    L.seed_everything(seed)
    # Superpixels that keep to the edges in the image; of features as few as there can be, since none is used.
    small = GraphSettings(segments, compactness=10.0, gradient_words=1, colour_words=1, grid=1, stride=8, samples=1000)
    options: dict[str, Any] = {"num_train": num_train, "settings": small, "balanced": False, "workers": workers}
    train, test = (HorseSegmentation(split, data, **options) for split in ("train", "test"))
    loading = {"batch_size": batch_size, "seed": seed, "evaluation_size": 16}
    quiet: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}

    pixels = PixelFeatures(size=SIZE)
    images = DataLoader(TensorDataset(*resized(train, SIZE)), 8, shuffle=True, drop_last=len(train) >= 8)
    L.Trainer(max_epochs=epochs, **quiet).fit(module := OnPixels(pixels), images)
    module.eval()
    masks = [(module.classifier(test.image(i).unsqueeze(0))[0] > 0).detach() for i in range(len(test))]

    regions, bounds = RegionGraphs(pixels), {"pairwise": (0.0, None)}
    if joint:
        head = LinearGraph(regions.in_features, regions.edge_features)
        recipe = JointTraining(joint, lr=1e-4, head_lr=1e-2, optimizer=ADAMW)
        together = StructuredSVM(head, lam, regions, joint=recipe, solver=Solver(bounds=bounds))
        pairs = GapDataModule.from_datasets(PixelSegmentation(train), **loading)
        L.Trainer(max_epochs=joint + 1, **quiet).fit(together, pairs)  # the head is solved below, on kept features
        regions.eval()

    torch.set_num_threads(1)  # a step is too short to be shared between cores
    graphs, tests = (PrecomputedGraphs(PixelSegmentation(images), regions) for images in (train, test))
    loaders = GapDataModule.from_datasets(graphs, test_dataset=tests, **loading)
    head = LinearGraph(graphs.in_features, graphs.edge_features)
    model = StructuredSVM(head, lam, solver=Solver(bounds=bounds))
    result = Report(report, "horses, graph cuts on a U-Net" + (" (trained jointly)" if joint else ""))
    callbacks = [DualityGap(gap, every_n_epochs=5, max_passes=max_passes), result]
    quiet |= {"limit_val_batches": 0}
    L.Trainer(max_epochs=math.ceil(max_passes), callbacks=callbacks, **quiet).fit(model, loaders)
    labels = [row for batch in loaders.test_dataloader() for row in model.decode(batch.x, batch.lengths).labels]
    print(f"test images, in pixels: {test.scores(labels)}")
    print(f"U-Net on pixels alone:  {segmentation_scores(masks, [test.mask(i) for i in range(len(test))])}")
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
