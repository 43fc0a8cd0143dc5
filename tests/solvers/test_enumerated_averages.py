"""Averages on tiny problems: certificates hold the optimum of a QP over all outputs; training never notices them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.bounded import Bounded, limits
from cases.enumerated import linear_problem, listing, optimum_between
from cases.problems import Problem, assert_same, flat, rng

from torchssvm import (
    CacheOracle,
    CompiledBCFW,
    Corrective,
    FrankWolfe,
    Labelings,
    MeanParts,
    Pairwise,
    Weights,
    certify,
)
from torchssvm.solvers import SuffixAverage, UniformAverage, WeightedAverage
from torchssvm.steps import Away, Hybrid, MaxOracle

pytest.importorskip("clarabel")

KINDS = [WeightedAverage, SuffixAverage, UniformAverage]
RULES: list[tuple[Any, Any, Any]] = [
    (MeanParts, FrankWolfe(), MaxOracle()),
    (Weights, FrankWolfe(), MaxOracle()),
    *((lambda: Labelings(2), direction, MaxOracle()) for direction in (Pairwise(), Away(), Hybrid(), Corrective())),
    *((Labelings, direction, CacheOracle()) for direction in (FrankWolfe(), Pairwise(), Away(), Corrective())),
]


class Run:
    """One training, in the torch loop or the compiled one, with every average of it."""

    def __init__(self, seed: int) -> None:
        self.random = rng(seed)
        self.lists = listing(seed, chain=seed % 2 == 0, n=1 + self.draw(4), states=2 + self.draw(2))
        storage, direction, oracle = RULES[seed % len(RULES)]
        self.problem: Problem = linear_problem(self.lists, 0.01 * 200.0 ** float(torch.rand((), generator=self.random)))
        names = [name for name, _ in self.problem.head.named_parameters()]
        self.bounds = {names[0]: (-0.1, 0.2), names[1]: (0.0, None)} if seed % 3 == 1 and len(names) > 1 else {}
        rules = {"direction": direction, "oracle": oracle}
        self.training = Bounded(self.problem, self.bounds, storage=storage(), **rules)
        self.rules = None if self.bounds or storage is Weights else rules
        self.averages = [kind.following(self.training.dual) for kind in KINDS]

    def draw(self, most: int) -> int:
        return int(torch.randint(0, most, (), generator=self.random))

    def train(self, steps: int) -> None:
        """Steps, exact passes between them, and portions of the compiled loop."""
        for step in range(steps):
            if self.rules is not None and step % 4 == 3:
                everything = self.problem.everything()
                CompiledBCFW(self.problem.head, self.training.dual, everything, **self.rules).step(1 + self.draw(3))
            else:
                rows = torch.randint(0, self.problem.n, (1 + self.draw(3),), generator=self.random)
                self.training.step(rows.tolist())
            if self.draw(3) == 0:
                certify(self.problem.head, self.training.dual, self.problem.everything())

    def check(self, where: str) -> int:
        """Every average against the enumeration; how many there were."""
        dual, everything = self.training.dual, self.problem.everything()
        truth = self.lists.reference(self.problem.lam)
        below, above = optimum_between(truth, *limits(self.problem, self.bounds))
        rounding = 1e-9 * (1.0 + 1.0 / self.problem.lam)
        for average in self.averages:
            before = self.training.snapshot()
            with average.apply():
                certificate = certify(self.problem.head, dual, everything, refresh=False)
            after = self.training.snapshot()
            assert_same(after["weights"], before["weights"])
            names = ("loss", "recomputed", *(("storage",) if certificate.drift > 1e-9 else ()))
            for name in names:  # an average that is the last iterate is certified as the run, which caches labelings
                assert_same(after["dual"][name], before["dual"][name])
            about = f"{where}, {average}: {certificate}, optimum between {below} and {above}"
            assert certificate.exact
            assert certificate.primal - certificate.dual == certificate.gap
            assert certificate.dual <= above + rounding, about
            assert certificate.primal >= below - rounding, about
            assert certificate.primal == pytest.approx(truth.primal(flat(average.weights)), abs=rounding), about
        return len(self.averages)


@pytest.mark.parametrize("portion", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_certificates_of_averages(portion):
    """Every rule once."""
    checked = 0
    for seed in range(len(RULES) * portion, len(RULES) * (portion + 1)):
        run = Run(seed)
        run.train(9)
        checked += run.check(f"problem {seed}")
    assert checked == len(KINDS) * len(RULES)
