"""Gesture phases: segments beside a chain and a classifier of frames, on stories or people that were not trained on.

There are ten frames a second. Lambda is chosen by the F1 of spans of the training videos, each left out once, outside
the clocks; it means the same for all, as losses are summed over the frames of a video.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchssvm import Chain, LinearChain, LinearSegments, Relative, Segments, solve
from torchssvm.datasets import GesturePhases, PaddedDataset
from torchssvm.structures.segments import span_f1

EVERY, OVERLAP = 3, 0.5
SPLITS = {"stories": [("a3", "b3", "c3")], "people": [("a1", "a2", "a3"), ("b1", "b3"), ("c1", "c3")]}
MODELS = ("frames alone", "chain", "segments", "segments, boundary")
LABELS = len(GesturePhases.phases)
RUNS = Segments(LABELS, 1)  # makes spans of labels

Predict = Callable[[PaddedDataset], Tensor]
"""Labels of frames ``[n, N]``, -1 beyond each length."""


def gestures(model: str, split: str, lams: list[float]) -> dict[str, Any]:
    """The scores of all test videos, the lambda of each fold, and CPU seconds of training at these lambdas."""
    used: list[float] = []  # lambdas, one a fold
    labels: list[tuple[Tensor, Tensor]] = []
    spent = 0.0
    for test in SPLITS[split]:
        train, unseen = (GesturePhases(part, test=test, every=EVERY) for part in ("train", "test"))  # type: ignore[arg-type]
        held_out = {lam: gesture_scores(_left_out(model, train, lam))["f1"] for lam in lams}
        used.append(max(lams, key=lambda lam: held_out[lam]))
        start = time.process_time()
        predict = fit(model, train, used[-1])
        spent += time.process_time() - start
        labels.append((predict(unseen), RUNS.frames(unseen.y)))
    return {"lams": used, "cpu_seconds": spent, **gesture_scores(labels)}


def fit(model: str, data: PaddedDataset, lam: float, share: float = 0.01) -> Predict:
    """Train one of the models, to a gap of a share of the primal."""
    features, labels = data.x.shape[2], RUNS.frames(data.y)
    if model == "frames alone":
        from sklearn.linear_model import LogisticRegression

        real = labels >= 0
        classifier = LogisticRegression(C=1.0 / (lam * len(data)), max_iter=1000).fit(data.x[real], labels[real])

        def each(test: PaddedDataset) -> Tensor:
            results = torch.from_numpy(classifier.predict(test.x.flatten(0, 1).numpy())).view(test.y.shape)
            return results.where(test.y >= 0, -1)

        return each
    head: Any
    if model == "chain":
        head = LinearChain(features, LABELS, structure=Chain(LABELS, normalize=False))
        data = PaddedDataset(data.x, labels, data.lengths)
    else:
        longest = longest_of(data)
        structure = Segments(LABELS, longest, boundary=model == "segments, boundary")
        head = LinearSegments(features, LABELS, longest, structure=structure)
    solve(head, data, lam, tolerance=Relative(share), progress=False)

    @torch.no_grad()
    def whole(test: PaddedDataset) -> Tensor:
        return head.structure.by_position(head.structure.decode(head(test.x, test.lengths)))

    return whole


def longest_of(data: PaddedDataset) -> int:
    """Frames of the longest segment."""
    return max(end - start for spans in RUNS.spans(data.y) for start, end, _ in spans)


def _left_out(model: str, data: PaddedDataset, lam: float) -> list[tuple[Tensor, Tensor]]:
    results = []
    for video in range(len(data)):
        rest = [row for row in range(len(data)) if row != video]
        part, one = (PaddedDataset(data.x[rows], data.y[rows], data.lengths[rows]) for rows in (rest, [video]))  # type: ignore[index]
        results.append((fit(model, part, lam, 0.05)(one), RUNS.frames(one.y)))
    return results


def gesture_scores(labels: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Of predicted and true labels of frames: the F1 of runs that share half of their frames, and the right frames."""
    results, true = (
        [spans for part in side for spans in RUNS.spans(RUNS.from_frames(part))] for side in zip(*labels, strict=True)
    )
    right = torch.cat([(predicted == other)[other >= 0] for predicted, other in labels])
    return {"f1": span_f1(results, true, OVERLAP), "frames": float(right.double().mean())}
