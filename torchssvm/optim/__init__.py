"""BCFW and what it is made of, averages of the iterates, and the subgradient baseline."""

from torchssvm.optim.averages import Average, SuffixAverage, UniformAverage, WeightedAverage
from torchssvm.optim.bcfw import BCFW
from torchssvm.optim.box_qp import solve_box_qp
from torchssvm.optim.line_search import ExactSearch, Line, LineSearch, PredefinedStep, ShortStep
from torchssvm.optim.subgradient import Subgradient

__all__ = [
    "BCFW",
    "Average",
    "ExactSearch",
    "Line",
    "LineSearch",
    "PredefinedStep",
    "ShortStep",
    "Subgradient",
    "SuffixAverage",
    "UniformAverage",
    "WeightedAverage",
    "solve_box_qp",
]
