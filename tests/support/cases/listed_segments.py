"""Tiny random problems of segments, with all segmentations listed: NumPy, and nothing of the package."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from cases.listed_problems import Features, Listed, Maker, draw
from torchssvm import Batch, LinearSegments, Segments

Spans = tuple[tuple[int, int, int], ...]


def every(length: int, states: int, least: list[int], most: int) -> Iterator[Spans]:
    """All ways to cut ``length`` frames into spans (start, end, label)."""
    for cuts in itertools.product((False, True), repeat=length - 1):
        at = [0, *(t + 1 for t, cut in enumerate(cuts) if cut), length]
        pieces = list(itertools.pairwise(at))
        for labels in itertools.product(range(states), repeat=len(pieces)):
            if all(least[k] <= e - s <= most for (s, e), k in zip(pieces, labels, strict=True)):
                yield tuple((s, e, k) for (s, e), k in zip(pieces, labels, strict=True))


def segments(random: np.random.Generator, lam: float, dtype: torch.dtype) -> Listed:
    """Segments, a share of them with boundaries, with least durations, and with the loss of spans."""
    n, states, most, width = int(random.integers(1, 5)), int(random.integers(1, 4)), int(random.integers(1, 4)), 2
    boundary, spans = (bool(random.random() < 0.5) for _ in range(2))
    least = [int(random.integers(1, most + 1)) if random.random() < 0.4 else 1 for _ in range(states)]
    least[0] = 1
    structure = Segments(states, most, min_duration=least, boundary=boundary, span_loss=spans)
    head = LinearSegments(width, states, most, structure=structure).to(dtype)
    lengths = random.integers(1, 5, n)
    x = draw(random, n, int(lengths.max()), width, dtype=dtype)
    made, targets = Maker(head, lam), []

    def features(own: np.ndarray, output: Spans) -> Features:
        emission, bias = np.zeros((states * (1 + boundary), width)), np.zeros(states * (1 + boundary))
        table = np.zeros((states + most, states))
        for place, (start, end, label) in enumerate(output):
            emission[label] += own[start:end].sum(0)
            bias[label] += end - start
            table[states + end - start - 1, label] += 1
            if place:
                table[output[place - 1][2], label] += 1
            if boundary:
                emission[states + label] += own[start]
                bias[states + label] += 1
        return {"emission": emission, "segment": table, "bias": bias}

    def loss(output: Spans, target: Spans) -> float:
        if spans:
            return float(len(set(output) ^ set(target)))
        own, true = ([k for s, e, k in these for _ in range(s, e)] for these in (output, target))
        return float(sum(a != b for a, b in zip(own, true, strict=True)))

    for row, length in enumerate(lengths.tolist()):
        outputs = list(every(length, states, least, most))
        target = outputs[int(random.integers(len(outputs)))]
        own = x[row, :length].double().numpy()
        made.add([loss(o, target) for o in outputs], [features(own, o) for o in outputs], features(own, target))
        targets.append(target)

    def take(rows: list[int]) -> Batch:
        sizes = torch.from_numpy(lengths[rows])
        y = torch.full((len(rows), int(sizes.max())), -1)
        for place, row in enumerate(rows):
            for start, end, label in targets[row]:
                y[place, start:end] = label
                y[place, start] += states
        return Batch(x[rows, : y.shape[1]], y, torch.tensor(rows), sizes)

    return Listed(head, take, made.truth)
