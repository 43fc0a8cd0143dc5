"""Word alignment of French and English sentences: a bipartite matching, trained to a certified duality gap.

Trains on 100 sentence pairs and tests on 347, as Taskar et al. (2006). Prints its alignment error rate beside two rules
on the Dice coefficient, whose thresholds are chosen on the training sentences.

python examples/alignment.py --lam 1 --gap 0.001
"""

import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm.datasets import WordAlignmentData, alignment_errors
from torchssvm.datasets.text.alignment_drawing import draw_alignments
from torchssvm.lightning import DualityGap, Report, StructuredSVM
from torchssvm.models import align, alignment_matching, best_threshold, matching_links, threshold_links


def main(
    lam: PositiveFloat = 1.0,  # the best error rate on the 37 trial sentences, of 0.1, 0.3, 1, 3 and 10
    gap: PositiveFloat = 1e-3,
    max_passes: PositiveFloat = 1000.0,
    batch_size: PositiveInt = 64,
    seed: int = 0,
    accelerator: str = "cpu",
    data: str | None = None,
    report: Path = Path("runs/alignment"),
) -> Report:
    """Train a matching of words to a certified gap, and compare its alignments with two rules.

    Args:
        lam: Regularisation.
        gap: Stop at this certified gap.
        max_passes: Or after so many passes.
        batch_size: Sentence pairs of a step.
        seed: Runs with the same seed are the same.
        accelerator: cpu or cuda.
        data: Folder that hansards/ lies in; by default TORCHSSVM_DATA.
        report: Folder of report.json and the picture.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    L.seed_everything(seed)
    pairs = WordAlignmentData(batch_size, data, seed=seed)
    train, test = pairs.train, pairs.test
    model = StructuredSVM(alignment_matching(train.in_features), lam)

    def draw(figure: Any, batch: Any, labelings: Any) -> None:
        links = align(model.head, test)
        shown = [i for i, pair in enumerate(test.pairs) if 6 <= len(pair.french) <= 14 >= len(pair.english)][:3]
        draw_alignments(figure, [test.pairs[i] for i in shown], [links[i] for i in shown])

    result = Report(report, "word alignment, matching", draw)
    trainer = L.Trainer(
        accelerator=accelerator,
        max_epochs=math.ceil(20 * max_passes),  # most visits are answered by the cache
        callbacks=[DualityGap(gap, max_passes=max_passes), result],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, pairs)

    print(f"\n{len(test)} test sentences      AER  precision  recall")
    links_of = {"learned matching": align(model.head, test)}
    for name, rule in (("Dice matching", matching_links), ("Dice threshold", threshold_links)):
        error = lambda links: alignment_errors(links, train.pairs).error_rate  # noqa: E731
        links_of[name] = rule(test.feature("dice"), best_threshold(rule, train.feature("dice"), error))
    for name, links in links_of.items():
        errors = alignment_errors(links, test.pairs)
        print(f"{name:20} {errors.error_rate:8.4f} {errors.precision:10.4f} {errors.recall:7.4f}")
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
