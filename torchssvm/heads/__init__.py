"""Final linear layers: features -> potentials, linear in their weights."""

from torchssvm.heads.linear_chain import LinearChain
from torchssvm.heads.linear_multiclass import LinearMulticlass

__all__ = ["LinearChain", "LinearMulticlass"]
