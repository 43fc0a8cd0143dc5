"""What an output is: parts, loss and decoding, one structure a file."""

from torchssvm.structures.base import Corner, Decoding, Marginals, Structure, find_corner
from torchssvm.structures.chain import Chain, WeightedLabels
from torchssvm.structures.multiclass import Multiclass
from torchssvm.structures.torch_struct import TorchStruct

__all__ = [
    "Chain",
    "Corner",
    "Decoding",
    "Marginals",
    "Multiclass",
    "Structure",
    "TorchStruct",
    "WeightedLabels",
    "find_corner",
]
