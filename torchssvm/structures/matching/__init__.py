"""Bipartite matchings."""

from torchssvm.structures.matching.head import Edges, LinearEdges
from torchssvm.structures.matching.oracle import best_matching
from torchssvm.structures.matching.structure import POSSIBLE, EdgePotentials, Matching

__all__ = ["POSSIBLE", "EdgePotentials", "Edges", "LinearEdges", "Matching", "best_matching"]
