"""One of several classes."""

from torchssvm.structures.multiclass.head import LinearMulticlass
from torchssvm.structures.multiclass.structure import Multiclass

__all__ = ["LinearMulticlass", "Multiclass"]
