"""Text chunking (CoNLL-2000): test F1 and training time, of the structured SVM and of CRFsuite on the same attributes.

lam is chosen by chunk F1 on the last tenth of the training sentences; then everything is trained again. CRFsuite
(L-BFGS, c2 = 1, its default) is trained from the start for each number of iterations. All on one thread; compilation,
reading and predicting are outside the clocks, and so is what each side needs to take over the data.
"""

from __future__ import annotations

import importlib.util
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchssvm import CompiledBCFW, DualState, WeightedAverage, in_order
from torchssvm.datasets import ChunkingDataset, CoNLL2000, chunk_scores
from torchssvm.models import chunking_chain

from .figures import grid
from .measuring import Ask, Clock, Settings, Summary, Table, chosen

TITLE = "CoNLL-2000: chunk F1 and training time"
PARTS_OF_A_PASS = 20  # the average takes the iterate after each
EXACT = 5  # passes between exact passes
HELD_OUT = 0.1
OURS = {"BCFW": False, "BCFW, weighted average": True}
OPTIONS: dict[str, Any] = {
    "min_count": [3, 1],  # of an attribute
    "lam": [0.1, 0.05, 0.02, 0.01, 0.005],  # to choose from
    "gap": 0.005,
    "iterations": [5, 10, 20, 40, 80],  # of CRFsuite
    "max_passes": 200.0,
    "seed": 0,
}
QUICK = {"min_count": [3], "lam": [0.1, 0.02], "gap": 0.2, "iterations": [5]}


def read(min_count: int) -> tuple[ChunkingDataset, ChunkingDataset]:
    """Training and test sentences, on the same attributes."""
    train = CoNLL2000("train", min_count=min_count)
    return train, CoNLL2000("test", vocabulary=train.vocabulary)


def bcfw(
    min_count: int, lam: float, gap: float, max_passes: float, average: bool, seed: int, held_out: bool
) -> dict[str, Any]:
    """Train to a certified gap; scores after every pass, the clock stopped, on test sentences or on some held out."""
    train, test = read(min_count)
    first = ChunkingDataset(train.sentences.part(0, 50), train.vocabulary)
    curve(first, test, 0.1, 1.0, 10.0, average, 0, every=10**6)  # compiles
    data, scored_on = train.hold_out(HELD_OUT) if held_out else (train, test)
    points = curve(data, scored_on, lam, gap, max_passes, average, seed, every=10**6 if held_out else 1)
    return {"attributes": train.in_features, "points": points}


def curve(
    train: ChunkingDataset,
    test: ChunkingDataset,
    lam: float,
    gap: float,
    max_passes: float,
    average: bool,
    seed: int,
    every: int,
) -> list[dict[str, Any]]:
    """Scores after every so many passes and at the end."""
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


def crfsuite(min_count: int, iterations: int) -> dict[str, Any]:
    """CRFsuite, from the start, with the attributes that the vocabulary has."""
    import pycrfsuite

    train, test = read(min_count)
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params({"c1": 0.0, "c2": 1.0, "max_iterations": iterations})
    for i in range(len(train)):
        trainer.append(train.features(i), train.tags(i))
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        trainer.train(str(Path(folder) / "model"))
        seconds = clock.stop()
        tagger = pycrfsuite.Tagger()
        tagger.open(str(Path(folder) / "model"))
        tags = [tagger.tag(test.features(i)) for i in range(len(test))]
        tagger.close()
    return {**seconds, "iterations": len(trainer.logparser.iterations), **scored(test, tags)}


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


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Everything on each set of attributes."""
    options = chosen(settings, OPTIONS, QUICK)
    limits = {name: options[name] for name in ("gap", "max_passes", "seed")}
    found = []
    for least in options["min_count"]:
        search = []
        for lam in options["lam"]:
            run = ask("bcfw", min_count=least, lam=lam, average=False, held_out=True, **limits)
            search.append({"lam": lam, **run["points"][-1]})
        lam = max(search, key=lambda point: point["f1"])["lam"]
        runs: dict[str, Any] = {}
        for side, average in OURS.items():
            run = ask("bcfw", min_count=least, lam=lam, average=average, held_out=False, **limits)
            runs[side] = run["points"]
        if importlib.util.find_spec("pycrfsuite") is not None:
            runs["CRFsuite"] = [ask("crfsuite", min_count=least, iterations=i) for i in options["iterations"]]
        found.append({"attributes": run["attributes"], "search": search, "lam": lam, "runs": runs})
    return {"gap": options["gap"], "found": found}


def summarise(found: dict[str, Any]) -> Summary:
    """A line for each side, and for CRFsuite one for each number of iterations."""
    tables = []
    for one in found["found"]:
        rows: list[list[Any]] = []
        for side, points in one["runs"].items():
            for point in points if side == "CRFsuite" else points[-1:]:
                how = f"{point['iterations']} iterations" if side == "CRFsuite" else f"{point['passes']:.0f} passes"
                shares = [f"{100 * point[name]:.2f}" for name in ("f1", "precision", "recall")]
                rows.append([side, how, *shares, f"{100 * point['token_error']:.2f} %", point["cpu_seconds"]])
        searched = sum(point["cpu_seconds"] for point in one["search"])
        title = (
            f"{one['attributes']:,} attributes; BCFW to a certified gap of {found['gap']:g} at lam = {one['lam']:g}, "
            f"chosen on held-out sentences in {searched:.0f} s"
        )
        columns = ["", "", "test F1", "precision", "recall", "token error", "training, CPU s"]
        tables.append(Table(title, columns, rows))
    there = all("CRFsuite" in one["runs"] for one in found["found"])
    return Summary(tables, notes=[] if there else ["python-crfsuite is not installed: pip install -e '.[bench]'"])


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """Test F1 over training seconds."""
    charts = {
        f"{one['attributes']:,} attributes": {
            side: ([p["cpu_seconds"] for p in points], [100 * p["f1"] for p in points])
            for side, points in one["runs"].items()
        }
        for one in found["found"]
    }
    xlabels = ["CPU seconds of training"] * len(charts)
    return [grid(folder / "conll.png", charts, xlabels, "chunk F1 on the test sentences", log="x")]


MEASURES = {"bcfw": bcfw, "crfsuite": crfsuite}
