"""The baselines of the papers: subgradient, cutting planes and exponentiated gradient, to compare solvers with."""

from .cutting_plane import CuttingPlane
from .exponentiated_gradient import ExponentiatedGradient
from .n_slack import NSlack
from .one_slack import OneSlack
from .subgradient import Subgradient

__all__ = ["CuttingPlane", "ExponentiatedGradient", "NSlack", "OneSlack", "Subgradient"]
