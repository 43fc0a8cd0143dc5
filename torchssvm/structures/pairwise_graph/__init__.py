"""One of K labels for each node of a graph, decoded by messages, with upper bounds."""

from torchssvm.structures.pairwise_graph.head import LinearPairwiseGraph, grid_edges
from torchssvm.structures.pairwise_graph.oracle import TreeReweighted
from torchssvm.structures.pairwise_graph.structure import GraphLabels, PairwiseGraph, PairwisePotentials

__all__ = [
    "GraphLabels",
    "LinearPairwiseGraph",
    "PairwiseGraph",
    "PairwisePotentials",
    "TreeReweighted",
    "grid_edges",
]
