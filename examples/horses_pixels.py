"""Training a small network on the pixels of horses by cross-entropy, and what it is worth without a graph."""

from __future__ import annotations

import argparse
import time
from typing import Any

import lightning as L
import torch
from common import trainer_flags
from horses_common import Result
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

from torchssvm.datasets import SuperpixelGraphs, segmentation_scores
from torchssvm.models import ForegroundClassifier, PixelFeatures

SIZE = (128, 160)  # of the images that the network sees
BATCH_SIZE = 8


class OnPixels(L.LightningModule):
    """Cross-entropy of the pixels and the Dice loss of the images, on images that are moved about and recoloured."""

    def __init__(self, classifier: ForegroundClassifier) -> None:
        super().__init__()
        self.classifier = classifier

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of some images."""
        image, mask = augmented(*batch)
        logits = self.classifier(image)
        found = logits.sigmoid()
        dice = 1 - (2 * (found * mask).sum((1, 2)) + 1) / (found.sum((1, 2)) + mask.sum((1, 2)) + 1)
        loss = functional.binary_cross_entropy_with_logits(logits, mask) + 0.5 * dice.mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW, with one rise and fall of the learning rate."""
        optimizer = torch.optim.AdamW(self.parameters(), weight_decay=0.05)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def augmented(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Images ``[B, 3, H, W]`` and masks ``[B, H, W]`` turned, scaled, shifted, mirrored; and images recoloured."""
    size, ratio = len(image), image.shape[2] / image.shape[3]

    def draw(low: float, high: float, *shape: int) -> Tensor:
        return torch.empty(size, *shape, device=image.device).uniform_(low, high)

    angle, scale, stretch = draw(-0.2, 0.2), draw(-0.3, 0.25).exp(), draw(-0.12, 0.12).exp()
    mirror = torch.where(draw(0, 1) < 0.5, -1.0, 1.0)
    rows = [
        torch.stack([angle.cos() * scale * mirror * stretch, -angle.sin() * scale * ratio, draw(-0.15, 0.15)], 1),
        torch.stack([angle.sin() * scale * mirror / ratio, angle.cos() * scale / stretch, draw(-0.15, 0.15)], 1),
    ]
    together = torch.cat([image, mask.unsqueeze(1)], 1)
    grid = functional.affine_grid(torch.stack(rows, 1), list(together.shape), align_corners=False)
    together = functional.grid_sample(together, grid, padding_mode="reflection", align_corners=False)
    image, mask = together[:, :3], together[:, 3]
    grey = (draw(0, 1, 1, 1, 1) < 0.2).to(image.dtype)
    image = (1 - grey) * image + grey * image.mean(1, keepdim=True)
    contrast, light, tint = draw(0.6, 1.4, 1, 1, 1), draw(-0.2, 0.2, 1, 1, 1), draw(-0.1, 0.1, 3, 1, 1)
    return ((image - 0.5) * contrast + 0.5 + light + tint).clamp(0, 1), mask


def resized(images: SuperpixelGraphs) -> TensorDataset:
    """Images and masks of one size, ``SIZE``; masks have shares of foreground, from 0 to 1."""

    def small(x: Tensor) -> Tensor:
        return functional.interpolate(x.unsqueeze(0), SIZE, mode="bilinear", antialias=True)[0]

    masks = (images.mask(i).to(torch.float32).unsqueeze(0) for i in range(len(images)))
    return TensorDataset(
        torch.stack([small(images.image(i)) for i in range(len(images))]), torch.cat([small(mask) for mask in masks])
    )


@torch.no_grad()
def foregrounds(classifier: ForegroundClassifier, images: SuperpixelGraphs) -> list[Tensor]:
    """The pixels of every image with a positive logit, at the image's own size."""
    classifier.eval()
    at = classifier.output.weight.device
    return [(classifier(images.image(i).unsqueeze(0).to(at))[0] > 0).cpu() for i in range(len(images))]


def train_on_pixels(
    small: TensorDataset | Subset, epochs: int, args: argparse.Namespace
) -> tuple[ForegroundClassifier, float]:
    """A network that was trained on these images, see :func:`resized`, and the CPU seconds that it took."""
    classifier = ForegroundClassifier(PixelFeatures(size=SIZE))
    start = time.process_time()
    loader = DataLoader(small, BATCH_SIZE, shuffle=True, drop_last=len(small) >= BATCH_SIZE)
    trainer = L.Trainer(max_epochs=epochs, log_every_n_steps=1, **trainer_flags(args))
    trainer.fit(OnPixels(classifier), loader)
    return classifier, time.process_time() - start


def pixel_result(classifier: ForegroundClassifier, test: SuperpixelGraphs, seconds: float, epochs: int) -> Result:
    """What the network does by itself."""
    found = foregrounds(classifier, test)
    scores = segmentation_scores(found, [test.mask(i) for i in range(len(test))])
    return Result(scores, found, seconds, {"epochs": epochs})
