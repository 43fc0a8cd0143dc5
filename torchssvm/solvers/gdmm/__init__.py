"""Greedy direction method of multipliers: training with decoupled factors [Y16]."""

from torchssvm.solvers.certificate import FactorwiseCertificate, PassReport
from torchssvm.solvers.gdmm import chains, label_sets  # noqa: F401  (they name the heads that they train)
from torchssvm.solvers.gdmm.rules import (
    AwayStep,
    BlockGreedy,
    BruteForce,
    FullyCorrective,
    Penalty,
    ResidualBalancing,
    SortedOracle,
)
from torchssvm.solvers.gdmm.solver import GDMM

__all__ = [
    "GDMM",
    "AwayStep",
    "BlockGreedy",
    "BruteForce",
    "FactorwiseCertificate",
    "FullyCorrective",
    "PassReport",
    "Penalty",
    "ResidualBalancing",
    "SortedOracle",
]
