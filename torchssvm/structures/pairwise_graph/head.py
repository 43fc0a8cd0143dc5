"""The linear head of graphs with K labels, and the graph of an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_choice, check_flags, check_whole
from torchssvm.core.potentials import Parts, own_weights
from torchssvm.core.precision import full_precision, product
from torchssvm.structures.common import Head, fitting, weight
from torchssvm.structures.graph_cut.head import Graphs, read_graphs
from torchssvm.structures.pairwise_graph.oracle import TreeReweighted
from torchssvm.structures.pairwise_graph.structure import PairwiseGraph, PairwisePotentials


class LinearPairwiseGraph(Head):
    """Potentials of graphs: ``node[p] = W x[p]`` and ``edge[pq] = sum_g z[pq, g] E[g]``; all weights start at zero.

    Without features of edges, one table ``[K, K]`` serves all edges. There is no bias: add a constant feature to nodes
    and edges if you need one.

    Args:
        node_features: F, numbers per node.
        edge_features: G, numbers per edge; 0 means one table for all edges.
        num_labels: K, the number of labels.
        directed: Whether the first end of an edge is another than its second. If not, the tables are symmetric: an
            edge scores ``(table + table^T) / 2``.
        structure: How outputs are decoded and what they cost; None is ``PairwiseGraph(num_labels)``.

    Raises:
        ValueError: A size is out of range, or ``structure`` has another number of labels.

    Example:
        >>> head = LinearPairwiseGraph(node_features=4, edge_features=0, num_labels=3)
        >>> graphs = Graphs(torch.rand(1, 9, 4), torch.zeros(1, 12, 0), grid_edges(3, 3).unsqueeze(0))
        >>> head(graphs)["edge"].shape
        torch.Size([1, 12, 3, 3])
    """

    def __init__(
        self,
        node_features: int,
        edge_features: int,
        num_labels: int,
        *,
        directed: bool = True,
        structure: PairwiseGraph | None = None,
    ) -> None:
        super().__init__()
        self.node_features = check_whole(node_features, "node_features")
        self.edge_features = check_whole(edge_features, "edge_features", 0)
        num_labels = check_whole(num_labels, "num_labels")
        check_flags(directed=directed)
        such = "PairwiseGraph(num_labels)"
        self.structure = fitting(structure, lambda: PairwiseGraph(num_labels), such, num_labels=num_labels)
        self.directed = directed
        self.node = weight(torch.zeros(num_labels, self.node_features))
        self.edge = weight(torch.zeros(max(self.edge_features, 1), num_labels, num_labels))

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.pairwise_graph.kind import GraphAdapter

        plain = type(self.structure) is PairwiseGraph and type(self.structure.oracle) is TreeReweighted
        return GraphAdapter(self) if plain else None

    def forward(self, x: Graphs, lengths: Tensor | None = None) -> PairwisePotentials:
        """Features -> potentials ``node`` ``[B, N, K]`` and ``edge`` ``[B, E, K, K]``; in the weights' dtype.

        Args:
            x: :class:`Graphs`, or any tuple of its fields in the same order.
            lengths: ``[B]`` int64, 1 to N, the number of nodes of each example; None means N for all.

        Raises:
            TypeError: ``x`` is not a tuple of three.
            ValueError: A shape or a size does not fit, or an edge does not join two nodes of its example.
        """
        nodes, links, edges = read_graphs(x, self.node.shape[1], self.edge_features)
        if not self.edge_features:
            links = nodes.new_ones(*links.shape[:2], 1)
        states = len(self.node)

        def symmetric(tables: Tensor) -> Tensor:
            return tables if self.directed else (tables + tables.mT) / 2

        with full_precision(nodes.device):
            nodes, links = nodes.to(self.node.dtype), links.to(self.node.dtype)
            node = product(nodes, self.node)
            edge = product(links, symmetric(self.edge).flatten(1).T).unflatten(2, (states, states))
        known = nodes.detach(), links.detach()

        def adjoint(parts: Parts) -> list[Tensor]:
            tables = known[1].mT @ parts["edge"].flatten(2)
            return [parts["node"].mT @ known[0], symmetric(tables.unflatten(2, (states, states)))]

        def gram_product(parts: Parts) -> Parts:
            node, edge = adjoint(parts)
            return {"node": known[0] @ node.mT, "edge": (known[1] @ edge.flatten(2)).unflatten(2, (states, states))}

        trained = nodes.requires_grad or links.requires_grad
        weights = None if trained else own_weights(self)
        return PairwisePotentials(
            node, edge, edges, lengths, adjoint=adjoint, gram_product=gram_product, weights=weights
        )


def grid_edges(rows: int, columns: int, *, neighbours: int = 4) -> Tensor:
    """The edges of an image whose pixels are numbered row by row, ``[E, 2]`` int64.

    First the edges to the right, ``rows * (columns - 1)`` of them, then those down; with 8 neighbours, then those down
    to the right and those down to the left.

    Args:
        rows: H, at least 1.
        columns: W, at least 1.
        neighbours: 4 or 8.

    Raises:
        ValueError: A size is less than 1, or ``neighbours`` is neither 4 nor 8.

    Example:
        >>> grid_edges(2, 2)
        tensor([[0, 1],
                [2, 3],
                [0, 2],
                [1, 3]])
    """
    check_choice(neighbours, "neighbours", 4, 8)
    place = torch.arange(check_whole(rows, "rows") * check_whole(columns, "columns")).view(rows, columns)
    pairs = [(place[:, :-1], place[:, 1:]), (place[:-1], place[1:])]
    if neighbours == 8:
        pairs += [(place[:-1, :-1], place[1:, 1:]), (place[:-1, 1:], place[1:, :-1])]
    return torch.cat([torch.stack([a.flatten(), b.flatten()], 1) for a, b in pairs])
