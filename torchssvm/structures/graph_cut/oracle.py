"""Labels of graphs by minimum cuts, with Boykov and Kolmogorov's maximum flow algorithm.

Node p scores theta_p with label 1 and -theta_p with label 0; edge pq costs c_pq if the labels of its ends differ:

    score(y) = sum_p theta_p (2 y_p - 1) - sum_pq c_pq [y_p != y_q].

Cuts are computed on the CPU, in threads over the graphs, also for tensors on a GPU: the algorithm grows search trees
that differ from graph to graph, and the threads of a GPU would diverge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import needs
from torchssvm.core.threads import run_in_chunks
from torchssvm.structures.common import check_edges, check_operands, own_lengths, reject_entries

_GRAIN = 2000.0  # nodes and edges solved in the time another thread takes to wake up


class Graphs(NamedTuple):
    """Several graphs joined, without padding; float64 and int64 arrays of M nodes and K edges in total.

    Attributes:
        theta: ``[M]``.
        first: ``[K]``, the first end of each edge, 0 to M - 1.
        second: ``[K]``, the other end.
        c: ``[K]``.
        nodes: ``[B]``, the number of nodes of each graph.
        edges: ``[B]``, the number of edges of each graph.
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
        some = slice(edge, last_edge)
        ends = self.first[some] - node, self.second[some] - node
        return Graphs(self.theta[node:last_node], *ends, self.c[some], self.nodes[begin:end], self.edges[begin:end])

    def scores(self, labels: np.ndarray) -> np.ndarray:
        """The score of each graph's labels, ``[B]``, from ``[M]`` bool."""
        gained = np.where(labels, self.theta, -self.theta)
        lost = np.where(labels[self.first] != labels[self.second], self.c, 0.0)
        return per_graph(gained, self.nodes) - per_graph(lost, self.edges)


def min_cut(node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None) -> Tensor:
    """The labels with the highest score, for edges that are all attractive [1]_.

    Of several best labelings, this is the one with the fewest labels 1 (its nodes with label 1 have it in all others).

    Args:
        node: ``[B, N]``, theta; values that are not finite count as 0.
        edge: ``[B, E]``, c, at least 0.
        edges: ``[B, E, 2]`` int64, the ends of each edge, 0 to the example's length - 1; (-1, -1) is padding.
        lengths: ``[B]`` int64, the number of nodes of each example; None means N for all.

    Returns:
        ``[B, N]`` bool on the device of ``node``, False beyond an example's nodes.

    Raises:
        ValueError: An edge has a negative score, or a shape, a length or an edge does not fit.
        ImportError: PyMaxflow is missing.

    References:
        .. [1] Y. Boykov and V. Kolmogorov. An experimental comparison of min-cut/max-flow algorithms for energy
           minimization in vision. TPAMI 2004.
    """
    edges, lengths = _checked(node, edge, edges, lengths)
    return cut_graphs(node, edge, edges, lengths)


def cut_graphs(node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None) -> Tensor:
    """:func:`min_cut` of graphs that are checked."""
    graphs = without_padding(node, edge, edges, lengths)
    if bool((graphs.c < 0.0).any()):
        wrong = (edge < 0) & (edge > -torch.inf) & (edges[..., 0] >= 0)
        allowed = "minimum cuts need 0 or more: bound weights by bounds={'pairwise': (0.0, None)}, or use RoofDual()"
        reject_entries(wrong, edge, "edge has the potential", allowed)
    (labels,) = _in_threads(lambda g: (_cut(g.theta, g.first, g.second, g.c),), graphs)
    return _padded(labels, node, lengths)


def roof_dual(node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Good labels and an upper bound of all scores, for edges of any sign: the roof dual [1]_ [2]_.

    Each node gets a copy, which stands for the opposite label. Attractive edges join nodes with nodes and copies with
    copies; repulsive edges join nodes with copies and so become attractive. One minimum cut of this graph gives the
    value of the linear program over the local polytope. Where a node and its copy differ, the node has its label in
    all best labelings (persistency). The other nodes take the best of three guesses (all 0, all 1, the sign of each
    theta); then single labels are flipped as long as the score rises.

    Args:
        node: ``[B, N]``, theta; values that are not finite count as 0.
        edge: ``[B, E]``, c, of any sign.
        edges: ``[B, E, 2]`` int64, as in :func:`min_cut`.
        lengths: ``[B]`` int64, as in :func:`min_cut`.

    Returns:
        The labels, ``[B, N]`` bool, and the bound, ``[B]`` float64. If no edge of an example is repulsive, the labels
        agree with :func:`min_cut`, and the bound is their score up to rounding.

    Raises:
        ValueError: A shape, a length or an edge does not fit.
        ImportError: PyMaxflow is missing.

    References:
        .. [1] P. L. Hammer, P. Hansen and B. Simeone. Roof duality, complementation and persistency in quadratic 0-1
           optimization. Mathematical Programming 1984.
        .. [2] V. Kolmogorov and C. Rother. Minimizing nonsubmodular functions with graph cuts - a review. TPAMI 2007.
    """
    edges, lengths = _checked(node, edge, edges, lengths)
    return round_graphs(node, edge, edges, lengths)


def round_graphs(node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """:func:`roof_dual` of graphs that are checked."""
    labels, bound = _in_threads(_round_roof, without_padding(node, edge, edges, lengths))
    return _padded(labels, node, lengths), torch.from_numpy(bound).to(node.device)


def per_graph(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sums of ``values`` over consecutive runs of lengths ``sizes`` ``[B]``."""
    return np.bincount(np.repeat(np.arange(len(sizes)), sizes), values, len(sizes))


def relax(graphs: Graphs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The relaxation of :func:`roof_dual`: labels ``[M]`` bool, a mask ``[M]`` of known labels, the bound ``[B]``.

    All best labelings share the known labels, up to rounding; unknown ones are False.
    """
    theta, first, second, c, nodes, edges = graphs
    size, apart = len(theta), c < 0
    away, home = np.where(apart, second + size, second), np.where(apart, second, second + size)
    ends = np.concatenate([first, first + size]), np.concatenate([away, home])
    label = _cut(np.concatenate([theta, -theta]), *ends, np.concatenate([np.abs(c)] * 2))
    # Half the score of the doubled graph; a repulsive edge scores |c| if its ends differ and 0 if they agree.
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
    """Flip single labels while the score rises; each round flips the nodes that gain more than all their neighbours."""
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
        level = winner[first] & winner[second]  # of two neighbours with equal gains, the later one waits
        winner[np.maximum(first, second)[level]] = False
        labels = labels ^ winner
    return labels


def _cut(theta: np.ndarray, first: np.ndarray, second: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The labels of one graph, ``[M]`` bool: label 1 is the smallest sink side of a minimum cut."""
    with needs("graph cuts need PyMaxflow (GPL): pip install 'torchssvm[graphcut]'", "maxflow"):
        import maxflow
    graph = maxflow.GraphFloat(len(theta), len(c))
    places = graph.add_grid_nodes(len(theta))
    graph.add_edges(first, second, c, c)
    # Label 1 cuts the node's edge from the source, label 0 its edge to the sink.
    graph.add_grid_tedges(places, np.maximum(-2.0 * theta, 0.0), np.maximum(2.0 * theta, 0.0))
    graph.maxflow()  # releases the GIL
    return graph.get_grid_segments(places)


def _in_threads(solve: Callable[[Graphs], tuple[np.ndarray, ...]], graphs: Graphs) -> list[np.ndarray]:
    """Run ``solve`` on ranges of the graphs in several threads and join the results."""
    work = graphs.nodes + graphs.edges
    chunks = run_in_chunks(lambda begin, end, _: solve(graphs.some(begin, end)), work, grain=_GRAIN)
    return [np.concatenate(pieces) for pieces in zip(*(chunks or [solve(graphs)]), strict=True)]


def without_padding(node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None) -> Graphs:
    """The graphs of a batch, from the arguments of :func:`min_cut`, which are checked."""
    batch, longest = node.shape
    theta, c = (t.detach().to("cpu", torch.float64).numpy() for t in (node, edge))
    ends = edges.cpu().numpy()
    nodes = np.full(batch, longest) if lengths is None else lengths.cpu().numpy()
    joined = ends[..., 0] >= 0
    start = (nodes.cumsum() - nodes)[:, None]
    first, second = ((ends[..., side] + start)[joined] for side in (0, 1))
    theta, c = theta[np.arange(longest) < nodes[:, None]], c[joined]
    # The caller reports infinite scores as an error; here they must not stop the other examples.
    theta, c = (np.where(np.isfinite(scores), scores, 0.0) for scores in (theta, c))
    return Graphs(theta, first, second, c, nodes, joined.sum(1))


def _checked(node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Copies of edges and lengths, as in :class:`GraphPotentials`."""
    check_operands(node=(node, "BN"), edge=(edge, "BE"))
    lengths = own_lengths(lengths, *node.shape)
    return check_edges(edges, edge.shape[1], node.shape, lengths), lengths


def _padded(labels: np.ndarray, node: Tensor, lengths: Tensor | None) -> Tensor:
    flat = torch.from_numpy(labels).to(node.device)
    if lengths is None:
        return flat.view(node.shape)
    padded = torch.zeros(node.shape, dtype=torch.bool, device=node.device)
    padded[torch.arange(node.shape[1], device=node.device) < lengths.unsqueeze(1)] = flat
    return padded
