"""Final linear layers: features -> potentials, linear in their weights."""

from torchssvm.heads.linear_arcs import LinearArcs
from torchssvm.heads.linear_chain import LinearChain
from torchssvm.heads.linear_edges import Edges, LinearEdges
from torchssvm.heads.linear_graph import Graphs, LinearGraph
from torchssvm.heads.linear_multiclass import LinearMulticlass
from torchssvm.heads.linear_multilabel import LinearMultilabel
from torchssvm.heads.linear_pose import LinearPose, PoseMaps
from torchssvm.heads.linear_tree import LinearTree
from torchssvm.heads.sparse_chain import SparseLinearChain
from torchssvm.heads.sparse_multilabel import SparseLinearMultilabel

__all__ = [
    "Edges",
    "Graphs",
    "LinearArcs",
    "LinearChain",
    "LinearEdges",
    "LinearGraph",
    "LinearMulticlass",
    "LinearMultilabel",
    "LinearPose",
    "LinearTree",
    "PoseMaps",
    "SparseLinearChain",
    "SparseLinearMultilabel",
]
