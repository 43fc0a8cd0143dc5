"""Handwritten words in a plain torch loop: a linear chain on pixels, trained to a certified duality gap.

python examples/ocr_loop.py --size small --lam 0.01 --gap 0.01

It saves after every exact pass; --resume true goes on from there, to the same bits.
"""

import dataclasses
import time
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt
from torch.utils.data import DataLoader

from torchssvm import (
    BCFW,
    BlockGap,
    DualState,
    GapBatchSampler,
    certify,
    evaluate,
    guess_lam,
    in_order,
    load_checkpoint,
    save_checkpoint,
)
from torchssvm.datasets import OCR
from torchssvm.datasets.ocr.drawing import draw_words
from torchssvm.models import ocr_chain
from torchssvm.solvers import Certificate, RunReport

EPOCHS = 10  # between exact passes


def main(
    size: Literal["small", "large"] = "small",
    lam: PositiveFloat | None = None,
    gap: PositiveFloat = 0.02,
    max_passes: PositiveFloat = 5000.0,
    batch_size: PositiveInt = 32,
    seed: int = 0,
    resume: bool = False,
    report: Path = Path("runs/ocr_loop"),
) -> RunReport:
    """Train a chain on handwritten words to a certified gap.

    Args:
        size: Training words: 626 or 6251.
        lam: Regularisation; by default guess_lam chooses it from features and losses.
        gap: Stop at this certified gap.
        max_passes: Or after so many passes.
        batch_size: Words of a step.
        seed: Runs with the same seed are the same.
        resume: Go on from the checkpoint in the report's folder.
        report: Folder of report.json, the picture and the checkpoint.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    torch.manual_seed(seed)
    train, test = OCR("train", size), OCR("test", size)
    head = ocr_chain()
    dual = DualState.for_head(head, num_examples=len(train), lam=lam or guess_lam(head, train))
    loss = BlockGap(dual)
    optimizer = BCFW(head.parameters(), dual)
    sampler = GapBatchSampler(dual, batch_size=batch_size, seed=seed)
    loader = DataLoader(train, batch_sampler=sampler, collate_fn=train.collate)

    report.mkdir(parents=True, exist_ok=True)
    history: list[tuple[Certificate, float]] = []
    if resume:
        saved = load_checkpoint(report / "run.pt", optimizer=optimizer, sampler=sampler)["history"]
        history = [(Certificate(**certificate), seconds) for certificate, seconds in saved]
    start = time.perf_counter() - (history[-1][1] if history else 0.0)
    while not history or (history[-1][0].gap > gap and dual.passes < max_passes):
        for _ in range(EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
                optimizer.step()
            if dual.passes >= max_passes:
                break
        history.append((certify(head, dual, in_order(train)), time.perf_counter() - start))
        kept = [(dataclasses.asdict(certificate), seconds) for certificate, seconds in history]
        save_checkpoint(report / "run.pt", optimizer=optimizer, sampler=sampler, history=kept)
        print(history[-1][0])

    run_report = RunReport(
        "OCR, chain on pixels",
        history,
        num_weights=sum(p.numel() for p in head.parameters()),
        stopped_because=f"certified {history[-1][0].gaps} after {dual.passes:.0f} passes",
        train=evaluate(head, dual.structure, in_order(train)),
        test=evaluate(head, dual.structure, in_order(test)),
        seed=seed,
    )
    words = test.__getitems__(range(0, len(test), len(test) // 6))
    labelings = dual.structure.decode(head(words.x, words.lengths))
    run_report.write(report, lambda figure: draw_words(figure, words, labelings))
    print(f"{run_report}\nwritten to {report}")
    return run_report


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
