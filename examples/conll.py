"""Text chunking (CoNLL-2000) under a Lightning Trainer: a chain with 1.7 million weights, to a certified duality gap.

python examples/conll.py --lam 0.001 --gap 0.05

The first run reads conll2000/{train,test}.txt.gz from the folder TORCHSSVM_DATA or downloads them. The choice of lam on
held-out sentences, and CRFsuite on the same attributes: python benchmarks/run.py conll
"""

import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm.datasets import CoNLL2000Data, chunk_scores
from torchssvm.datasets.text.chunking_drawing import Tagged, draw_chunks
from torchssvm.lightning import DualityGap, Report, StructuredSVM
from torchssvm.models import chunking_chain


def main(
    lam: PositiveFloat = 0.001,  # the best F1 on a tenth of the training sentences
    gap: PositiveFloat = 0.05,
    max_passes: PositiveFloat = 500.0,
    batch_size: PositiveInt = 64,
    min_count: PositiveInt = 3,
    seed: int = 0,
    accelerator: str = "cpu",
    report: Path = Path("runs/conll"),
) -> Report:
    """Train a chain on attributes of words to a certified gap, and score the chunks it finds.

    Args:
        lam: Regularisation, of a loss that counts wrong tags.
        gap: Stop at this certified gap.
        max_passes: Or after so many passes.
        batch_size: Sentences of a step.
        min_count: How often an attribute must occur in training.
        seed: Runs with the same seed are the same.
        accelerator: cpu or cuda.
        report: Folder of report.json and the picture.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    L.seed_everything(seed)
    data = CoNLL2000Data(batch_size, min_count, seed=seed)
    model = StructuredSVM(chunking_chain(data.train.in_features), lam)

    def draw(figure: Any, batch: Any, labelings: torch.Tensor) -> None:
        tags = data.test.tags_of(labelings, batch.lengths)
        tagged = [Tagged(data.test.words(i), data.test.tags(i), tags[i]) for i in range(len(tags))]
        fitting = [sentence for sentence in tagged if 12 <= len(sentence.words) <= 24]
        draw_chunks(figure, sorted(fitting, key=lambda one: one.true == one.predicted)[:4])

    result = Report(report, "CoNLL-2000, sparse chain", draw)
    trainer = L.Trainer(
        accelerator=accelerator,
        max_epochs=math.ceil(20 * max_passes),  # most visits are answered by the cache
        callbacks=[DualityGap(gap, max_passes=max_passes), result],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, data)

    batches = data.test_dataloader()
    predicted = [tags for b in batches for tags in data.test.tags_of(model.decode(b.x, b.lengths), b.lengths)]
    print(
        f"\nchunks of the test sentences\n{chunk_scores([data.test.tags(i) for i in range(len(data.test))], predicted)}"
    )
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
