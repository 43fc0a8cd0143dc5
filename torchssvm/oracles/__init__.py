"""The kernels under the structures: they know tensors, and nothing of structures, heads or duals."""

from torchssvm.oracles.viterbi import viterbi

__all__ = ["viterbi"]
