"""Kernel models: the emissions are kernel expansions over support tokens, trained by BCFW in the dual."""

from torchssvm.solvers.kernel.functions import RBF, Kernel, Linear, Polynomial
from torchssvm.solvers.kernel.head import KernelChain, KernelHead, KernelMulticlass
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
