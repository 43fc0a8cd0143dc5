"""torchssvm: max-margin structured training for PyTorch, with a certified duality gap.

Public names, by purpose:

* Training: ``solve``, ``make_trainer``, ``Solver``, ``Relative``; ``BCFW``, ``BlockGap``; losses of networks,
  ``StructuredHinge``, ``SoftmaxMargin``, ``PerturbedFenchelYoung``; ``CompiledBCFW``, ``TorchLoop``, ``GDMM``;
  ``save_checkpoint``, ``load_checkpoint``; targets with a hidden part, ``latent``.
* Batches: ``Batch``, ``SparseFeatures``, ``Graphs``, ``Edges``, ``WeightedLabels``, ``in_order``, ``select_tokens``,
  ``grid_edges``.
* Heads, which give ``Potentials``: ``LinearArcs``, ``LinearChain``, ``LinearDecisions``, ``LinearEdges``,
  ``LinearGraph``, ``LinearMulticlass``, ``LinearMultilabel``, ``LinearPairwiseGraph``, ``LinearPose``,
  ``LinearRanking``, ``LinearSegments``, ``LinearTree``, ``SparseLinearChain``, ``SparseLinearMultilabel``.
* Structures, which decode them: ``Structure``, ``Arborescence``, ``Chain``, ``Decisions``, ``GraphCut``,
  ``HiddenStates``, ``Matching``, ``Multiclass``, ``Multilabel``, ``PairwiseGraph``, ``Pose``, ``Ranking``,
  ``Segments``, ``SlackRescaling``, ``TorchStruct``, ``Tree``.
* The dual and its storages: ``DualState``, ``MeanParts``, ``Labelings``, ``Weights``, ``recompute_weights``.
* Rules of a step: directions ``FrankWolfe``, ``Pairwise``, ``Corrective``; ``CacheOracle``;
  orders ``Proportional``, ``Uniform``, ``Permutation``, ``ByLength``, drawn by ``GapBatchSampler``.
* Choosing lambda: ``choose_lam``, ``guess_lam``, ``regularization_path``.
* Checking and reporting: ``check``, ``certify``, ``evaluate``.

Other names are in subpackages. ``torchssvm.structures.chain``, ``.decisions``, ``.ranking`` and so on have the inputs
and results of one kind of output. ``torchssvm.solvers``, with ``.gdmm`` and ``.kernel``, has averages, reports and
schedules; ``torchssvm.steps`` has further rules, ``torchssvm.path`` results of paths. Import ``torchssvm.lightning``,
``.estimators``, ``.models``, ``.datasets`` and ``.deployment`` by themselves.
"""

from torchssvm.core.batch import Batch, in_order, select_tokens
from torchssvm.core.potentials import Potentials
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.core.structure import Structure
from torchssvm.dual import DualState, Labelings, MeanParts, Weights
from torchssvm.path import choose_lam, guess_lam, regularization_path
from torchssvm.solvers import (
    BCFW,
    BlockGap,
    CompiledBCFW,
    PerturbedFenchelYoung,
    Relative,
    SoftmaxMargin,
    Solver,
    StructuredHinge,
    TorchLoop,
    certify,
    make_trainer,
    recompute_weights,
    solve,
)
from torchssvm.solvers.check import check
from torchssvm.solvers.checkpoints import load_checkpoint, save_checkpoint
from torchssvm.solvers.concave_convex import latent
from torchssvm.solvers.evaluation import evaluate
from torchssvm.solvers.gdmm import GDMM
from torchssvm.steps import Corrective, FrankWolfe, Pairwise
from torchssvm.steps.directions import CacheOracle, Permutation, Proportional, Uniform
from torchssvm.steps.sampler import ByLength, GapBatchSampler
from torchssvm.structures import (
    Arborescence,
    Chain,
    Decisions,
    Edges,
    GraphCut,
    Graphs,
    HiddenStates,
    LinearArcs,
    LinearChain,
    LinearDecisions,
    LinearEdges,
    LinearGraph,
    LinearMulticlass,
    LinearMultilabel,
    LinearPairwiseGraph,
    LinearPose,
    LinearRanking,
    LinearSegments,
    LinearTree,
    Matching,
    Multiclass,
    Multilabel,
    PairwiseGraph,
    Pose,
    Ranking,
    Segments,
    SlackRescaling,
    SparseLinearChain,
    SparseLinearMultilabel,
    TorchStruct,
    Tree,
    WeightedLabels,
    grid_edges,
)

__version__ = "0.2.0"

__all__ = [
    "BCFW",
    "GDMM",
    "Arborescence",
    "Batch",
    "BlockGap",
    "ByLength",
    "CacheOracle",
    "Chain",
    "CompiledBCFW",
    "Corrective",
    "Decisions",
    "DualState",
    "Edges",
    "FrankWolfe",
    "GapBatchSampler",
    "GraphCut",
    "Graphs",
    "HiddenStates",
    "Labelings",
    "LinearArcs",
    "LinearChain",
    "LinearDecisions",
    "LinearEdges",
    "LinearGraph",
    "LinearMulticlass",
    "LinearMultilabel",
    "LinearPairwiseGraph",
    "LinearPose",
    "LinearRanking",
    "LinearSegments",
    "LinearTree",
    "Matching",
    "MeanParts",
    "Multiclass",
    "Multilabel",
    "Pairwise",
    "PairwiseGraph",
    "Permutation",
    "PerturbedFenchelYoung",
    "Pose",
    "Potentials",
    "Proportional",
    "Ranking",
    "Relative",
    "Segments",
    "SlackRescaling",
    "SoftmaxMargin",
    "Solver",
    "SparseFeatures",
    "SparseLinearChain",
    "SparseLinearMultilabel",
    "Structure",
    "StructuredHinge",
    "TorchLoop",
    "TorchStruct",
    "Tree",
    "Uniform",
    "WeightedLabels",
    "Weights",
    "certify",
    "check",
    "choose_lam",
    "evaluate",
    "grid_edges",
    "guess_lam",
    "in_order",
    "latent",
    "load_checkpoint",
    "make_trainer",
    "recompute_weights",
    "regularization_path",
    "save_checkpoint",
    "select_tokens",
    "solve",
]
