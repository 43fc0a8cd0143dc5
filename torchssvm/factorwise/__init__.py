"""Training that decouples the factors of an output: greedy direction method of multipliers [Y16]."""

from torchssvm.factorwise.certificate import FactorwiseCertificate, PassReport
from torchssvm.factorwise.gdmm import GDMM
from torchssvm.factorwise.rules import (
    AwayStep,
    BlockGreedy,
    BruteForce,
    FullyCorrective,
    Penalty,
    ResidualBalancing,
    SortedOracle,
)

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
