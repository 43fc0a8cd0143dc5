"""The kernels under the structures: they know tensors, and nothing of structures, heads or duals."""

from torchssvm.oracles.chain_labelings import chain_parts, chain_scores
from torchssvm.oracles.viterbi import viterbi

__all__ = ["chain_parts", "chain_scores", "viterbi"]
