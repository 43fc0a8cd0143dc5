"""Labels of graphs by minimum cuts: Boykov and Kolmogorov's maximum flow, the graphs of a batch as one.

A node p has a score theta_p for label 1 and -theta_p for label 0, an edge c_pq that is lost where its ends differ:

    score(y) = sum_p theta_p (2 y_p - 1) - sum_pq c_pq [y_p != y_q].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.extras import needs
from torchssvm.core.threads import run_in_chunks

_GRAIN = 2000.0  # nodes and edges that are solved while another thread wakes up


class Graphs(NamedTuple):
    """Several graphs as one, without padding; float64 and int64 arrays of M nodes and K edges.

    Attributes:
        theta: ``[M]``.
        first: ``[K]``, the first end of every edge, 0 to M - 1.
        second: ``[K]``, its other end.
        c: ``[K]``.
        nodes: ``[B]``, how many nodes each graph has.
        edges: ``[B]``, how many edges.
    """

    theta: np.ndarray
    first: np.ndarray
    second: np.ndarray
    c: np.ndarray
    nodes: np.ndarray
    edges: np.ndarray

    def some(self, begin: int, end: int) -> Graphs:
        """The graphs ``begin`` to ``end - 1``."""
        node, last_node = int(self.nodes[:begin].sum()), int(self.nodes[:end].sum())
        edge, last_edge = int(self.edges[:begin].sum()), int(self.edges[:end].sum())
        own = slice(edge, last_edge)
        ends = self.first[own] - node, self.second[own] - node
        return Graphs(self.theta[node:last_node], *ends, self.c[own], self.nodes[begin:end], self.edges[begin:end])

    def scores(self, labels: np.ndarray) -> np.ndarray:
        """The score of a labeling ``[M]`` bool of every graph, ``[B]``."""
        gained = np.where(labels, self.theta, -self.theta)
        lost = np.where(labels[self.first] != labels[self.second], self.c, 0.0)
        return per_graph(gained, self.nodes) - per_graph(lost, self.edges)


def min_cut(node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None) -> Tensor:
    """The labels with the highest score, where no edge has a negative one [1]_.

    Among several best labelings it is the one whose nodes of label 1 all others share.

    Args:
        node: ``[B, N]``, theta; what is not finite counts as 0.
        edge: ``[B, E]``, c.
        edges: ``[B, E, 2]`` int64, the ends of every edge, 0 to the example's length - 1; -1 where there is none.
        lengths: ``[B]`` int64, how many of the N nodes belong to each example; None for all.

    Returns:
        ``[B, N]`` bool on the device of ``node``, False beyond an example's nodes.

    Raises:
        ValueError: An edge has a negative score.
        ImportError: PyMaxflow is missing.

    References:
        .. [1] Y. Boykov and V. Kolmogorov. An experimental comparison of min-cut/max-flow algorithms for energy
           minimization in vision. TPAMI 2004.
    """
    graphs = without_padding(node, edge, edges, lengths)
    if bool((graphs.c < 0.0).any()):
        row, place = ((edge < 0) & (edge > -torch.inf) & (edges[..., 0] >= 0)).nonzero()[0].tolist()
        p, q = edges[row, place].tolist()
        raise ValueError(
            f"edge {place} (nodes {p} and {q}) in row {row} of the batch has potential {float(edge[row, place]):.6g}: "
            "minimum cuts need attractive edges, potentials of at least 0"
        )
    (labels,) = _in_threads(lambda g: (_cut(g.theta, g.first, g.second, g.c),), graphs)
    return _padded(labels, node, lengths)


def roof_dual(node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Good labels and an upper bound of all scores, whatever the signs of the edges' scores: the roof dual [1]_ [2]_.

    Every node is given a copy that stands for the opposite of its label. Attractive edges join nodes with nodes and
    copies with copies, repulsive ones nodes with copies, which makes all of them attractive; the maximum of this
    problem, found by one minimum cut, is the value of the linear program over the local polytope. Nodes whose copy is
    their opposite have the label of all best labelings (persistency). The others take the best of three guesses, all
    0, all 1 or each by its own score, and then single nodes change their labels as long as the score gains.

    Args:
        node: ``[B, N]``, theta; what is not finite counts as 0.
        edge: ``[B, E]``, c, of any sign.
        edges: ``[B, E, 2]`` int64, as in :func:`min_cut`.
        lengths: ``[B]`` int64, as in :func:`min_cut`.

    Returns:
        The labels, ``[B, N]`` bool, and the bound, ``[B]`` float64. Where no edge of an example is repulsive the labels
        are those of :func:`min_cut`, and the bound is their score, up to rounding.

    Raises:
        ImportError: PyMaxflow is missing.

    References:
        .. [1] P. L. Hammer, P. Hansen and B. Simeone. Roof duality, complementation and persistency in quadratic 0-1
           optimization. Mathematical Programming 1984.
        .. [2] V. Kolmogorov and C. Rother. Minimizing nonsubmodular functions with graph cuts - a review. TPAMI 2007.
    """
    labels, bound = _in_threads(_round_roof, without_padding(node, edge, edges, lengths))
    return _padded(labels, node, lengths), torch.from_numpy(bound).to(node.device)


def per_graph(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sums of ``values`` over runs of ``sizes`` ``[B]``."""
    return np.bincount(np.repeat(np.arange(len(sizes)), sizes), values, len(sizes))


def relax(graphs: Graphs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The relaxation of :func:`roof_dual`.

    Returns:
        Labels, ``[M]`` bool; which of them are known, ``[M]`` bool, and shared by all best labelings (up to rounding),
        where the others are False; the bound, ``[B]``.
    """
    theta, first, second, c, nodes, edges = graphs
    size, apart = len(theta), c < 0
    away, home = np.where(apart, second + size, second), np.where(apart, second, second + size)
    ends = np.concatenate([first, first + size]), np.concatenate([away, home])
    label = _cut(np.concatenate([theta, -theta]), *ends, np.concatenate([np.abs(c)] * 2))
    # Half of what the doubled graph gains; a repulsive edge gains |c| where its ends differ, and not where they agree.
    gained = theta * (label[:size].astype(np.float64) - label[size:])
    parted = (label[ends[0]] != label[ends[1]]).reshape(2, -1).sum(0)
    lost = np.abs(c) * parted / 2 + np.minimum(c, 0.0)
    known = label[:size] != label[size:]
    return label[:size] & known, known, per_graph(gained, nodes) - per_graph(lost, edges)


def _round_roof(graphs: Graphs) -> tuple[np.ndarray, np.ndarray]:
    label, known, bound = relax(graphs)
    best = label
    for guess in (np.ones_like(label), graphs.theta > 0):
        other = np.where(known, label, guess)
        better = graphs.scores(other) > graphs.scores(best)
        best = np.where(np.repeat(better, graphs.nodes), other, best)
    return _climb(graphs, best), bound


def _climb(graphs: Graphs, labels: np.ndarray) -> np.ndarray:
    """Change single labels while the score gains; in each round the nodes that gain more than all their neighbours."""
    theta, first, second, c, _, _ = graphs
    size = len(theta)
    tiny = 1e-12 * (np.abs(theta) + np.bincount(first, np.abs(c), size) + np.bincount(second, np.abs(c), size))
    for _ in range(size):
        agree = np.where(labels[first] == labels[second], c, -c)
        gain = np.where(labels, -2.0, 2.0) * theta
        gain -= np.bincount(first, agree, size) + np.bincount(second, agree, size)
        gain[gain <= tiny] = 0.0
        if not gain.any():
            break
        rival = np.zeros(size)
        np.maximum.at(rival, first, gain[second])
        np.maximum.at(rival, second, gain[first])
        winner = (gain > 0.0) & (gain >= rival)
        level = winner[first] & winner[second]  # of two that gain alike, the later one waits
        winner[np.maximum(first, second)[level]] = False
        labels = labels ^ winner
    return labels


def _cut(theta: np.ndarray, first: np.ndarray, second: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The labels of one graph, ``[M]`` bool: label 1 is the smallest side of the sink."""
    graph = _maxflow().GraphFloat(len(theta), len(c))
    places = graph.add_grid_nodes(len(theta))
    graph.add_edges(first, second, c, c)
    # A node with label 1 loses its edge from the source, with label 0 that to the sink.
    graph.add_grid_tedges(places, np.maximum(-2.0 * theta, 0.0), np.maximum(2.0 * theta, 0.0))
    graph.maxflow()  # lets go of the global lock
    return graph.get_grid_segments(places)


def _in_threads(solve: Callable[[Graphs], tuple[np.ndarray, ...]], graphs: Graphs) -> list[np.ndarray]:
    """Run ``solve`` on ranges of the graphs, in several threads, and join its results."""
    work = graphs.nodes + graphs.edges
    found = run_in_chunks(lambda begin, end, _: solve(graphs.some(begin, end)), work, grain=_GRAIN)
    return [np.concatenate(pieces) for pieces in zip(*(found or [solve(graphs)]), strict=True)]


def without_padding(node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None) -> Graphs:
    """The graphs of a batch, from tensors as :func:`min_cut` takes them."""
    batch, longest = node.shape
    theta, c = (t.detach().to("cpu", torch.float64).numpy() for t in (node, edge))
    ends = edges.cpu().numpy()
    nodes = np.full(batch, longest) if lengths is None else lengths.cpu().numpy()
    joined = ends[..., 0] >= 0
    start = (nodes.cumsum() - nodes)[:, None]
    first, second = ((ends[..., side] + start)[joined] for side in (0, 1))
    theta, c = theta[np.arange(longest) < nodes[:, None]], c[joined]
    # Infinite scores are an error that the caller reports; here they only must not stop the others.
    theta, c = (np.where(np.isfinite(scores), scores, 0.0) for scores in (theta, c))
    return Graphs(theta, first, second, c, nodes, joined.sum(1))


def _padded(labels: np.ndarray, node: Tensor, lengths: Tensor | None) -> Tensor:
    flat = torch.from_numpy(labels).to(node.device)
    if lengths is None:
        return flat.view(node.shape)
    found = torch.zeros(node.shape, dtype=torch.bool, device=node.device)
    found[torch.arange(node.shape[1], device=node.device) < lengths.unsqueeze(1)] = flat
    return found


def _maxflow() -> Any:
    with needs("graph cuts need PyMaxflow (GPL): pip install 'torchssvm[graphcut]'", "maxflow"):
        import maxflow
    return maxflow
