"""The baselines of the papers: subgradient, cutting planes, exponentiated gradient and grids, to compare with."""

from .cutting_plane import CuttingPlane
from .exponentiated_gradient import ExponentiatedGradient
from .grid import GridPoint, grid_search
from .n_slack import NSlack
from .one_slack import OneSlack
from .subgradient import Subgradient

__all__ = ["CuttingPlane", "ExponentiatedGradient", "GridPoint", "NSlack", "OneSlack", "Subgradient", "grid_search"]
