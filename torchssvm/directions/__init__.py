"""Directions of a step, each feasible up to step size 1."""

from torchssvm.directions.base import Direction, DirectionRule
from torchssvm.directions.frank_wolfe import FrankWolfe

__all__ = ["Direction", "DirectionRule", "FrankWolfe"]
