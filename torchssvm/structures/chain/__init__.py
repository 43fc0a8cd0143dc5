"""Chains: a label for every token, and weights for neighbouring labels."""

from torchssvm.structures.chain.head import LinearChain, SparseLinearChain
from torchssvm.structures.chain.nbest import NBest
from torchssvm.structures.chain.oracle import viterbi
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.chain.transitions import Transitions
from torchssvm.structures.common import WeightedLabels

__all__ = ["Chain", "LinearChain", "NBest", "SparseLinearChain", "Transitions", "WeightedLabels", "viterbi"]
