"""What an output is: parts, loss and decoding, one structure a file."""

from torchssvm.structures.arborescence import Arborescence, NonProjective, Projective
from torchssvm.structures.base import Corner, Decoding, Marginals, Structure, as_decoding, find_corner
from torchssvm.structures.chain import Chain, WeightedLabels
from torchssvm.structures.graph_cut import GraphCut, GraphPotentials, MinCut, RoofDual, Segmentation
from torchssvm.structures.matching import POSSIBLE, EdgePotentials, Matching
from torchssvm.structures.multiclass import Multiclass
from torchssvm.structures.multilabel import BranchAndBound, LabelSetOracle, MessagePassing, Multilabel
from torchssvm.structures.pose import Pose
from torchssvm.structures.slack_oracles import EveryClass, EveryLossLevel, EveryOutput, SlackOracle
from torchssvm.structures.slack_rescaling import SlackRescaling
from torchssvm.structures.slack_search import LossScaleSearch
from torchssvm.structures.torch_struct import TorchStruct
from torchssvm.structures.tree import Tree

__all__ = [
    "POSSIBLE",
    "Arborescence",
    "BranchAndBound",
    "Chain",
    "Corner",
    "Decoding",
    "EdgePotentials",
    "EveryClass",
    "EveryLossLevel",
    "EveryOutput",
    "GraphCut",
    "GraphPotentials",
    "LabelSetOracle",
    "LossScaleSearch",
    "Marginals",
    "Matching",
    "MessagePassing",
    "MinCut",
    "Multiclass",
    "Multilabel",
    "NonProjective",
    "Pose",
    "Projective",
    "RoofDual",
    "Segmentation",
    "SlackOracle",
    "SlackRescaling",
    "Structure",
    "TorchStruct",
    "Tree",
    "WeightedLabels",
    "as_decoding",
    "find_corner",
]
