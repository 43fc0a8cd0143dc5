"""Final linear layers: features -> potentials, linear in their weights."""

from torchssvm.heads.linear_chain import LinearChain
from torchssvm.heads.linear_edges import Edges, LinearEdges
from torchssvm.heads.linear_multiclass import LinearMulticlass
from torchssvm.heads.linear_tree import LinearTree

__all__ = ["Edges", "LinearChain", "LinearEdges", "LinearMulticlass", "LinearTree"]
