"""A head of each class of the package, some with structures that are not their defaults."""

import torch

from torchssvm import (
    Arborescence,
    Chain,
    Decisions,
    GraphCut,
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
    SparseLinearChain,
    SparseLinearMultilabel,
    Tree,
)
from torchssvm.datasets import bio_transitions
from torchssvm.structures import LinearForest
from torchssvm.structures.arborescence import Projective
from torchssvm.structures.decisions import Knapsack, ShortestPath
from torchssvm.structures.graph_cut import RoofDual
from torchssvm.structures.multilabel import MessagePassing
from torchssvm.structures.pairwise_graph import TreeReweighted
from torchssvm.structures.ranking import NDCG

PARENT = [-1, 0, 0, 1]
DISPLACEMENTS = torch.randn(3, 2, 2, 2, generator=torch.Generator().manual_seed(0))
COSTS = 2.0 - 2.0 * torch.eye(3)
HEADS = {
    "arcs": lambda: LinearArcs(7, structure=Arborescence(Projective(), normalize=False)),
    "labelled arcs": lambda: LinearArcs(7, num_labels=2, structure=Arborescence(num_labels=2, label_cost=0.25)),
    "chain": lambda: LinearChain(3, 3),
    "transitions": lambda: LinearChain(3, 3, structure=Chain(3, transitions=bio_transitions(["O", "B-X", "I-X"]))),
    "positions": lambda: LinearChain(3, 4, bias=False, boundary=False, positions=5),
    "weighted chain": lambda: LinearChain(2, 3, structure=Chain(3, normalize=False, class_weight=COSTS[1])),
    "edges": lambda: LinearEdges(4, structure=Matching(recall_cost=2.0)),
    "graph": lambda: LinearGraph(4, 3, structure=GraphCut(RoofDual(), balanced=True)),
    "multiclass": lambda: LinearMulticlass(5, 3, bias=False),
    "costs": lambda: LinearMulticlass(5, 3, structure=Multiclass(3, COSTS)),
    "multilabel": lambda: LinearMultilabel(4, 3, structure=Multilabel(3, decoder=MessagePassing())),
    "labels alone": lambda: LinearMultilabel(4, 3, pairwise=False, structure=Multilabel(3, pairwise=False)),
    "pose": lambda: LinearPose(Pose(PARENT, DISPLACEMENTS, (6, 5), size=(0, 1))),
    "forest": lambda: LinearForest(2, 1, 3),
    "segments": lambda: LinearSegments(3, 2, 4, structure=Segments(2, 4, min_duration=[1, 2], span_loss=True)),
    "tree": lambda: LinearTree(3, 2, PARENT, shared=False),
    "other tree": lambda: LinearTree(3, 2, PARENT, bias=False, structure=Tree(2, PARENT, normalize=False)),
    "sparse chain": lambda: SparseLinearChain(30, 4, sparse_gradient=False),
    "sparse labels": lambda: SparseLinearMultilabel(30, 4, bias=False),
    "doubles": lambda: LinearChain(3, 3).double(),
    "decisions": lambda: LinearDecisions(4, structure=Decisions(Knapsack([3, 4, 5], 8)), bias=False),
    "shared decisions": lambda: LinearDecisions(4, structure=Decisions(ShortestPath.grid(2, 3)), shared=True),
    "ranking": lambda: LinearRanking(4, structure=Ranking(NDCG(k=3))),
    "general graph": lambda: LinearPairwiseGraph(4, 2, 3, directed=False),
    "general graph, messages": lambda: LinearPairwiseGraph(4, 0, 3, structure=PairwiseGraph(3, TreeReweighted(50))),
}
