"""Kernel models: the emissions are kernel expansions over support tokens, trained by BCFW in the dual."""

from torchssvm.solvers.kernel.directions import KernelDirection
from torchssvm.solvers.kernel.functions import RBF, Kernel, Linear, Polynomial
from torchssvm.solvers.kernel.head import KernelChain, KernelHead, KernelMulticlass
from torchssvm.solvers.kernel.ssvm import KernelSSVM
from torchssvm.solvers.kernel.support import SupportCounts, SupportLabelings
from torchssvm.steps.directions import FrankWolfe, Pairwise

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
