"""Handwritten words with learned features: a CNN below the chain.

The CNN is pretrained letter by letter with cross-entropy, and frozen; the chain on top of it is trained to a certified
duality gap. With --joint EPOCHS, CNN and chain are first trained together, by softmax-margin.

python examples/ocr_cnn.py --size large --lam 0.001 --gap 0.05
"""

import math
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torchssvm import Relative
from torchssvm.datasets import OCR, GapDataModule, PrecomputedFeatures
from torchssvm.lightning import DualityGap, JointTraining, Report, StructuredSVM
from torchssvm.models import LetterClassifier, LetterFeatures, ocr_chain

ADAMW = partial(torch.optim.AdamW, weight_decay=0.01)


class Pretraining(L.LightningModule):
    """Cross-entropy on single letters."""

    def __init__(self, features: LetterFeatures) -> None:
        super().__init__()
        self.classifier = LetterClassifier(features)

    def training_step(self, batch, batch_idx):
        """The loss of some letters."""
        letters, labels = batch
        return nn.functional.cross_entropy(self.classifier(letters.unsqueeze(1)).squeeze(1), labels)

    def configure_optimizers(self):
        """AdamW, with one rise and fall of the learning rate."""
        optimizer = torch.optim.AdamW(self.parameters(), weight_decay=0.01)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(
    size: Literal["small", "large"] = "small",
    lam: PositiveFloat | None = None,
    gap: PositiveFloat | None = None,
    max_passes: PositiveFloat = 5000.0,
    batch_size: PositiveInt = 32,
    pretraining: PositiveInt = 20,
    joint: NonNegativeInt = 0,
    seed: int = 0,
    accelerator: str = "cpu",
    report: Path = Path("runs/ocr_cnn"),
) -> Report:
    """Train a CNN, and a chain on top of it to a certified gap.

    Args:
        size: Training words: 626 or 6251.
        lam: Regularisation; by default 1/n.
        gap: Stop at this certified gap; by default at 1 % of the primal.
        max_passes: Or after so many passes.
        batch_size: Words of a step.
        pretraining: Epochs of the CNN.
        joint: Epochs of CNN and chain together, before the CNN is frozen.
        seed: Of everything.
        accelerator: cpu or cuda.
        report: Folder of report.json and the picture.
    """
    L.seed_everything(seed)
    train, test = OCR("train", size), OCR("test", size)
    lam = lam or 1.0 / len(train)
    options: dict[str, Any] = {"accelerator": accelerator, "logger": False, "enable_checkpointing": False}
    cnn, real = LetterFeatures(), train.y >= 0
    letters = DataLoader(TensorDataset(train.x[real], train.y[real]), batch_size=128, shuffle=True)
    L.Trainer(max_epochs=pretraining, **options).fit(Pretraining(cnn), letters)
    options["limit_val_batches"] = 0
    if joint:
        together = JointTraining(joint, lr=1e-3, head_lr=1e-2, optimizer=ADAMW)
        model = StructuredSVM(ocr_chain(cnn.width), lam, cnn, joint=together)
    else:
        model = StructuredSVM(ocr_chain(cnn.width), lam)
        train, test = (PrecomputedFeatures(words, cnn) for words in (train, test))
        torch.set_num_threads(1)  # a step is too short to be shared between cores
    data = GapDataModule.from_datasets(train, test_dataset=test, batch_size=batch_size, seed=seed)
    result = Report(report, "OCR, chain on a CNN" + (" (trained jointly)" if joint else ""))
    callbacks = [DualityGap(gap or Relative(0.01), max_passes=max_passes), result]
    epochs = joint + math.ceil(20 * max_passes)  # most visits are answered by the cache
    L.Trainer(max_epochs=epochs, callbacks=callbacks, **options).fit(model, data)
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
