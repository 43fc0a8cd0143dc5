"""The linear head of labeled graphs: scores of nodes and edges are linear in their features."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.precision import full_precision, product
from torchssvm.structures.common import Head, check_fields, check_shape, check_structure, weight
from torchssvm.structures.graph_cut.structure import GraphCut, GraphPotentials


class Graphs(NamedTuple):
    """The graphs of a batch and their features, the input of :class:`LinearGraph`.

    Attributes:
        nodes: ``[B, N, F]``, features of the nodes.
        edge_features: ``[B, E, G]``, features of the edges; at least 0 if all edges must be attractive.
        edges: ``[B, E, 2]`` int64, the two ends of each edge, 0 to the example's number of nodes - 1; (-1, -1) is
            padding.

    Features of the padding must be finite and are otherwise ignored.

    Example:
        >>> edges = torch.tensor([[[0, 1], [1, 2]]])
        >>> graphs = Graphs(nodes=torch.rand(1, 3, 4), edge_features=torch.ones(1, 2, 1), edges=edges)
        >>> LinearGraph(node_features=4, edge_features=1)(graphs)["edge"].shape
        torch.Size([1, 2])
    """

    nodes: Tensor
    edge_features: Tensor
    edges: Tensor


def read_graphs(x: Graphs, node_features: int, edge_features: int) -> Graphs:
    """The argument ``x`` of a head of graphs, or any tuple of its fields in the same order."""
    x = check_fields(x, Graphs)
    bound: dict[str, int] = {}
    check_shape(x.nodes, "x.nodes", "B", "N", node_features, bound=bound)
    check_shape(x.edge_features, "x.edge_features", "B", "E", edge_features, bound=bound)
    return x


class LinearGraph(Head):
    """Potentials of graphs, ``node[p] = x[p] . unary``, ``edge[pq] = z[pq] . pairwise``; zero weights at the start.

    The model of [Osokin et al. 2016, appendix I.3]: an edge costs ``edge[pq]`` if its ends have different labels. With
    non-negative edge features and ``pairwise`` bounded below by 0, all edges are attractive and decoding is exact::

        BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)
        StructuredSVM(head, lam=..., bounds={"pairwise": (0.0, None)})

    There is no bias: add constant features to nodes and edges if you need them.

    Args:
        node_features: F, numbers per node.
        edge_features: G, numbers per edge.
        structure: How outputs are decoded and what they cost; None is ``GraphCut()``.

    Raises:
        ValueError: A number of features is less than 1.

    Example:
        >>> head = LinearGraph(node_features=4, edge_features=1)
        >>> edges = torch.tensor([[[0, 1], [1, 2]]])
        >>> potentials = head(Graphs(torch.rand(1, 3, 4), torch.ones(1, 2, 1), edges))
        >>> head.structure.argmax(potentials).labeling.labels.shape
        torch.Size([1, 3])
    """

    def __init__(self, node_features: int, edge_features: int, *, structure: GraphCut | None = None) -> None:
        super().__init__()
        self.node_features = check_whole(node_features, "node_features")
        self.edge_features = check_whole(edge_features, "edge_features")
        self.structure = check_structure(structure, "GraphCut()") or GraphCut()
        self.unary = weight(torch.zeros(self.node_features))
        self.pairwise = weight(torch.zeros(self.edge_features))

    def forward(self, x: Graphs, lengths: Tensor | None = None) -> GraphPotentials:
        """Features -> potentials ``node`` ``[B, N]`` and ``edge`` ``[B, E]``; in the weights' dtype, autocast off.

        Args:
            x: :class:`Graphs`, or any tuple of its fields in the same order.
            lengths: ``[B]`` int64, 1 to N, the number of nodes of each example; None means N for all.

        Raises:
            TypeError: ``x`` is not a tuple of three.
            ValueError: A shape or a size does not fit, or an edge does not join two nodes of its example.
        """
        nodes, links, edges = read_graphs(x, len(self.unary), len(self.pairwise))
        with full_precision(nodes.device):
            nodes, links = nodes.to(self.unary.dtype), links.to(self.pairwise.dtype)
            node, edge = product(nodes, self.unary), product(links, self.pairwise)
        return GraphPotentials(node, edge, edges, lengths, **self._products({"node": nodes, "edge": links}))
