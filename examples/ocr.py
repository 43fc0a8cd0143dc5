"""Handwritten words under a Lightning Trainer: a linear chain on pixels, trained to a certified duality gap.

python examples/ocr.py --size small --lam 0.01 --gap 0.01

Directions, caches, orders and all options of the Trainer: torchssvm fit --config examples/ocr.yaml
"""

import math
from pathlib import Path
from typing import Literal

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm import Relative, guess_lam
from torchssvm.datasets import OCRData
from torchssvm.datasets.ocr.drawing import draw_words
from torchssvm.lightning import DualityGap, Report, StructuredSVM
from torchssvm.models import ocr_chain


def main(
    size: Literal["small", "large"] = "small",
    lam: PositiveFloat | None = None,
    gap: PositiveFloat = 0.05,
    max_passes: PositiveFloat = 5000.0,
    batch_size: PositiveInt = 32,
    seed: int = 0,
    accelerator: str = "cpu",
    report: Path = Path("runs/ocr"),
) -> Report:
    """Train a chain on handwritten words to a certified gap.

    Args:
        size: Training words: 626 or 6251.
        lam: Regularisation; by default guess_lam chooses it from features and losses.
        gap: Stop when the certified gap is at most this share of the primal.
        max_passes: Or after so many passes.
        batch_size: Words of a step.
        seed: Runs with the same seed are the same.
        accelerator: cpu or cuda.
        report: Folder of report.json and the picture.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    L.seed_everything(seed)
    data = OCRData(size, batch_size=batch_size, seed=seed)
    model = StructuredSVM(head := ocr_chain(), lam=lam or guess_lam(head, data.train))
    trainer = L.Trainer(
        accelerator=accelerator,
        max_epochs=math.ceil(20 * max_passes),  # most visits are answered by the cache
        callbacks=[
            DualityGap(Relative(gap), max_passes=max_passes),
            result := Report(report, "OCR, chain on pixels", draw_words),
        ],
        limit_val_batches=0,  # the test words wait until the end
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, data)
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
