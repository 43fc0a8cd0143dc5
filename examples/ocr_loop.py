"""Handwritten words in a plain torch loop: a linear chain on pixels, trained to a certified duality gap.

python examples/ocr_loop.py --size small --lam 0.01 --gap 0.01
"""

import time

import torch
from common import ORDERS, add_rules, finish, in_order, parse, parser, rules, show_progress
from torch.utils.data import DataLoader

from torchssvm import BCFW, BlockGap, DualState, GapBatchSampler, certify
from torchssvm.batch import to_device
from torchssvm.datasets import OCR
from torchssvm.models import ocr_chain
from torchssvm.report import Entry

EPOCHS = 10  # between exact passes


def main() -> None:
    args = parse(add_rules(parser(__doc__, report="runs/ocr_loop")))
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    torch.manual_seed(args.seed)

    train, test = OCR("train", args.size), OCR("test", args.size)
    head = ocr_chain().to(args.device)
    direction, oracle, storage = rules(args)
    dual = DualState.for_head(head, num_examples=len(train), lam=args.lam, storage=storage)
    loss = BlockGap(dual, direction, oracle=oracle)
    optimizer = BCFW(head.parameters(), dual)
    sampler = GapBatchSampler(dual, batch_size=args.batch_size, order=ORDERS[args.order](), seed=args.seed)
    loader = DataLoader(train, batch_sampler=sampler, collate_fn=train.collate)

    history: list[Entry] = []
    stopped_because = ""
    start = time.perf_counter()
    try:
        while not stopped_because:
            for _ in range(EPOCHS):
                for batch in loader:
                    batch = to_device(batch, args.device)
                    optimizer.zero_grad()
                    loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
                    optimizer.step()
                show_progress(dual, history[-1].certificate.gap if history else 1.0, args)
                if dual.passes >= args.max_passes:
                    break
            certificate = certify(head, dual, in_order(train))
            history.append(Entry(certificate, time.perf_counter() - start))
            show_progress(dual, certificate.gap, args)
            if certificate.gap <= args.gap:
                stopped_because = f"certified gap {certificate.gap:.6g} <= {args.gap:g}"
            elif dual.passes >= args.max_passes:
                stopped_because = (
                    f"{args.max_passes:g} passes reached, certified gap {certificate.gap:.6g} > {args.gap:g}"
                )
    except KeyboardInterrupt:
        stopped_because = "interrupted: KeyboardInterrupt"

    task = "OCR, chain on pixels"
    finish(args, task, head, dual, history, stopped_because, start, train=train, test=test)


if __name__ == "__main__":
    main()
