"""The rules of a step: directions, the cache of labelings, the box QP, line searches and orders of visiting blocks."""

from torchssvm.steps.block_steps import BlockSteps, CommonStep
from torchssvm.steps.box_qp import BoxQP, solve_box_qp
from torchssvm.steps.by_length import ByLength
from torchssvm.steps.cache import CacheOracle, MaxOracle, OracleRule
from torchssvm.steps.directions import Atoms, Away, Corrective, DirectionRule, FrankWolfe, Hybrid, Pairwise
from torchssvm.steps.line_search import ExactSearch, Line, LineSearch, PredefinedStep, ShortStep
from torchssvm.steps.orders import LargestGap, Order, Permutation, Proportional, Uniform
from torchssvm.steps.sampler import GapBatchSampler

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
