"""Handwritten words in a plain torch loop: a linear chain on pixels, trained to a certified duality gap.

python examples/ocr_loop.py --size small --lam 0.01 --gap 0.01

It saves after every exact pass; --resume goes on from there, to the same bits.
"""

import dataclasses
import itertools
import time

import torch
from common import ORDERS, add_rules, finish, in_order, parse, parser, rules, show_progress
from torch.utils.data import DataLoader

from torchssvm import BCFW, BlockGap, Certificate, DualState, GapBatchSampler, certify, load_checkpoint, save_checkpoint
from torchssvm.core.batch import to_device
from torchssvm.datasets import OCR
from torchssvm.models import ocr_chain
from torchssvm.solvers.report import Entry

EPOCHS = 10  # between exact passes


def main() -> None:
    flags = add_rules(parser(__doc__, report="runs/ocr_loop"))
    flags.add_argument("--resume", action="store_true", help="go on from the checkpoint in the report's folder")
    args = parse(flags)
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
    checkpoint = args.report / "run.pt"
    if args.resume:
        saved = load_checkpoint(checkpoint, optimizer=optimizer, sampler=sampler)["history"]
        history = [Entry(Certificate(**certificate), seconds) for certificate, seconds in saved]
    stopped_because = ""
    start = time.perf_counter() - (history[-1].seconds if history else 0.0)
    try:
        for epoch in itertools.count(sampler.epoch):
            for batch in loader:
                batch = to_device(batch, args.device)
                optimizer.zero_grad()
                loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
                optimizer.step()
            show_progress(dual, history[-1].certificate.gap if history else 1.0, args)
            if (epoch + 1) % EPOCHS and dual.passes < args.max_passes:
                continue
            certificate = certify(head, dual, in_order(train))
            history.append(Entry(certificate, time.perf_counter() - start))
            kept = [(dataclasses.asdict(entry.certificate), entry.seconds) for entry in history]
            save_checkpoint(checkpoint, optimizer=optimizer, sampler=sampler, history=kept)
            show_progress(dual, certificate.gap, args)
            if certificate.gap <= args.gap:
                stopped_because = f"certified gap {certificate.gap:.6g} <= {args.gap:g}"
                break
            if dual.passes >= args.max_passes:
                stopped_because = (
                    f"{args.max_passes:g} passes reached, certified gap {certificate.gap:.6g} > {args.gap:g}"
                )
                break
    except KeyboardInterrupt:
        stopped_because = "interrupted: KeyboardInterrupt"

    task = "OCR, chain on pixels"
    finish(args, task, head, dual, history, stopped_because, start, train=train, test=test)


if __name__ == "__main__":
    main()
