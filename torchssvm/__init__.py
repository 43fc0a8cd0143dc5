"""torchssvm: max-margin structured training for PyTorch, with a certified duality gap."""

from torchssvm.batch import Batch
from torchssvm.caching import CacheOracle, MaxOracle
from torchssvm.certificate import Certificate, certify, recompute_weights
from torchssvm.checks import CheckReport, check
from torchssvm.compiled import CompiledBCFW
from torchssvm.directions import Away, Corrective, FrankWolfe, Hybrid, Pairwise
from torchssvm.dual import DualState, Labelings, MeanParts, Weights
from torchssvm.heads import Edges, LinearArcs, LinearChain, LinearEdges, LinearMulticlass, LinearTree, SparseLinearChain
from torchssvm.losses import BlockGap, StructuredHinge
from torchssvm.optim import (
    BCFW,
    Average,
    CuttingPlane,
    ExactSearch,
    ExponentiatedGradient,
    NSlack,
    OneSlack,
    PredefinedStep,
    ShortStep,
    Subgradient,
    SuffixAverage,
    UniformAverage,
    WeightedAverage,
)
from torchssvm.path import RegularizationPath, grid_search, regularization_path
from torchssvm.potentials import Potentials
from torchssvm.primal import Objective, primal
from torchssvm.sampling import GapBatchSampler, LargestGap, Permutation, Proportional, Uniform
from torchssvm.sparse import SparseFeatures
from torchssvm.structures import (
    Arborescence,
    Chain,
    Decoding,
    EdgePotentials,
    EveryClass,
    EveryLossLevel,
    EveryOutput,
    LossScaleSearch,
    Marginals,
    Matching,
    Multiclass,
    NonProjective,
    Projective,
    SlackOracle,
    SlackRescaling,
    Structure,
    TorchStruct,
    Tree,
    WeightedLabels,
)

__version__ = "0.1.0"

__all__ = [
    "BCFW",
    "Arborescence",
    "Average",
    "Away",
    "Batch",
    "BlockGap",
    "CacheOracle",
    "Certificate",
    "Chain",
    "CheckReport",
    "CompiledBCFW",
    "Corrective",
    "CuttingPlane",
    "Decoding",
    "DualState",
    "EdgePotentials",
    "Edges",
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
    "LinearArcs",
    "LinearChain",
    "LinearEdges",
    "LinearMulticlass",
    "LinearTree",
    "LossScaleSearch",
    "Marginals",
    "Matching",
    "MaxOracle",
    "MeanParts",
    "Multiclass",
    "NSlack",
    "NonProjective",
    "Objective",
    "OneSlack",
    "Pairwise",
    "Permutation",
    "Potentials",
    "PredefinedStep",
    "Projective",
    "Proportional",
    "RegularizationPath",
    "ShortStep",
    "SlackOracle",
    "SlackRescaling",
    "SparseFeatures",
    "SparseLinearChain",
    "Structure",
    "StructuredHinge",
    "Subgradient",
    "SuffixAverage",
    "TorchStruct",
    "Tree",
    "Uniform",
    "UniformAverage",
    "WeightedAverage",
    "WeightedLabels",
    "Weights",
    "certify",
    "check",
    "grid_search",
    "primal",
    "recompute_weights",
    "regularization_path",
]
