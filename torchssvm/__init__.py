"""torchssvm: max-margin structured training for PyTorch, with a certified duality gap."""

from torchssvm.batch import Batch
from torchssvm.certificate import Certificate, certify, recompute_weights
from torchssvm.checks import CheckReport, check
from torchssvm.directions import FrankWolfe
from torchssvm.dual import DualState, MeanParts, Weights
from torchssvm.heads import LinearChain, LinearMulticlass
from torchssvm.losses import BlockGap, StructuredHinge
from torchssvm.optim import BCFW, ExactSearch, PredefinedStep, ShortStep
from torchssvm.potentials import Potentials
from torchssvm.sampling import GapBatchSampler, LargestGap, Permutation, Proportional, Uniform
from torchssvm.structures import Chain, Decoding, Multiclass, Structure, TorchStruct, WeightedLabels

__version__ = "0.1.0"

__all__ = [
    "BCFW",
    "Batch",
    "BlockGap",
    "Certificate",
    "Chain",
    "CheckReport",
    "Decoding",
    "DualState",
    "ExactSearch",
    "FrankWolfe",
    "GapBatchSampler",
    "LargestGap",
    "LinearChain",
    "LinearMulticlass",
    "MeanParts",
    "Multiclass",
    "Permutation",
    "Potentials",
    "PredefinedStep",
    "Proportional",
    "ShortStep",
    "Structure",
    "StructuredHinge",
    "TorchStruct",
    "Uniform",
    "WeightedLabels",
    "Weights",
    "certify",
    "check",
    "recompute_weights",
]
