"""Time beside another clone: python benchmarks/beside.py OTHER [NAME ...] [--pairs 60].

Two processes on one core, one for each clone, take turns: the same steps, or the same exact pass, in CPU seconds. The
ratio of each pair is new over other; its median and quartiles hardly depend on the clock of the processor, which drifts
by half under other work. NAME is one of ``PROBLEMS``; none is all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from size import LOAD

PROBLEMS = ("sets", "classes", "chain", "chain-pairwise", "chain-corrective", "torch")
WORKER = (
    LOAD
    + """
import time, torch
torch.set_num_threads(1)
from torchssvm import *
from torchssvm.datasets import OCR

def make(name):  # a burst of steps, and an exact pass
    random = torch.Generator().manual_seed(0)
    kind, _, rule = name.partition("-")
    x = torch.randn(5000, 100, generator=random)
    if kind == "torch":
        words = OCR("train", "small")
        head, n = LinearChain(128, 26), len(words)
        dual = DualState.for_head(head, n, 0.01)
        loss, steps = BlockGap(dual), BCFW(head.parameters(), dual)
        batches, everything = list(in_order(words, batch_size=16))[:10], list(in_order(words))
        def epoch():
            for batch in batches:
                steps.zero_grad()
                loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
                steps.step()
        return epoch, lambda: certify(head, dual, everything)
    if kind == "chain":
        words = OCR("train", "large")
        head, n, batches, visits = LinearChain(128, 26), len(words), list(in_order(words)), len(words) // 4
    elif kind == "classes":
        y = torch.randint(0, 20, (5000,), generator=random)
        head, n, batches, visits = LinearMulticlass(100, 20), 5000, [Batch(x, y, torch.arange(5000))], 1250
    else:
        y = (torch.rand(1000, 12, generator=random) < 0.3).long()
        head, n, visits = LinearMultilabel(30, 12), 1000, 1000
        batches = [Batch(x[:1000, :30].contiguous(), y, torch.arange(1000))]
    directions = {"pairwise": Pairwise, "corrective": Corrective}
    rules = {"direction": directions[rule](), "oracle": CacheOracle()} if rule else {}
    lam, storage = 1 / n if kind == "chain" else 0.01, Labelings(10) if rule else MeanParts()
    dual = DualState.for_head(head, n, lam, storage=storage)
    loop = CompiledBCFW(head, dual, batches, seed=1, **rules)
    return lambda: loop.step(visits), loop.certify

made = {}
for line in sys.stdin:
    name, number = line.split()
    if name not in made:
        made[name] = make(name)
        for run in made[name] * 3:  # compiles
            run()
    began = time.process_time()
    made[name][int(number)]()
    print(time.process_time() - began, flush=True)
"""
)


class Clone:
    """A process that runs the code of a clone."""

    def __init__(self, root: Path) -> None:
        core = ["taskset", "-c", "0"] if sys.platform == "linux" else []
        command = [*core, sys.executable, "-c", WORKER, str(root)]
        here = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root, env=here
        )

    def seconds(self, name: str, number: int) -> float:
        """CPU seconds of a burst of steps (0) or of an exact pass (1)."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, number, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def compare(new: Clone, other: Clone, name: str, number: int, pairs: int) -> str:
    """One line: the ratios of ``pairs`` turns, of which every second begins with the other clone."""
    ratios, others = [], []
    for turn in range(pairs):
        order = (new, other) if turn % 2 else (other, new)
        seconds = {clone: clone.seconds(name, number) for clone in order}
        ratios.append(seconds[new] / seconds[other])
        others.append(seconds[other])
    low, middle, high = statistics.quantiles(ratios, n=4)
    what = "exact pass" if number else "steps"
    return f"{name:18} {what:10} {middle:.3f} ({low:.3f} to {high:.3f}), other {1e3 * statistics.median(others):.2f} ms"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("other", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(PROBLEMS))
    parser.add_argument("--pairs", type=int, default=60)
    options = parser.parse_args()
    clones = Clone(Path(__file__).parents[1].resolve()), Clone(options.other.resolve())
    for name in options.names or PROBLEMS:
        for number in (0, 1):
            print(compare(*clones, name, number, options.pairs), flush=True)
