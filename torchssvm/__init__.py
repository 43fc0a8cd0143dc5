"""torchssvm: max-margin structured training for PyTorch, with a certified duality gap."""

from torchssvm.batch import Batch
from torchssvm.certificate import Certificate, certify, recompute_weights
from torchssvm.checks import CheckReport, check
from torchssvm.directions import FrankWolfe
from torchssvm.dual import DualState, MeanParts, Weights
from torchssvm.heads import LinearChain, LinearMulticlass
from torchssvm.losses import BlockGap, StructuredHinge
from torchssvm.optim import BCFW, Average, Subgradient, SuffixAverage, UniformAverage, WeightedAverage
from torchssvm.potentials import Potentials
from torchssvm.primal import Objective, primal
from torchssvm.sampling import GapBatchSampler, LargestGap, Permutation, Proportional, Uniform
from torchssvm.structures import Chain, Decoding, Multiclass, Structure, TorchStruct, WeightedLabels

__version__ = "0.1.0"

__all__ = [
    "BCFW",
    "Average",
    "Batch",
    "BlockGap",
    "Certificate",
    "Chain",
    "CheckReport",
    "Decoding",
    "DualState",
    "FrankWolfe",
    "GapBatchSampler",
    "LargestGap",
    "LinearChain",
    "LinearMulticlass",
    "MeanParts",
    "Multiclass",
    "Objective",
    "Permutation",
    "Potentials",
    "Proportional",
    "Structure",
    "StructuredHinge",
    "Subgradient",
    "SuffixAverage",
    "TorchStruct",
    "Uniform",
    "UniformAverage",
    "WeightedAverage",
    "WeightedLabels",
    "Weights",
    "certify",
    "check",
    "primal",
    "recompute_weights",
]
