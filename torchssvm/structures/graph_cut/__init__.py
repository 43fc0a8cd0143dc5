"""Binary labelings of graphs, decoded by minimum cuts."""

from torchssvm.structures.graph_cut.head import Graphs, LinearGraph
from torchssvm.structures.graph_cut.oracle import min_cut, roof_dual
from torchssvm.structures.graph_cut.structure import GraphCut, GraphPotentials, MinCut, RoofDual, Segmentation

__all__ = [
    "GraphCut",
    "GraphPotentials",
    "Graphs",
    "LinearGraph",
    "MinCut",
    "RoofDual",
    "Segmentation",
    "min_cut",
    "roof_dual",
]
