"""Runs whose primal is written down now and then, with the clock stopped: BCFW, its average, Adam, SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from torchssvm import LinearChain, StructuredHinge, evaluate, in_order
from torchssvm.datasets import OCR
from torchssvm.solvers import WeightedAverage, primal

from .measuring import Clock
from .training import compiled_loop, ocr_problem

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"Adam": torch.optim.Adam, "SGD": torch.optim.SGD}
PARTS_OF_A_PASS = 20  # the average takes the iterate after each


def reference(size: str, lam: float, tolerance: float, max_passes: float) -> dict[str, float]:
    """A certificate close to the optimum: corrective steps over cached labelings, float64."""
    words = OCR("train", size)
    loop = compiled_loop(ocr_problem(words), "corrective + cache", lam, double=True, capacity=50)
    clock = Clock()
    best: dict[str, float] = {"primal": float("inf"), "dual": 0.0}

    def note(certificate: Any) -> None:  # any primal is above the optimum, any dual below
        best["primal"] = min(best["primal"], certificate.primal)
        best["dual"] = max(best["dual"], certificate.dual)

    results = loop.solve(tolerance, max_passes=max_passes, on_check=note)
    return {**best, "gap": best["primal"] - best["dual"], "passes": results.passes, **clock.stop()}


def bcfw(rules: str, average: bool, size: str, lam: float, seed: int, epochs: float, target: float) -> dict[str, Any]:
    """The compiled loop, an exact pass after every ten; the primal of the last iterate, or of the weighted average.

    It ends after so many epochs of visits, or as soon as the primal is at the target.
    """
    words = OCR("train", size)
    data, n = ocr_problem(words), len(words)

    def curve(end: float) -> tuple[list[dict[str, float]], Any]:
        loop = compiled_loop(data, rules, lam, seed)
        dual = loop.dual
        mean = WeightedAverage.following(dual) if average else None
        points: list[dict[str, float]] = []
        clock, visits, due, certified, seen = Clock(), 0, 1.0, 0.0, 0
        while True:
            visits += loop.step(max(n // PARTS_OF_A_PASS, 1) if average else None)
            if dual.passes - certified >= 10.0 or visits - seen >= loop.idle_epochs * n:
                certified, seen = loop.certify().passes, visits
            epochs = visits / n
            if epochs >= due:
                read = clock.stop()
                with mean.apply() if mean is not None else nullcontext():
                    value = primal(loop.head, dual.structure, data.batches, lam).value
                    points.append({**read, "primal": value, "passes": dual.passes})
                    if epochs >= end or value <= target:
                        return points, test_error(loop.head, size)
                due = min(epochs + max(1.0, epochs / 10), end)
                clock.go()

    curve(1.0)  # compiles
    points, error = curve(epochs)
    return {"curve": points, "test_error": error}


def hinge(
    optimizer: str, lr: float, epochs: int, size: str, lam: float, seed: int, batch_size: int = 64, points: int = 25
) -> dict[str, Any]:
    """A torch optimizer on the structured hinge and lam/2 |w|^2; the learning rate falls linearly to 0 over the run."""
    words = OCR("train", size)
    data, n = ocr_problem(words), len(words)
    head = LinearChain(data.in_features, data.num_states)
    loss = StructuredHinge(head.structure)
    weights = list(head.parameters())
    steps = OPTIMIZERS[optimizer](weights, lr=lr)
    total = epochs * -(-n // batch_size)
    every = max(total // points, 1)
    results = [{"seconds": 0.0, "cpu_seconds": 0.0, "primal": 1.0, "passes": 0.0}]
    loss(head(data.batches[0].x, data.batches[0].lengths), data.batches[0].y).backward()  # type: ignore[index]
    clock = Clock()
    for step, index in enumerate(shuffled(n, batch_size, epochs, seed), 1):
        batch = words.__getitems__(index)
        steps.zero_grad()
        value = loss(head(batch.x, batch.lengths), batch.y)
        for weight in weights:
            value = value + lam / 2 * weight.square().sum()
        value.backward()
        for group in steps.param_groups:
            group["lr"] = lr * (1.0 - (step - 1) / total)
        steps.step()
        if step % every == 0 or step == total:
            read = clock.stop()
            objective = primal(head, head.structure, data.batches, lam).value
            results.append({**read, "primal": objective, "passes": step * batch_size / n})
            clock.go()
    return {"curve": results, "test_error": test_error(head, size)}


def shuffled(n: int, batch_size: int, epochs: int, seed: int) -> Iterator[list[int]]:
    """The examples in a new order each epoch, a batch at a time."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for index in torch.randperm(n, generator=generator).split(batch_size):
            yield index.tolist()


@torch.no_grad()
def test_error(head: LinearChain, size: str) -> float:
    """Share of wrong letters on the test words."""
    results = evaluate(head, head.structure, in_order(OCR("test", size)))
    assert results.token_error is not None
    return results.token_error
