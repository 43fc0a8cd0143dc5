"""The solver that is chosen where nobody names one, beside other rules: CPU seconds to 10 % and to 1 % of the primal.

Exact passes are made after every fifth effective pass and every twentieth epoch, alike for all rules.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchssvm import (
    Batch,
    CacheOracle,
    Corrective,
    Decisions,
    FrankWolfe,
    Graphs,
    LinearChain,
    LinearDecisions,
    LinearMultilabel,
    LinearPairwiseGraph,
    LinearRanking,
    LinearTree,
    Pairwise,
    Ranking,
    Solver,
    grid_edges,
    make_trainer,
)
from torchssvm.core.batch import tree_map, tree_tensors
from torchssvm.datasets import OCR, PaddedDataset, WordAlignment
from torchssvm.models import alignment_matching
from torchssvm.structures.decisions import ShortestPath
from torchssvm.structures.ranking import NDCG
from torchssvm.structures.tree import ForestFeatures, LinearForest

from .measuring import Ask, Settings, Summary, Table, chosen

TITLE = "The solver that is chosen"
SHARES = (0.1, 0.01)
RULES: dict[str, dict[str, Any]] = {
    "chosen": {},
    "torch loop: pairwise, cache": {"direction": Pairwise(), "oracle": CacheOracle(), "compiled": False},
    "torch loop: corrective, cache": {"direction": Corrective(), "oracle": CacheOracle(), "compiled": False},
    "torch loop: Frank-Wolfe": {"direction": FrankWolfe(), "compiled": False},
}
OPTIONS: dict[str, Any] = {
    "tasks": [
        "OCR-small",
        "alignment",
        "trees",
        "forests",
        "graphs",
        "label sets",
        "labels alone",
        "rankings",
        "paths",
    ],
    "seconds": 60.0,
    "batch_size": 64,
}
QUICK = {"tasks": ["trees"], "seconds": 2.0}


def read(task: str) -> tuple[Any, nn.Module, float]:
    """Training set, head and lam; all but the first two are drawn at random."""
    if task == "OCR-small":
        return OCR("train", "small"), LinearChain(128, 26), 0.01
    if task == "alignment":
        data = WordAlignment("train")
        return data, alignment_matching(data.in_features), 1.0
    random, n = torch.Generator().manual_seed(0), 600
    if task == "trees":
        x, weights = torch.randn(n, 9, 16, generator=random), torch.randn(16, 5, generator=random)
        y = (x @ weights + 0.7 * torch.randn(n, 9, 5, generator=random)).argmax(2)
        return PaddedDataset(x, y), LinearTree(16, 5, parent=[-1, 0, 0, 1, 1, 2, 2, 3, 3]), 0.01
    if task == "forests":
        x, z = torch.randn(n, 9, 16, generator=random), torch.randn(n, 9, 3, generator=random)
        parent = torch.stack([torch.randint(-1, v, (n,), generator=random) for v in range(9)], 1)
        y = (x @ torch.randn(16, 5, generator=random) + 0.7 * torch.randn(n, 9, 5, generator=random)).argmax(2)
        forests = ForestFeatures(x, z.masked_fill((parent < 0).unsqueeze(2), 0.0), parent, torch.ones(n, 9).bool())
        return Listed(forests, y), LinearForest(16, 3, 5), 0.05
    if task == "graphs":
        x, z = torch.randn(n, 16, 16, generator=random), torch.randn(n, 24, 3, generator=random)
        y = (x @ torch.randn(16, 5, generator=random) + 0.7 * torch.randn(n, 16, 5, generator=random)).argmax(2)
        return Listed(Graphs(x, z, grid_edges(4, 4).expand(n, -1, -1)), y), LinearPairwiseGraph(16, 3, 5), 0.05
    if task == "rankings":
        x = torch.randn(n, 20, 30, generator=random)
        scores = x @ torch.randn(30, generator=random) + 3.0 * torch.randn(n, 20, generator=random)
        grades = torch.bucketize(scores, scores.flatten().quantile(torch.tensor([0.6, 0.9])))
        return PaddedDataset(x, grades), LinearRanking(30, structure=Ranking(NDCG(10))), 0.01
    if task == "paths":
        structure = Decisions(ShortestPath.grid(5, 5))
        x = torch.randn(n, 5, generator=random)
        costs = (1.0 + (x @ torch.randn(5, 40, generator=random)) / 5**0.5 + 3.0).clamp(min=0.1) ** 2
        return Listed(x, structure.target(costs.double())), LinearDecisions(5, structure=structure), 0.01
    x, weights = torch.randn(n, 20, generator=random), torch.randn(20, 6, generator=random)
    scores = x @ weights
    y = (scores + 0.8 * scores.roll(1, 1) + 2.0 * torch.randn(n, 6, generator=random) > 0.5).long()
    return PaddedDataset(x, y), LinearMultilabel(20, 6, pairwise=task == "label sets"), 0.01


class Listed:
    """Features and targets as they are, without padding: trees of tensors whose first axis is the examples'."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(tree_tensors(self.x)[0])

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        index = torch.tensor(rows)
        return Batch(*(tree_map(lambda t: t[index], one) for one in (self.x, self.y)), index)

    def __getitem__(self, i: int) -> Batch:
        return self.__getitems__([i])

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """What ``__getitems__`` made."""
        return batch


def train(task: str, rules: str, seconds: float, batch_size: int) -> dict[str, Any]:
    """CPU seconds and passes to each share of the primal; None where the time did not suffice."""
    data, head, lam = read(task)
    trainer = make_trainer(head, data, lam, solver=Solver(batch_size=batch_size, **RULES[rules]))
    trainer.step()  # both compile
    trainer.certify()
    results: dict[str, Any] = dict.fromkeys(map(str, SHARES))
    start, dual, checked, seen = time.process_time(), trainer.dual, trainer.dual.passes, 0
    spent = 0.0
    while results[str(SHARES[-1])] is None and spent < seconds:
        before = dual.moved
        trainer.step()
        seen += dual.moved - before
        if dual.passes - checked >= 5.0 or seen >= 20 * len(data):
            certificate, seen = trainer.certify(), 0
            checked, spent = dual.passes, time.process_time() - start
            for share in SHARES:
                if certificate.relative_gap <= share and results[str(share)] is None:
                    results[str(share)] = [spent, certificate.passes]
        spent = time.process_time() - start
    return results


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """One run of each."""
    options = chosen(settings, OPTIONS, QUICK)
    both = {name: options[name] for name in ("seconds", "batch_size")}
    return {task: {rules: ask("train", task=task, rules=rules, **both) for rules in RULES} for task in options["tasks"]}


def summarise(results: dict[str, Any]) -> Summary:
    """A row for each rule."""
    rows = [
        [task, rules, *(cell for share in SHARES for cell in (result[str(share)] or [None, None]))]
        for task, several in results.items()
        for rules, result in several.items()
    ]
    columns = ["", "rules", *(f"{unit} to {100 * share:g} %" for share in SHARES for unit in ("CPU seconds", "passes"))]
    return Summary([Table("To a share of the primal", columns, rows)])


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"train": train}
