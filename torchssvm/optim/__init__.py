"""BCFW and what it is made of."""

from torchssvm.optim.bcfw import BCFW
from torchssvm.optim.box_qp import solve_box_qp
from torchssvm.optim.line_search import ExactSearch, Line, LineSearch, PredefinedStep, ShortStep

__all__ = ["BCFW", "ExactSearch", "Line", "LineSearch", "PredefinedStep", "ShortStep", "solve_box_qp"]
