"""Figure 3 of [G16] on horses: uniform or gap sampling, Frank-Wolfe or pairwise steps, with or without the cache.

All take the same steps in the same plain loop on the graph cuts of ``HorseSegmentation``, one image after another, from
zero weights to a certified gap, which is 1 there. An exact pass follows every ten visits of every image, as in the
paper. Counted are effective passes (oracle calls / n, those of exact passes included) and CPU seconds on one thread;
reading the graphs is outside.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from torchssvm import BCFW, BlockGap, DualState, Labelings, LinearGraph, TorchLoop, certify, in_order
from torchssvm.datasets import HorseSegmentation, PrecomputedGraphs
from torchssvm.solvers import Certificate

from .convergence import RULES, Log, curves, medians
from .measuring import Ask, Settings, Summary, chosen, in_turn

TITLE = "Horses: graph cuts to certified gaps"
GAPS = (0.1, 0.05, 0.02, 0.01)
EPOCHS = 10  # of visits between exact passes
OPTIONS: dict[str, Any] = {
    "data": None,
    "num_train": 200,
    "lam": 10.0,
    "solvers": list(RULES),
    "seeds": 3,
    "gap": GAPS[-1],
    "max_seconds": 120.0,
    "capacity": 20,
}
QUICK = {"seeds": 1, "gap": 0.3, "max_seconds": 1.0}


class EveryVisits:
    """An exact pass after so many epochs of visits, whoever answered them.

    Args:
        epochs: Visits of every image, on average.
    """

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self._last: int | None = None
        self._now = 0

    def due(self, dual: Any, tolerance: float) -> bool:
        """Whether as many blocks were moved since the last exact pass."""
        self._now = dual.moved
        self._last = dual.moved if self._last is None else self._last
        return dual.moved - self._last >= self.epochs * dual.num_examples

    def after(self, certificate: Certificate) -> None:
        """Count from here."""
        self._last = self._now


def train(
    solver: str, seed: int, data: str | None, num_train: int, lam: float, gap: float, max_seconds: float, capacity: int
) -> dict[str, Any]:
    """One training run."""
    graphs, rules = PrecomputedGraphs(HorseSegmentation("train", data, num_train=num_train)), RULES[solver]
    head = LinearGraph(graphs.in_features, graphs.edge_features)
    dual = DualState.for_head(head, len(graphs), lam, storage=Labelings(capacity))
    optimizer = BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)
    log = Log(dual, max_seconds)
    with contextlib.suppress(TimeoutError):
        log(certify(head, dual, in_order(graphs, batch_size=16)))
        loss = BlockGap(dual, rules.direction(), oracle=rules.oracle())
        loop = TorchLoop(head, loss, graphs, batch_size=1, order=rules.order(), seed=seed, optimizer=optimizer)
        loop.solve(gap, schedule=EveryVisits(EPOCHS), on_check=log)
    weights = {"edge_weights_at_0": int((head.pairwise == 0).sum()), "edge_weights": len(head.pairwise)}
    return {"checks": log.checks, "memory": dual.storage.nbytes(), **weights}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """All solvers under all seeds, in turn."""
    options = chosen(settings, OPTIONS, QUICK)
    solvers, seeds = options.pop("solvers"), options.pop("seeds")
    runs = in_turn(solvers, seeds, lambda solver, seed: ask("train", solver=solver, seed=seed, **options))
    return {**options, "runs": runs}


def summarise(results: dict[str, Any]) -> Summary:
    """Passes and seconds to each gap."""
    gaps = [gap for gap in GAPS if gap >= results["gap"]] or [results["gap"]]
    return Summary([medians(f"horses, n = {results['num_train']}, lam = {results['lam']:g}", results["runs"], gaps)])


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Gaps by passes and by CPU seconds."""
    return [curves(folder / "horses.png", results["runs"])]


MEASURES = {"train": train}
