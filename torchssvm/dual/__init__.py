"""The dual state: one block for every training example, and the ways to store it."""

from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import Storage, Stored
from torchssvm.dual.weights import Weights

__all__ = ["DualState", "Labelings", "MeanParts", "Storage", "Stored", "Weights"]
