"""Kernel models: the emissions are kernel expansions over support tokens, trained by BCFW in the dual."""

from torchssvm.kernels.directions import FrankWolfe, KernelDirection, Pairwise
from torchssvm.kernels.functions import RBF, Kernel, Linear, Polynomial
from torchssvm.kernels.head import KernelChain, KernelHead, KernelMulticlass
from torchssvm.kernels.ssvm import KernelSSVM, SupportCounts
from torchssvm.kernels.support import SupportLabelings

__all__ = [
    "RBF",
    "FrankWolfe",
    "Kernel",
    "KernelChain",
    "KernelDirection",
    "KernelHead",
    "KernelMulticlass",
    "KernelSSVM",
    "Linear",
    "Pairwise",
    "Polynomial",
    "SupportCounts",
    "SupportLabelings",
]
