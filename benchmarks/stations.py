"""How many files one step of the torch loop passes: the changes of file from ``zero_grad`` to ``step``, warm.

python benchmarks/stations.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import torchssvm
from torchssvm import BCFW, BlockGap, DualState, LinearChain
from torchssvm.datasets import OCR

PACKAGE = str(Path(torchssvm.__file__).parent)


def trace(step: Any) -> list[str]:
    """The files of the package that ``step`` runs in, one entry for each change of file."""
    passed: list[str] = []

    def watch(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE) and passed[-1:] != [name]:
            passed.append(name)

    sys.setprofile(watch)
    try:
        step()
    finally:
        sys.setprofile(None)
    return [str(Path(name).relative_to(PACKAGE)) for name in passed]


def main() -> None:
    """Print the counts for one batch of OCR, with ``MeanParts``."""
    torch.set_num_threads(1)
    data = OCR(split="train")
    head = LinearChain(128, 26)
    dual = DualState.for_head(head, len(data), 1e-2)
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    batches = [data.collate([data[i] for i in range(first, first + 64)]) for first in (0, 64, 128, 0, 64)]

    def step() -> None:
        batch = batches.pop()
        optim.zero_grad()
        loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
        optim.step()

    while len(batches) > 1:
        step()
    passed = trace(step)
    print(f"one step: {len(set(passed))} files, {len(passed)} changes of file")


if __name__ == "__main__":
    main()
