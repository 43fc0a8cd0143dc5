"""The solver that is chosen where nobody names one, beside other rules: CPU seconds to 10 % and to 1 % of the primal.

Exact passes are made after every fifth effective pass and every twentieth epoch, alike for all rules.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchssvm import (
    CacheOracle,
    Corrective,
    FrankWolfe,
    LinearChain,
    LinearMultilabel,
    LinearTree,
    Pairwise,
    Solver,
    make_trainer,
)
from torchssvm.datasets import OCR, PaddedDataset, WordAlignment
from torchssvm.models import alignment_matching

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
    "tasks": ["OCR-small", "alignment", "trees", "label sets"],
    "seconds": 60.0,
    "batch_size": 64,
}
QUICK = {"tasks": ["trees"], "seconds": 2.0}


def read(task: str) -> tuple[Any, nn.Module, float]:
    """Training set, head and lam; trees and label sets are drawn at random."""
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
    x, weights = torch.randn(n, 20, generator=random), torch.randn(20, 6, generator=random)
    scores = x @ weights
    y = (scores + 0.8 * scores.roll(1, 1) + 2.0 * torch.randn(n, 6, generator=random) > 0.5).long()
    return PaddedDataset(x, y), LinearMultilabel(20, 6), 0.01


def train(task: str, rules: str, seconds: float, batch_size: int) -> dict[str, Any]:
    """CPU seconds and passes to each share of the primal; None where the time did not suffice."""
    data, head, lam = read(task)
    trainer = make_trainer(head, data, lam, solver=Solver(batch_size=batch_size, **RULES[rules]))
    trainer.step()  # compiles
    found: dict[str, Any] = dict.fromkeys(map(str, SHARES))
    start, dual, checked, seen = time.process_time(), trainer.dual, 0.0, 0
    spent = 0.0
    while found[str(SHARES[-1])] is None and spent < seconds:
        before = dual.moved
        trainer.step()
        seen += dual.moved - before
        if dual.passes - checked >= 5.0 or seen >= 20 * len(data):
            certificate, seen = trainer.certify(), 0
            checked, spent = dual.passes, time.process_time() - start
            for share in SHARES:
                if certificate.relative_gap <= share and found[str(share)] is None:
                    found[str(share)] = [spent, certificate.passes]
        spent = time.process_time() - start
    return found


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """One run of each."""
    options = chosen(settings, OPTIONS, QUICK)
    own = {name: options[name] for name in ("seconds", "batch_size")}
    return {task: {rules: ask("train", task=task, rules=rules, **own) for rules in RULES} for task in options["tasks"]}


def summarise(found: dict[str, Any]) -> Summary:
    """A row for each rule."""
    rows = [
        [task, rules, *(cell for share in SHARES for cell in (own[str(share)] or [None, None]))]
        for task, several in found.items()
        for rules, own in several.items()
    ]
    columns = ["", "rules", *(f"{unit} to {100 * share:g} %" for share in SHARES for unit in ("CPU seconds", "passes"))]
    return Summary([Table("To a share of the primal", columns, rows)])


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"train": train}
