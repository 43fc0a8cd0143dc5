"""The kernels under the structures: they know tensors, and nothing of structures, heads or duals."""

from torchssvm.oracles.viterbi import viterbi
from torchssvm.oracles.viterbi_by_level import ByLevel, viterbi_by_level

__all__ = ["ByLevel", "viterbi", "viterbi_by_level"]
