"""The kernels under the structures: they know tensors, and nothing of structures, heads or duals."""

from torchssvm.oracles.assignment import best_matching
from torchssvm.oracles.chain_labelings import chain_parts, chain_scores
from torchssvm.oracles.distance_transform import distance_transform
from torchssvm.oracles.eisner import eisner
from torchssvm.oracles.graph_cut import min_cut, roof_dual
from torchssvm.oracles.max_arborescence import max_arborescence
from torchssvm.oracles.max_sum_grid import max_sum_grid
from torchssvm.oracles.max_sum_tree import max_sum_tree
from torchssvm.oracles.multilabel import best_label_sets
from torchssvm.oracles.sum_product import sum_product
from torchssvm.oracles.threads import run_in_chunks
from torchssvm.oracles.viterbi import viterbi
from torchssvm.oracles.viterbi_by_level import ByLevel, viterbi_by_level

__all__ = [
    "ByLevel",
    "best_label_sets",
    "best_matching",
    "chain_parts",
    "chain_scores",
    "distance_transform",
    "eisner",
    "max_arborescence",
    "max_sum_grid",
    "max_sum_tree",
    "min_cut",
    "roof_dual",
    "run_in_chunks",
    "sum_product",
    "viterbi",
    "viterbi_by_level",
]
