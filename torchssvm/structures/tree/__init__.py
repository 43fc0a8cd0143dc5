"""Trees of labels: the same edges for all examples, or different ones for each."""

from torchssvm.structures.tree.forest import Forest, ForestFeatures, ForestPotentials, LinearForest
from torchssvm.structures.tree.head import LinearTree
from torchssvm.structures.tree.oracle import max_sum_tree
from torchssvm.structures.tree.structure import Tree

__all__ = ["Forest", "ForestFeatures", "ForestPotentials", "LinearForest", "LinearTree", "Tree", "max_sum_tree"]
