"""The rules of a step: directions, the cache of labelings, the box QP, line searches and orders of visiting blocks."""

from torchssvm.steps.box_qp import BlockSteps, BoxQP, CommonStep, solve_box_qp
from torchssvm.steps.directions import (
    Atoms,
    Away,
    CacheOracle,
    Corrective,
    DirectionRule,
    FrankWolfe,
    Hybrid,
    LargestGap,
    MaxOracle,
    OracleRule,
    Order,
    Pairwise,
    Permutation,
    Proportional,
    Uniform,
)
from torchssvm.steps.line_search import ExactSearch, Line, LineSearch, PredefinedStep, ShortStep
from torchssvm.steps.sampler import ByLength, GapBatchSampler

__all__ = [
    "Atoms",
    "Away",
    "BlockSteps",
    "BoxQP",
    "ByLength",
    "CacheOracle",
    "CommonStep",
    "Corrective",
    "DirectionRule",
    "ExactSearch",
    "FrankWolfe",
    "GapBatchSampler",
    "Hybrid",
    "LargestGap",
    "Line",
    "LineSearch",
    "MaxOracle",
    "OracleRule",
    "Order",
    "Pairwise",
    "Permutation",
    "PredefinedStep",
    "Proportional",
    "ShortStep",
    "Uniform",
    "solve_box_qp",
]
