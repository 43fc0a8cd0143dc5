"""Binary labels for the nodes of graphs, each example with a graph of its own; decoded by minimum cuts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchssvm.core.arguments import check_flags, check_int64, check_object, check_tensor
from torchssvm.core.potentials import Parts, Potentials, inner
from torchssvm.core.structure import Decoding, Structure, as_decoding, fit
from torchssvm.structures.arguments import WeightedLabels, check_lengths
from torchssvm.structures.graph_cut.oracle import min_cut, roof_dual


class GraphPotentials(Potentials):
    """Scores of the nodes and edges of graphs, one graph for each example.

    Args:
        node: ``[B, N]``; half of what label 1 of a node scores more than label 0.
        edge: ``[B, E]``; what an edge costs whose ends have different labels. At least 0 is attractive.
        edges: ``[B, E, 2]`` int64, the two different ends of every edge, 0 to the example's number of nodes - 1; both
            are -1 where an example has fewer than E edges. Two nodes may be joined more than once.
        lengths: ``[B]`` int64, 1 to N, nodes of every example; None is N for all.
        options: ``adjoint``, ``gram_product`` and ``weights``, as :class:`~torchssvm.Potentials` takes them.

    Raises:
        ValueError: A shape or a size does not fit, or an edge does not join two nodes of its example.
    """

    __slots__ = ("edges",)
    carried = ("edges",)

    def __init__(
        self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None, **options: Any
    ) -> None:
        if check_tensor(node, "node").ndim != 2 or check_tensor(edge, "edge").ndim != 2:
            raise ValueError(f"potentials must be [B, N] of nodes, [B, E] of edges: got {node.shape}, {edge.shape}")
        ragged = None if lengths is None else {"node": 0}
        super().__init__({"node": node, "edge": edge}, lengths, ragged=ragged, **options)
        check_int64(edges, "edges", (*edge.shape, 2), ", the two ends of every edge")
        nodes = node.shape[1] if lengths is None else lengths.view(-1, 1)
        first, second = edges.unbind(2)
        joined = (first >= 0) & (second >= 0) & (first < nodes) & (second < nodes) & (first != second)
        wrong = ~(joined | ((first == -1) & (second == -1)))
        if bool(wrong.any()):
            row, place = wrong.nonzero()[0].tolist()
            size = node.shape[1] if lengths is None else int(lengths[row])
            raise ValueError(
                f"edges has {edges[row, place].tolist()} at place {place} in row {row} of the batch: an edge joins two "
                f"different nodes, 0 to {size - 1}; -1 and -1 where there is none"
            )
        self.edges = edges


class Segmentation(NamedTuple):
    """A labeling of graphs: the labels of the nodes, and the edges that they cut.

    Attributes:
        labels: ``[B, N]`` int64, 0 or 1; -1 beyond an example's nodes.
        cut: ``[B, E]`` int64, 1 where the ends of an edge have different labels, else 0; -1 where there is no edge.
    """

    labels: Tensor
    cut: Tensor


class GraphTarget(NamedTuple):
    """A target as :meth:`GraphCut.check_target` returns it.

    Attributes:
        labels: As in :class:`Segmentation`.
        cut: As in :class:`Segmentation`.
        costs: ``[B, N]`` float64, what a wrong label costs at each node; 0 beyond an example's nodes.
    """

    labels: Tensor
    cut: Tensor
    costs: Tensor


class CutOracle(Protocol):
    """How the labels with the highest score are found."""

    def solve(self, potentials: GraphPotentials) -> tuple[Tensor, Tensor | None]:
        """Labels ``[B, N]`` bool, and an upper bound ``[B]`` float64 of all scores, or None if these are the best."""


@dataclass(frozen=True)
class MinCut:
    """Exact, for graphs whose edges are all attractive; see :func:`torchssvm.structures.graph_cut.oracle.min_cut`.

    An edge with a negative potential is an error. Bound the weights of non-negative edge features at 0, in a parameter
    group of their own: ``BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)``.
    """

    def solve(self, potentials: GraphPotentials) -> tuple[Tensor, None]:
        """A minimum cut.

        Raises:
            ValueError: An edge has a negative potential.
        """
        try:
            return min_cut(potentials["node"], potentials["edge"], potentials.edges, potentials.lengths), None
        except ValueError as error:
            raise ValueError(
                f"{error}. With non-negative features of the edges, bound their weights at 0: "
                'BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual), or '
                'bounds={"pairwise": (0.0, None)} in StructuredSVM. Or decode with GraphCut(RoofDual()), which takes '
                "edges of any sign, and is no longer exact"
            ) from error


@dataclass(frozen=True)
class RoofDual:
    """Any edges, approximately, with an upper bound; see :func:`torchssvm.structures.graph_cut.oracle.roof_dual`.

    Exact, by a minimum cut, for batches whose edges are all attractive.
    """

    def solve(self, potentials: GraphPotentials) -> tuple[Tensor, Tensor | None]:
        """A minimum cut of the doubled graph."""
        args = potentials["node"], potentials["edge"], potentials.edges, potentials.lengths
        if bool(((potentials["edge"] < 0) & (potentials.edges[..., 0] >= 0)).any()):
            return roof_dual(*args)
        return min_cut(*args), None


class GraphCut(Structure):
    """A label 0 or 1 for every node of a graph; edges whose ends differ cost something. Each example has its own graph.

    Potentials: :class:`GraphPotentials`, ``node`` ``[B, N]`` and ``edge`` ``[B, E]``, which carry the graphs. The score
    is that of [Osokin et al. 2016, appendix I.3], where positive weights of edges are attractive::

        score(y) = sum_p node_p ([y_p = 1] - [y_p = 0]) - sum_{pq} edge_pq [y_p != y_q]

    Labelings: :class:`Segmentation`, ``(labels, cut)``. Targets: the labels ``[B, N]`` int64 (whatever stands beyond an
    example's nodes is ignored), or :class:`~torchssvm.WeightedLabels`, which also say how much every node counts, such
    as the area of a superpixel.

    The loss is the Hamming loss, the weights of the nodes with a wrong label. That of [Osokin et al. 2016, appendix
    I.3], which takes both classes for equally important, comes from weights that are balanced already, or from
    ``balanced=True``.

    Args:
        oracle: ``MinCut()``, exact, where all edges are attractive; that is what None means. ``RoofDual()`` takes edges
            of any sign, and is approximate.
        balanced: Scale the weights of each class of an example's target so that all its classes weigh the same, and
            the sum stays as it is.
        normalize: Divide the loss by the sum of the weights of the example's nodes.
    """

    def __init__(self, oracle: CutOracle | None = None, *, balanced: bool = False, normalize: bool = True) -> None:
        check_flags(balanced=balanced, normalize=normalize)
        self.oracle = MinCut() if oracle is None else oracle
        check_object(self.oracle, "oracle", "solve", "RoofDual()")
        self.balanced = balanced
        self.normalize = normalize

    def argmax(self, potentials: Potentials) -> Decoding:
        """What the oracle finds; of several best labelings ``MinCut()`` takes the one with the fewest labels 1."""
        potentials = _of_graphs(potentials)
        found, bound = self.oracle.solve(potentials)
        labels = found.to(torch.int64).masked_fill_(~_real(potentials), -1)
        labeling = Segmentation(labels, cut_edges(labels, potentials.edges))
        node, edge = (t.detach().to(torch.float64) for t in potentials.tensors.values())
        gained = torch.where(found, node, -node).masked_fill(labels < 0, 0.0).sum(1)
        value = gained - edge.masked_fill(labeling.cut < 1, 0.0).sum(1)
        return Decoding(labeling, value, bound, exact=bound is None)

    def augmented_argmax(self, potentials: Potentials, target: GraphTarget) -> Decoding:
        """What the oracle finds with the loss added to the nodes; the target, where an approximation is worse."""
        found = as_decoding(super().augmented_argmax(potentials, target))
        if found.exact:
            return found
        parts = {name: part.to(potentials.dtype) for name, part in self.parts(target).items()}
        own = inner(parts, potentials.detach().tensors)
        assert found.value is not None
        worse = found.value < own
        pairs = zip(found.labeling, target[:2], strict=True)
        labeling = Segmentation(*(torch.where(worse.unsqueeze(1), true, held) for held, true in pairs))
        return found._replace(labeling=labeling, value=torch.maximum(found.value, own))

    def parts(self, labeling: Segmentation | GraphTarget) -> dict[str, Tensor]:
        """``[y_p = 1] - [y_p = 0]`` of the nodes ``[B, N]``, and ``-[y_p != y_q]`` of the edges ``[B, E]``."""
        return _parts(labeling.labels, labeling.cut, torch.get_default_dtype())

    def relative_scores(self, labelings: Segmentation, target: GraphTarget, potentials: Potentials) -> Tensor:
        """Two matrix products in float64, ``[B, C]``."""
        parts = _parts(*_together(labelings, target), torch.float64)
        tensors = potentials.tensors.items()
        total = sum((parts[name] @ tensor.to(torch.float64).unsqueeze(2)).squeeze(2) for name, tensor in tensors)
        assert isinstance(total, Tensor)
        return total[:, :-1] - total[:, -1:]

    def mean_difference(
        self, labelings: Segmentation, mass: Tensor, target: GraphTarget, potentials: Potentials
    ) -> Parts:
        """Two matrix products."""
        parts = _parts(*_together(labelings, target), potentials.dtype)
        mass = torch.cat([mass, -mass.sum(1, keepdim=True)], 1).to(potentials.dtype).unsqueeze(1)
        return {name: (mass @ part).squeeze(1) for name, part in parts.items()}

    def resize(self, labelings: Segmentation, target: GraphTarget) -> Segmentation:
        """Stored labelings ``[B, C, ...]`` with the nodes and edges of this batch."""
        pairs = zip(labelings, target[:2], strict=True)
        return Segmentation(*(fit(held, like.shape[1:], self.padding) for held, like in pairs))

    def loss(self, labeling: Segmentation, target: GraphTarget) -> Tensor:
        """The cost of the nodes with a wrong label, ``[B]`` float64."""
        return (target.costs * (labeling.labels != target.labels)).sum(1)

    def loss_potentials(self, target: GraphTarget) -> tuple[dict[str, Tensor], Tensor]:
        """Half of each node's cost, against the target's label; the constant is half of all costs."""
        half = target.costs / 2
        return {"node": torch.where(target.labels == 1, -half, half)}, half.sum(1)

    def check_target(self, target: Tensor | WeightedLabels, potentials: Potentials) -> GraphTarget:
        """Check shapes and numbers, find the edges that the target cuts, and what a wrong label costs at each node."""
        potentials = _of_graphs(potentials)
        labels, weights = target if isinstance(target, WeightedLabels) else (target, None)
        shape = potentials["node"].shape
        check_int64(labels, "target", shape, ", a label for every node, or WeightedLabels with such labels")
        real = _real(potentials)
        labels = labels.masked_fill(~real, -1)
        wrong = ((labels < 0) | (labels > 1)) & real
        if bool(wrong.any()):
            row, p = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"target has {int(labels[row, p])} at node {p} in row {row} of the batch; labels are 0 and 1 (-1 marks "
                "padding: did the head get the lengths?)"
            )
        if weights is None:
            costs = real.to(torch.float64)
        else:
            if check_tensor(weights, "target.weights").shape != shape:
                raise ValueError(f"target has weights {list(weights.shape)}, and labels {list(shape)}")
            costs = weights.to(torch.float64).masked_fill(~real, 0.0)
            if not bool(((costs >= 0) & torch.isfinite(costs)).all()):
                raise ValueError("target has weights that are negative or not finite")
        return GraphTarget(labels, cut_edges(labels, potentials.edges), self._costs(labels, costs))

    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        """The nodes and edges of each example."""
        potentials = _of_graphs(potentials)
        return {"node": _real(potentials), "edge": potentials.edges[..., 0] >= 0}

    def enumerate(self, potentials: Potentials) -> Iterator[Segmentation] | None:
        """All labelings of up to 12 nodes; None for larger graphs."""
        potentials = _of_graphs(potentials)
        batch, longest = potentials["node"].shape
        if longest > 12:
            return None
        real = _real(potentials)

        def each() -> Iterator[Segmentation]:
            for numbers in itertools.product((0, 1), repeat=longest):
                labels = torch.tensor([numbers], device=potentials.device).expand(batch, -1).masked_fill(~real, -1)
                yield Segmentation(labels, cut_edges(labels, potentials.edges))

        return each()

    def _costs(self, labels: Tensor, weights: Tensor) -> Tensor:
        # Running sums: their last bits, and so the digest of the target, do not depend on how far it is padded.
        total = weights.cumsum(1)[:, -1:]
        if self.balanced:
            of_class = torch.cat([(weights * (labels == label)).cumsum(1)[:, -1:] for label in (0, 1)], 1)
            present = (of_class > 0).sum(1, keepdim=True)
            own = of_class.gather(1, labels.clamp(min=0))
            weights = torch.where(own > 0, weights * total / (own * present), 0.0)
        return torch.where(total > 0, weights / total, 0.0) if self.normalize else weights

    def __repr__(self) -> str:
        return f"GraphCut({self.oracle}, balanced={self.balanced}, normalize={self.normalize})"


def cut_edges(labels: Tensor, edges: Tensor) -> Tensor:
    """Which edges join nodes of different labels: ``[B, E]`` int64, -1 where there is no edge.

    Args:
        labels: ``[B, N]`` int64.
        edges: ``[B, E, 2]`` int64, as :class:`GraphPotentials` carries them.
    """
    ends = labels.gather(1, edges.clamp(min=0).flatten(1)).view(edges.shape)
    return (ends[..., 0] != ends[..., 1]).to(torch.int64).masked_fill_(edges[..., 0] < 0, -1)


def _of_graphs(potentials: Potentials) -> GraphPotentials:
    if not isinstance(potentials, GraphPotentials):
        raise ValueError(
            "graph cuts take potentials that carry every example's edges, GraphPotentials, as LinearGraph gives them; "
            f"got {potentials}"
        )
    return potentials


def _real(potentials: GraphPotentials) -> Tensor:
    batch, longest = potentials["node"].shape
    return check_lengths(potentials.lengths, batch, longest, potentials.device)


def _parts(labels: Tensor, cut: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    nodes = torch.where(labels < 0, 0, 2 * labels - 1)
    return {"node": nodes.to(dtype), "edge": -(cut == 1).to(dtype)}


def _together(labelings: Segmentation, target: GraphTarget) -> tuple[Tensor, Tensor]:
    """Labelings ``[B, C, ...]`` and the target, ``[B, C + 1, ...]``."""
    labels, cut = (torch.cat([held, own.unsqueeze(1)], 1) for held, own in zip(labelings, target[:2], strict=True))
    return labels, cut
