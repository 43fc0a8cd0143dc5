"""Text chunking (CoNLL-2000): test F1 and training time, of the structured SVM and of CRFsuite on the same attributes.

python benchmarks/conll.py --out runs/conll_benchmark

lam is chosen by chunk F1 on the last tenth of the training sentences; then everything is trained again. CRFsuite
(L-BFGS, c2 = 1, its default) is trained from the start for each number of iterations. All on one thread; compilation,
reading and predicting are outside the clocks, and so is what each side needs to take over the data. Writes table.md,
results.json and conll.png.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from suite.figures import grid
from suite.measuring import Clock, Table
from torch import nn

from torchssvm import CompiledBCFW, DualState, WeightedAverage, in_order
from torchssvm.core.files import write_text
from torchssvm.datasets import ChunkingDataset, CoNLL2000, chunk_scores
from torchssvm.models import chunking_chain

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from chunking_crfsuite import train_crf

PARTS_OF_A_PASS = 20  # the average takes the iterate after each
EXACT = 5  # passes between exact passes
HELD_OUT = 0.1
LAMS = (0.1, 0.05, 0.02, 0.01, 0.005)
OURS = {"BCFW": False, "BCFW, weighted average": True}


def bcfw(
    train: ChunkingDataset,
    test: ChunkingDataset,
    lam: float,
    gap: float,
    *,
    average: bool = False,
    max_passes: float = 200.0,
    every: int = 1,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Train to a certified gap; scores on ``test`` after every so many passes and at the end, the clock stopped."""
    head, n = chunking_chain(train.in_features, train.num_states), len(train)
    dual = DualState.for_head(head, n, lam)
    loop = CompiledBCFW(head, dual, in_order(train), seed=seed)
    mean = WeightedAverage.following(dual) if average else None
    points: list[dict[str, Any]] = []
    clock, done = Clock(), 0
    while True:
        for _ in range(PARTS_OF_A_PASS):
            loop.step(max(n // PARTS_OF_A_PASS, 1))
        done += 1
        certificate = loop.certify() if done % EXACT == 0 else None
        end = certificate is not None and (certificate.gap <= gap or dual.passes >= max_passes)
        if end or done % every == 0:
            point = {**clock.stop(), "passes": dual.passes}
            if certificate is not None:
                point |= {"gap": certificate.gap, "primal": certificate.primal, "dual": certificate.dual}
            with mean.apply() if mean is not None else nullcontext():
                points.append({**point, **scored(test, predict(head, test))})
            if end:
                return points
            clock.go()


def crf(train: ChunkingDataset, test: ChunkingDataset, iterations: int) -> dict[str, Any]:
    """CRFsuite, from the start."""
    its = train_crf(train, test, iterations)
    seconds = {"seconds": its.seconds, "cpu_seconds": its.cpu_seconds}
    return {**seconds, "iterations": its.iterations, **scored(test, its.tags)}


@torch.no_grad()
def predict(head: nn.Module, test: ChunkingDataset) -> list[list[str]]:
    """The tags of all sentences."""
    found: list[list[str]] = []
    for batch in in_order(test):
        found += test.tags_of(head.structure.argmax(head(batch.x, batch.lengths)).labeling, batch.lengths)
    return found


def scored(test: ChunkingDataset, tags: list[list[str]]) -> dict[str, float]:
    """Chunk F1 and the share of wrong tags."""
    scores = chunk_scores([test.tags(i) for i in range(len(test))], tags)
    all_ = scores.overall
    shares = {"f1": all_.f1, "precision": all_.precision, "recall": all_.recall}
    return {**shares, "token_error": scores.token_error}


def measure(train: ChunkingDataset, test: ChunkingDataset, args: argparse.Namespace) -> dict[str, Any]:
    """Everything on one set of attributes."""
    first, rest = train.hold_out(HELD_OUT)
    bcfw(ChunkingDataset(train.sentences.part(0, 50), train.vocabulary), test, 0.1, 1.0, average=True)  # compiles
    search = [{"lam": lam, **bcfw(first, rest, lam, args.gap, every=10**6)[-1]} for lam in args.lam]
    lam = max(search, key=lambda point: point["f1"])["lam"]
    runs: dict[str, list[dict[str, Any]]] = {
        side: bcfw(train, test, lam, args.gap, average=average, seed=args.seed) for side, average in OURS.items()
    }
    if importlib.util.find_spec("pycrfsuite") is not None:
        runs["CRFsuite"] = [crf(train, test, iterations) for iterations in args.iterations]
    return {"attributes": train.in_features, "search": search, "lam": lam, "runs": runs}


def table(found: dict[str, Any], gap: float) -> Table:
    """A line for each side, and for CRFsuite one for each number of iterations."""
    rows: list[list[Any]] = []
    for side, points in found["runs"].items():
        for point in points if side == "CRFsuite" else points[-1:]:
            how = f"{point['iterations']} iterations" if side == "CRFsuite" else f"{point['passes']:.0f} passes"
            shares = [f"{100 * point[name]:.2f}" for name in ("f1", "precision", "recall")]
            rows.append([side, how, *shares, f"{100 * point['token_error']:.2f} %", point["cpu_seconds"]])
    searched = sum(point["cpu_seconds"] for point in found["search"])
    title = (
        f"CoNLL-2000, {found['attributes']:,} attributes; BCFW to a certified gap of {gap:g} at lam = {found['lam']:g}"
        f", chosen on held-out sentences in {searched:.0f} s"
    )
    return Table(title, ["", "", "test F1", "precision", "recall", "token error", "training, CPU s"], rows)


def draw(found: list[dict[str, Any]], file: Path) -> None:
    """Test F1 over training seconds."""
    charts = {
        f"{one['attributes']:,} attributes": {
            side: ([p["cpu_seconds"] for p in points], [100 * p["f1"] for p in points])
            for side, points in one["runs"].items()
        }
        for one in found
    }
    grid(file, charts, ["CPU seconds of training"] * len(charts), "chunk F1 on the test sentences", log="x")


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, default=Path("runs/conll_benchmark"), help="folder (default: %(default)s)")
    flags.add_argument("--min-count", type=int, nargs="+", default=[3, 1], help="of an attribute (default: 3 1)")
    flags.add_argument("--lam", type=float, nargs="+", default=list(LAMS), help="to choose from")
    flags.add_argument("--gap", type=float, default=0.005, help="certified, where a run ends (default: %(default)s)")
    flags.add_argument("--iterations", type=int, nargs="+", default=[5, 10, 20, 40, 80], help="of CRFsuite")
    flags.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    args = flags.parse_args(arguments)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    found = []
    for least in args.min_count:
        train = CoNLL2000("train", min_count=least)
        found.append({"min_count": least, **measure(train, CoNLL2000("test", vocabulary=train.vocabulary), args)})
        print(table(found[-1], args.gap).markdown(), flush=True)
    text = "\n".join(table(one, args.gap).markdown() for one in found)
    if importlib.util.find_spec("pycrfsuite") is None:
        note = "python-crfsuite is not installed: pip install -e '.[bench]'\n"
        print(note, flush=True)
        text += f"\n{note}"
    write_text(args.out / "table.md", text)
    settings = {name: value for name, value in vars(args).items() if name != "out"}
    content = {"settings": settings, "machine": describe_machine(), "found": found}
    write_text(args.out / "results.json", json.dumps(content, indent=1) + "\n")
    draw(found, args.out / "conll.png")


if __name__ == "__main__":
    main()
