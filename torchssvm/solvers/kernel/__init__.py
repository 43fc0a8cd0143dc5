"""Kernel models: the emissions are kernel expansions over support tokens, trained by BCFW in the dual."""

from torchssvm.solvers.kernel.head import RBF, Kernel, KernelChain, KernelHead, KernelMulticlass, Linear, Polynomial
from torchssvm.solvers.kernel.ssvm import KernelSSVM, SupportCounts

__all__ = [
    "RBF",
    "Kernel",
    "KernelChain",
    "KernelHead",
    "KernelMulticlass",
    "KernelSSVM",
    "Linear",
    "Polynomial",
    "SupportCounts",
]
