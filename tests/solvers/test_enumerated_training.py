"""BCFW on tiny problems: every certificate on the way holds the optimum of a QP over all outputs.

With every storage, direction and oracle rule, within bounds, and in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.bounded import Bounded
from cases.enumerated import linear_problem, listing, optimum_between
from cases.problems import Reference, flat, rng

from torchssvm import (
    CacheOracle,
    Corrective,
    FrankWolfe,
    Labelings,
    MeanParts,
    Pairwise,
    Weights,
    certify,
)
from torchssvm.steps import Away, Hybrid, MaxOracle

pytest.importorskip("clarabel")

DIRECTIONS = [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()]
RULES: list[tuple[Callable[[], Any], Any, Any]] = [
    (MeanParts, FrankWolfe(), MaxOracle()),
    (Weights, FrankWolfe(), MaxOracle()),
    *(
        (lambda capacity=capacity: Labelings(capacity), direction, oracle)
        for capacity, direction, oracle in itertools.product((2, 20), DIRECTIONS, (MaxOracle(), CacheOracle()))
    ),
]
STEPS = 12
MOMENTS = (1, 5, STEPS)


def lam_of(random: torch.Generator) -> float:
    return 0.01 * 200.0 ** float(torch.rand((), generator=random))  # 0.01 to 2


def check(training: Bounded, truth: Reference, random: torch.Generator, about: str, *, exact: bool) -> int:
    """Train, certify now and then, and compare; how many certificates were exact."""
    problem = training.problem
    below, above = optimum_between(truth, *training.limits())
    rounding = 1e-9 * (1.0 + 1.0 / problem.lam)
    value, proved = 0.0, 0
    for step in range(1, STEPS + 1):
        size = 1 + int(torch.randint(0, 3, (), generator=random))
        training.step(torch.randint(0, problem.n, (size,), generator=random).tolist())
        assert training.dual.value() >= value - rounding, f"{about}, step {step}: the dual fell"
        value = training.dual.value()
        if step not in MOMENTS:
            continue
        certificate = certify(problem.head, training.dual, problem.everything())
        where = f"{about}, step {step}: {certificate}, optimum between {below} and {above}"
        primal = truth.primal(flat(problem.head.parameters()))
        assert certificate.exact or not exact
        assert certificate.primal - certificate.dual == certificate.gap
        assert certificate.dual == pytest.approx(value, abs=rounding)
        assert certificate.dual <= above + rounding, where
        assert certificate.primal >= max(below, primal) - rounding, where
        if certificate.exact:
            assert certificate.primal == pytest.approx(primal, abs=rounding), where
        proved += certificate.exact
    assert value > 0.0
    return proved


@pytest.mark.parametrize("kind", ["chain", "multiclass"])
@pytest.mark.parametrize("within", ["bounds", "no bounds"])
def test_exact_oracles(kind, within):
    turn = (kind == "chain") + (within == "bounds")  # every rule with each kind and within bounds, by turns
    for k, (storage, direction, oracle) in enumerate(RULES):
        if (k // 2 + turn) % 2:
            continue
        seed = 100 * k + len(within)
        random = rng(seed)
        lists = listing(seed, chain=kind == "chain", n=1 + k % 4, states=2 + k % 2)
        problem = linear_problem(lists, lam_of(random))
        names = [name for name, _ in problem.head.named_parameters()]
        limited = {names[0]: (-0.1, 0.2), names[-1]: (-0.3, None)} if within == "bounds" else {}
        training = Bounded(problem, limited, storage=storage(), direction=direction, oracle=oracle)
        about = f"{kind} {seed}, {within}, {storage()}, {direction}, {oracle}"
        assert check(training, lists.reference(problem.lam), random, about, exact=True) == len(MOMENTS)
