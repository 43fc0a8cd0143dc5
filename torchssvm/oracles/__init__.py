"""The kernels under the structures: they know tensors, and nothing of structures, heads or duals."""

from torchssvm.oracles.sum_product import sum_product
from torchssvm.oracles.viterbi import viterbi

__all__ = ["sum_product", "viterbi"]
