"""Tagged sentences: what the parts on chunks and on entities share, training of both sides, and scores."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchssvm import CacheOracle, CompiledBCFW, Corrective, DualState, Labelings, in_order
from torchssvm.datasets import ChunkingDataset, chunk_scores

from .measuring import Clock


def bcfw(
    make_head: Any,
    train: ChunkingDataset,
    test: ChunkingDataset,
    lam: float,
    share: float,
    max_passes: float,
    seed: int,
    every_pass: bool,
) -> list[dict[str, Any]]:
    """Corrective steps with the cache until the certified gap is at most a share of the primal.

    Args:
        make_head: Makes the head of a training set.
        train: The sentences.
        test: Scored at the end, with the clock stopped.
        lam: Regularisation.
        share: Of the primal.
        max_passes: Or stop at this many effective passes.
        seed: Of the draws.
        every_pass: Score after each time that all sentences were visited.

    Returns:
        The points that were scored; the last is the end.
    """
    few, _ = train.hold_out(0.95)
    _run(make_head, few, few, lam, 1.0, 1.0, 0, False)  # compiles
    return _run(make_head, train, test, lam, share, max_passes, seed, every_pass)


def _run(
    make_head: Any,
    train: ChunkingDataset,
    test: ChunkingDataset,
    lam: float,
    share: float,
    max_passes: float,
    seed: int,
    every_pass: bool,
) -> list[dict[str, Any]]:
    head, n = make_head(train), len(train)
    points: list[dict[str, Any]] = []
    clock = Clock()
    dual = DualState.for_head(head, n, lam, storage=Labelings())
    loop = CompiledBCFW(head, dual, in_order(train), direction=Corrective(), oracle=CacheOracle(), seed=seed)
    while True:
        loop.step(n)
        results = loop.certify()
        seconds = clock.stop()
        end = results.gap <= share * results.primal or dual.passes >= max_passes
        if end or every_pass:
            figures = {"passes": dual.passes, "gap": results.gap, "primal": results.primal, "dual": results.dual}
            points.append({**seconds, **figures, **scored(test, predict(head, test))})
        if end:
            return points
        clock.go()


def crfsuite(train: ChunkingDataset, test: ChunkingDataset, c2: float, iterations: int) -> dict[str, Any]:
    """CRFsuite (L-BFGS) from the start, on the attributes that the vocabulary has."""
    import pycrfsuite

    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params({"c1": 0.0, "c2": c2, "max_iterations": iterations})
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
    results: list[list[str]] = []
    for batch in in_order(test):
        results += test.tags_of(head.structure.argmax(head(batch.x, batch.lengths)).labeling, batch.lengths)
    return results


def scored(test: ChunkingDataset, tags: list[list[str]]) -> dict[str, Any]:
    """F1 of chunks, the share of wrong tags, and the counts of each sentence: correct, predicted and true chunks."""
    true = [test.tags(i) for i in range(len(test))]
    scores = chunk_scores(true, tags)
    all_ = scores.overall
    each = [chunk_scores([a], [b]).overall for a, b in zip(true, tags, strict=True)]
    return {
        **{"f1": all_.f1, "precision": all_.precision, "recall": all_.recall},
        "token_error": scores.token_error,
        "counts": [[one.correct, one.predicted, one.true] for one in each],
    }


def f1_interval(
    counts: list[list[int]], less: list[list[int]] | None = None, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The middle 95 % of F1, or of how much it is above another's, over sentences drawn with replacement.

    Args:
        counts: As :func:`scored` gives them.
        less: Those of the other, on the same sentences.
        draws: How many sets of sentences.
        seed: Of the draws.
    """
    generator, n = random.Random(seed), len(counts)
    values = []
    for _ in range(draws):
        drawn = generator.choices(range(n), k=n)
        values.append(_f1(counts, drawn) - (0.0 if less is None else _f1(less, drawn)))
    values.sort()
    return values[int(0.025 * draws)], values[int(0.975 * draws) - 1]


def _f1(counts: list[list[int]], drawn: list[int]) -> float:
    correct = sum(counts[i][0] for i in drawn)
    return 2.0 * correct / max(sum(counts[i][1] + counts[i][2] for i in drawn), 1)
