"""Handwritten words with learned features: a CNN below the chain.

The CNN is pretrained letter by letter with cross-entropy, and frozen; the chain on top of it is trained to a certified
duality gap. With --joint, CNN and chain are first trained together for a while, on the structured hinge.

python examples/ocr_cnn.py --size large --lam 0.001 --gap 0.05
"""

import contextlib
import math
import time

import lightning as L
import torch
from common import count, finish, parse, parser, trainer_flags
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torchssvm import GapBatchSampler
from torchssvm.datasets import OCR, PaddedDataset, PrecomputedFeatures
from torchssvm.lightning import Alternate, DualityGap, StructuredSVM
from torchssvm.models import LetterClassifier, LetterFeatures, ocr_chain

PRETRAINING_EPOCHS = {"small": 20, "large": 5}
ALTERNATE = Alternate(features=1, head=4)  # epochs of a round of joint training


class Pretraining(L.LightningModule):
    """Cross-entropy on single letters."""

    def __init__(self, features: LetterFeatures) -> None:
        super().__init__()
        self.classifier = LetterClassifier(features)

    def training_step(self, batch, batch_idx):
        """The loss of some letters."""
        letters, labels = batch
        loss = nn.functional.cross_entropy(self.classifier(letters.unsqueeze(1)).squeeze(1), labels)
        self.log("cross_entropy", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        """AdamW, with one rise and fall of the learning rate."""
        optimizer = torch.optim.AdamW(self.parameters(), weight_decay=0.01)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def letters_of(words: OCR) -> DataLoader:
    """The letters of all words, one by one, in random order."""
    real = words.y >= 0
    return DataLoader(TensorDataset(words.x[real], words.y[real]), batch_size=128, shuffle=True)


def by_gap(dataset: PaddedDataset, batch_size: int, seed: int) -> DataLoader:
    """Batches drawn in proportion to the gaps; the sampler learns of the dual when the fit begins."""
    sampler = GapBatchSampler(num_examples=len(dataset), batch_size=batch_size, seed=seed)
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate)


def main() -> None:
    flags = parser(__doc__, report="runs/ocr_cnn")
    flags.add_argument("--joint", action="store_true", help="train CNN and chain together before the CNN is frozen")
    flags.add_argument("--pretraining", type=count, metavar="EPOCHS", help="default: 20, or 5 with --size large")
    flags.add_argument("--rounds", type=count, default=4, help="of joint training (default: %(default)s)")
    args = parse(flags)
    L.seed_everything(args.seed)
    train, test = OCR("train", args.size), OCR("test", args.size)

    cnn = LetterFeatures()
    epochs = args.pretraining or PRETRAINING_EPOCHS[args.size]
    L.Trainer(max_epochs=epochs, **trainer_flags(args)).fit(Pretraining(cnn), letters_of(train))

    if args.joint:
        together = StructuredSVM(
            ocr_chain(cnn.width),
            lam=args.lam,
            features=cnn,
            features_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.01),
            joint=ALTERNATE,
        )
        epochs = args.rounds * (ALTERNATE.features + ALTERNATE.head)
        L.Trainer(max_epochs=epochs, **trainer_flags(args)).fit(together, by_gap(train, args.batch_size, args.seed))

    cnn.to(args.device)
    train, test = PrecomputedFeatures(train, cnn), PrecomputedFeatures(test, cnn)
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    model = StructuredSVM(ocr_chain(cnn.width), lam=args.lam)
    gap = DualityGap(tolerance=args.gap, every_n_epochs=10, max_passes=args.max_passes)
    trainer = L.Trainer(max_epochs=math.ceil(args.max_passes), callbacks=[gap], **trainer_flags(args))
    start = time.perf_counter()
    with contextlib.suppress(SystemExit):  # what Lightning makes of Ctrl-C
        trainer.fit(model, by_gap(train, args.batch_size, args.seed))

    task = "OCR, chain on a CNN" + (" (trained jointly)" if args.joint else "")
    finish(args, task, model.head, model.dual, gap.history, gap.stopped_because, start, train=train, test=test)


if __name__ == "__main__":
    main()
