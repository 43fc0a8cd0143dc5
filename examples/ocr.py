"""Handwritten words under a Lightning Trainer: a linear chain on pixels, trained to a certified duality gap.

python examples/ocr.py --size small --lam 0.01 --gap 0.01
"""

import lightning as L
from common import finish, parse, parser

from torchssvm.datasets import OCRData
from torchssvm.lightning import DualityGap, StructuredSVM
from torchssvm.models import ocr_chain


def main() -> None:
    args = parse(parser(__doc__, report="runs/ocr"))
    L.seed_everything(args.seed)

    data = OCRData(args.size, batch_size=args.batch_size, seed=args.seed)
    model = StructuredSVM(ocr_chain(), lam=args.lam)
    gap = DualityGap(tolerance=args.gap, every_n_epochs=10, max_passes=args.max_passes)
    trainer = L.Trainer(
        accelerator="cpu" if args.device == "cpu" else "gpu",
        devices=1 if args.device in ("cpu", "cuda") else [int(args.device.removeprefix("cuda:"))],
        max_epochs=-1,  # the gap decides
        limit_val_batches=0,  # the test words wait until the end
        callbacks=[gap],
        logger=False,
        enable_checkpointing=False,
    )
    try:
        trainer.fit(model, data)
    except SystemExit:  # what Lightning makes of Ctrl-C
        pass

    finish(
        args, "OCR, chain on pixels", model.head, model.dual, gap.history, gap.stopped_because, data.train, data.test
    )


if __name__ == "__main__":
    main()
