"""torchssvm: max-margin structured training for PyTorch, with a certified duality gap."""

from torchssvm.batch import Batch
from torchssvm.caching import CacheOracle, MaxOracle
from torchssvm.certificate import Certificate, certify, recompute_weights
from torchssvm.checks import CheckReport, check
from torchssvm.directions import Away, Corrective, FrankWolfe, Hybrid, Pairwise
from torchssvm.dual import DualState, Labelings, MeanParts, Weights
from torchssvm.heads import LinearChain, LinearMulticlass
from torchssvm.losses import BlockGap, StructuredHinge
from torchssvm.optim import (
    BCFW,
    CuttingPlane,
    ExactSearch,
    ExponentiatedGradient,
    NSlack,
    OneSlack,
    PredefinedStep,
    ShortStep,
)
from torchssvm.path import RegularizationPath, grid_search, regularization_path
from torchssvm.potentials import Potentials
from torchssvm.sampling import GapBatchSampler, LargestGap, Permutation, Proportional, Uniform
from torchssvm.structures import (
    Chain,
    Decoding,
    EveryClass,
    EveryLossLevel,
    EveryOutput,
    LossScaleSearch,
    Marginals,
    Multiclass,
    SlackOracle,
    SlackRescaling,
    Structure,
    TorchStruct,
    WeightedLabels,
)

__version__ = "0.1.0"

__all__ = [
    "BCFW",
    "Away",
    "Batch",
    "BlockGap",
    "CacheOracle",
    "Certificate",
    "Chain",
    "CheckReport",
    "Corrective",
    "CuttingPlane",
    "Decoding",
    "DualState",
    "EveryClass",
    "EveryLossLevel",
    "EveryOutput",
    "ExactSearch",
    "ExponentiatedGradient",
    "FrankWolfe",
    "GapBatchSampler",
    "Hybrid",
    "Labelings",
    "LargestGap",
    "LinearChain",
    "LinearMulticlass",
    "LossScaleSearch",
    "Marginals",
    "MaxOracle",
    "MeanParts",
    "Multiclass",
    "NSlack",
    "OneSlack",
    "Pairwise",
    "Permutation",
    "Potentials",
    "PredefinedStep",
    "Proportional",
    "RegularizationPath",
    "ShortStep",
    "SlackOracle",
    "SlackRescaling",
    "Structure",
    "StructuredHinge",
    "TorchStruct",
    "Uniform",
    "WeightedLabels",
    "Weights",
    "certify",
    "check",
    "grid_search",
    "recompute_weights",
    "regularization_path",
]
