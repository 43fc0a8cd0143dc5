"""Handwritten words under a Lightning Trainer: a linear chain on pixels, trained to a certified duality gap.

python examples/ocr.py --size small --lam 0.01 --gap 0.01
"""

import contextlib
import math
import time

import lightning as L
import torch
from common import ORDERS, add_rules, finish, parse, parser, rules, trainer_flags

from torchssvm.datasets import OCRData
from torchssvm.lightning import DualityGap, StructuredSVM
from torchssvm.models import ocr_chain


def main() -> None:
    args = parse(add_rules(parser(__doc__, report="runs/ocr")))
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    L.seed_everything(args.seed)

    data = OCRData(args.size, batch_size=args.batch_size, seed=args.seed, order=ORDERS[args.order]())
    direction, oracle, storage = rules(args)
    model = StructuredSVM(ocr_chain(), lam=args.lam, direction=direction, oracle=oracle, storage=storage)
    gap = DualityGap(tolerance=args.gap, every_n_epochs=10, max_passes=args.max_passes)
    trainer = L.Trainer(max_epochs=math.ceil(args.max_passes), callbacks=[gap], **trainer_flags(args))
    start = time.perf_counter()
    with contextlib.suppress(SystemExit):  # what Lightning makes of Ctrl-C
        trainer.fit(model, data)

    task = "OCR, chain on pixels"
    finish(
        args, task, model.head, model.dual, gap.history, gap.stopped_because, start, train=data.train, test=data.test
    )


if __name__ == "__main__":
    main()
