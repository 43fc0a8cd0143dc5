"""Training loops that several parts measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    FrankWolfe,
    GapBatchSampler,
    Labelings,
    LinearChain,
    MeanParts,
    Pairwise,
    certify,
)
from torchssvm.datasets import PaddedDataset
from torchssvm.solvers import Certificate
from torchssvm.steps import MaxOracle

from .measuring import Clock


class Rules(NamedTuple):
    """Direction and oracle of a solver."""

    direction: Callable[[], Any]
    oracle: Callable[[], Any]


RULES = {
    "FW": Rules(FrankWolfe, MaxOracle),
    "pairwise + cache": Rules(Pairwise, CacheOracle),
    "corrective + cache": Rules(Corrective, CacheOracle),
}


class Problem(NamedTuple):
    """A training set and its size: batches for an exact pass, features F and states K."""

    batches: Iterable[Batch]
    num_examples: int
    in_features: int
    num_states: int


def ocr_problem(words: PaddedDataset) -> Problem:
    """OCR, read once."""
    return Problem(list(DataLoader(words, batch_size=512, collate_fn=words.collate)), len(words), 128, 26)


def compiled_loop(
    problem: Problem, rules: str, lam: float, seed: int = 0, *, double: bool = False, capacity: int = 20
) -> CompiledBCFW:
    """A compiled loop at zero weights."""
    head = LinearChain(problem.in_features, problem.num_states).to(torch.float64 if double else torch.float32)
    storage = MeanParts() if rules == "FW" else Labelings(capacity)
    dual = DualState.for_head(head, problem.num_examples, lam, storage=storage)
    chosen = RULES[rules]
    return CompiledBCFW(head, dual, problem.batches, direction=chosen.direction(), oracle=chosen.oracle(), seed=seed)


class TorchLoop:
    """The loop of the README; an epoch at a time.

    Args:
        words: The training set.
        problem: The same, for exact passes.
        lam: Regularisation.
        seed: Of the sampler.
        batch_size: Blocks of a step.
    """

    def __init__(
        self,
        words: PaddedDataset,
        problem: Problem,
        lam: float,
        seed: int = 0,
        batch_size: int = 64,
    ) -> None:
        self.head = LinearChain(problem.in_features, problem.num_states)
        self.dual = DualState.for_head(self.head, problem.num_examples, lam)
        self.loss = BlockGap(self.dual)
        self.optimizer = BCFW(self.head.parameters(), self.dual)
        sampler = GapBatchSampler(self.dual, batch_size=batch_size, seed=seed)
        self.loader = DataLoader(words, batch_sampler=sampler, collate_fn=words.collate)
        self.problem = problem

    def epoch(self) -> None:
        """As many blocks as there are examples."""
        for batch in self.loader:
            self.step(batch)

    def step(self, batch: Batch) -> None:
        """One step."""
        self.optimizer.zero_grad()
        self.loss(self.head(batch.x, batch.lengths), batch.y, batch.index).backward()
        self.optimizer.step()

    def certify(self) -> Certificate:
        """An exact pass over what lies in memory."""
        return certify(self.head, self.dual, self.problem.batches)


def certified(loop: TorchLoop, gap: float, max_seconds: float) -> list[dict[str, float]]:
    """Nine epochs and an exact pass, again and again: checks with the seconds at each, everything inside the clock."""
    checks: list[dict[str, float]] = []
    clock = Clock()
    while not checks or (checks[-1]["gap"] > gap and checks[-1]["seconds"] < max_seconds):
        for _ in range(9):
            loop.epoch()
        results = loop.certify()
        checks.append({**clock.stop(), **as_check(results, loop.dual)})
        clock.go()
    return checks


def as_check(certificate: Certificate, dual: DualState) -> dict[str, float]:
    """What is written of a certificate."""
    return {
        "gap": certificate.gap,
        "primal": certificate.primal,
        "dual": certificate.dual,
        "passes": certificate.passes,
        "visits": dual.moved,
    }
