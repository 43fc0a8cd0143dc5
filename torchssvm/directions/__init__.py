"""Directions of a step, each feasible up to step size 1."""

from torchssvm.directions.away import Away
from torchssvm.directions.base import Blocks, DirectionRule
from torchssvm.directions.corrective import Corrective
from torchssvm.directions.frank_wolfe import FrankWolfe
from torchssvm.directions.hybrid import Hybrid
from torchssvm.directions.pairwise import Pairwise

__all__ = ["Away", "Blocks", "Corrective", "DirectionRule", "FrankWolfe", "Hybrid", "Pairwise"]
