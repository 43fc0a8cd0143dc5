"""What an output is: a folder for each kind, with its structure, its head, its oracle and the oracle's kernels."""

from torchssvm.core.structure import Decoding, Marginals, OracleResult, Structure, as_decoding, find_corner
from torchssvm.structures.arborescence.head import LinearArcs
from torchssvm.structures.arborescence.structure import Arborescence, NonProjective, Projective
from torchssvm.structures.arguments import WeightedLabels
from torchssvm.structures.chain.head import LinearChain
from torchssvm.structures.chain.sparse_head import SparseLinearChain
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.graph_cut.head import Graphs, LinearGraph
from torchssvm.structures.graph_cut.structure import GraphCut, GraphPotentials, MinCut, RoofDual, Segmentation
from torchssvm.structures.matching.head import Edges, LinearEdges
from torchssvm.structures.matching.structure import POSSIBLE, EdgePotentials, Matching
from torchssvm.structures.multiclass.head import LinearMulticlass
from torchssvm.structures.multiclass.structure import Multiclass
from torchssvm.structures.multilabel.head import LinearMultilabel
from torchssvm.structures.multilabel.sparse_head import SparseLinearMultilabel
from torchssvm.structures.multilabel.structure import BranchAndBound, LabelSetOracle, MessagePassing, Multilabel
from torchssvm.structures.pose.head import LinearPose, PoseMaps
from torchssvm.structures.pose.structure import Pose
from torchssvm.structures.slack_rescaling.oracles import BruteForceSearch, EveryClass, EveryLossLevel, SlackOracle
from torchssvm.structures.slack_rescaling.search import LossScaleSearch
from torchssvm.structures.slack_rescaling.structure import SlackRescaling
from torchssvm.structures.torch_struct import TorchStruct
from torchssvm.structures.tree.head import LinearTree
from torchssvm.structures.tree.structure import Tree

__all__ = [
    "POSSIBLE",
    "Arborescence",
    "BranchAndBound",
    "BruteForceSearch",
    "Chain",
    "Decoding",
    "EdgePotentials",
    "Edges",
    "EveryClass",
    "EveryLossLevel",
    "GraphCut",
    "GraphPotentials",
    "Graphs",
    "LabelSetOracle",
    "LinearArcs",
    "LinearChain",
    "LinearEdges",
    "LinearGraph",
    "LinearMulticlass",
    "LinearMultilabel",
    "LinearPose",
    "LinearTree",
    "LossScaleSearch",
    "Marginals",
    "Matching",
    "MessagePassing",
    "MinCut",
    "Multiclass",
    "Multilabel",
    "NonProjective",
    "OracleResult",
    "Pose",
    "PoseMaps",
    "Projective",
    "RoofDual",
    "Segmentation",
    "SlackOracle",
    "SlackRescaling",
    "SparseLinearChain",
    "SparseLinearMultilabel",
    "Structure",
    "TorchStruct",
    "Tree",
    "WeightedLabels",
    "as_decoding",
    "find_corner",
]
