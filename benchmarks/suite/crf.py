"""Conditional random fields on the same features: another objective, the log-likelihood; seconds and test error."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch

from torchssvm import in_order
from torchssvm.datasets import OCR

from .descent import shuffled
from .measuring import Clock

PACKAGES = {"python-crfsuite": "pycrfsuite", "pytorch-crf": "torchcrf"}


def train(package: str, size: str, lam: float, seed: int, epochs: int) -> dict[str, Any]:
    """Seconds and test error, or that the package is not installed."""
    if importlib.util.find_spec(PACKAGES[package]) is None:
        return {"skipped": "not installed"}
    words, test = OCR("train", size), OCR("test", size)
    return (crfsuite if package == "python-crfsuite" else pytorch_crf)(words, test, lam, seed, epochs)


def crfsuite(words: OCR, test: OCR, lam: float, seed: int, epochs: int) -> dict[str, Any]:
    """L-BFGS to its default tolerance; ``c2`` is the same lam: it stands beside the sum over the examples."""
    import pycrfsuite

    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params(
        {
            "c2": lam * len(words) / 2,
            "max_iterations": 5 * epochs,
            "feature.possible_states": True,
            "feature.possible_transitions": True,
        }
    )
    for x, y, _ in words:
        trainer.append(_names(x), [str(k) for k in y.tolist()])
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model")
        clock = Clock()
        trainer.train(file)
        seconds = clock.stop()
        tagger = pycrfsuite.Tagger()
        tagger.open(file)
        results = [[int(k) for k in tagger.tag(_names(x))] for x, _, _ in test]
        tagger.close()
    return {**seconds, "test_error": _error(results, test)}


def _names(x: torch.Tensor) -> list[list[str]]:
    """The pixels that are on, the bias and the boundaries, by name."""
    items = [["bias", *(f"p{k}" for k in row.nonzero().flatten().tolist())] for row in x]
    items[0].append("first")
    items[-1].append("last")
    return items


def pytorch_crf(words: OCR, test: OCR, lam: float, seed: int, epochs: int) -> dict[str, Any]:
    """Adam on batches of 64, learning rate 0.02 falling to 0, with lam/2 |w|^2."""
    from torchcrf import CRF

    torch.manual_seed(seed)
    linear, layer = torch.nn.Linear(128, 26), CRF(26, batch_first=True)
    weights = [*linear.parameters(), *layer.parameters()]
    for weight in weights:
        torch.nn.init.zeros_(weight)
    adam = torch.optim.Adam(weights, lr=0.02)
    total = epochs * -(-len(words) // 64)
    clock = Clock()
    for step, index in enumerate(shuffled(len(words), 64, epochs, seed)):
        batch = words.__getitems__(index)
        adam.zero_grad()
        value = -layer(linear(batch.x), batch.y.clamp(min=0), mask=batch.y >= 0, reduction="mean")
        for weight in weights:
            value = value + lam / 2 * weight.square().sum()
        value.backward()
        for group in adam.param_groups:
            group["lr"] = 0.02 * (1.0 - step / total)
        adam.step()
    seconds = clock.stop()
    results: list[list[int]] = []
    with torch.no_grad():
        for batch in in_order(test):
            results += layer.decode(linear(batch.x), mask=batch.y >= 0)
    return {**seconds, "test_error": _error(results, test)}


def _error(results: list[list[int]], test: OCR) -> float:
    wrong = sum(int((torch.tensor(labels) != y).sum()) for labels, (_, y, _) in zip(results, test, strict=True))
    return wrong / sum(map(len, results))
