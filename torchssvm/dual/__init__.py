"""The dual state: one block for every training example, and the ways to store it."""

from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.proposal import Proposal
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import Found, Storage, Stored
from torchssvm.dual.weights import Weights

__all__ = ["DualState", "Found", "Labelings", "MeanParts", "Proposal", "Storage", "Stored", "Weights"]
