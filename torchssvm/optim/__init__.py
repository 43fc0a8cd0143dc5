"""BCFW and what it is made of, averages of the iterates, and the other solvers of the papers."""

from torchssvm.factorwise import GDMM
from torchssvm.optim.averages import Average, SuffixAverage, UniformAverage, WeightedAverage
from torchssvm.optim.bcfw import BCFW
from torchssvm.optim.box_qp import solve_box_qp
from torchssvm.optim.cutting_plane import CuttingPlane
from torchssvm.optim.exponentiated_gradient import ExponentiatedGradient
from torchssvm.optim.line_search import ExactSearch, Line, LineSearch, PredefinedStep, ShortStep
from torchssvm.optim.n_slack import NSlack
from torchssvm.optim.one_slack import OneSlack
from torchssvm.optim.subgradient import Subgradient

__all__ = [
    "BCFW",
    "GDMM",
    "Average",
    "CuttingPlane",
    "ExactSearch",
    "ExponentiatedGradient",
    "Line",
    "LineSearch",
    "NSlack",
    "OneSlack",
    "PredefinedStep",
    "ShortStep",
    "Subgradient",
    "SuffixAverage",
    "UniformAverage",
    "WeightedAverage",
    "solve_box_qp",
]
