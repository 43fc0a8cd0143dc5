"""BCFW and what it is made of."""

from torchssvm.optim.bcfw import BCFW
from torchssvm.optim.box_qp import solve_box_qp

__all__ = ["BCFW", "solve_box_qp"]
