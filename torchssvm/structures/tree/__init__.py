"""Trees of labels with given edges."""

from torchssvm.structures.tree.head import LinearTree
from torchssvm.structures.tree.oracle import max_sum_tree
from torchssvm.structures.tree.structure import Tree

__all__ = ["LinearTree", "Tree", "max_sum_tree"]
