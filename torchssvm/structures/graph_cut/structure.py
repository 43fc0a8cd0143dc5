"""Binary labels for the nodes of graphs, one graph for each example; decoded by minimum cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_object
from torchssvm.core.decoding import Decoding, as_decoding
from torchssvm.core.potentials import Parts, Potentials, inner
from torchssvm.structures.common import check_shape, mask_of
from torchssvm.structures.graph_cut.oracle import cut_graphs, round_graphs
from torchssvm.structures.labelled import EdgePotentials, LabelledGraphs, at_least, with_target


class GraphPotentials(EdgePotentials):
    """Scores of the nodes and edges of graphs, one graph for each example.

    Args:
        node: ``[B, N]``; half the difference between a node's scores of label 1 and label 0.
        edge: ``[B, E]``; the cost of an edge whose ends have different labels. At least 0 is attractive.
        edges: ``[B, E, 2]`` int64, the two different ends of each edge, 0 to the example's number of nodes - 1; (-1,
            -1) is padding. Two nodes may be joined more than once.
        lengths: ``[B]`` int64, 1 to N, the number of nodes of each example; None means N for all.
        options: ``adjoint``, ``gram_product`` and ``weights``, as :class:`~torchssvm.Potentials` takes them.

    Raises:
        ValueError: A shape or a size does not fit, or an edge does not join two nodes of its example.

    Example:
        >>> edges = torch.tensor([[[0, 1], [1, 2]]])
        >>> node, edge = torch.tensor([[1.0, -0.5, -1.0]]), torch.tensor([[2.0, 0.1]])
        >>> potentials = GraphPotentials(node, edge, edges)
        >>> GraphCut().argmax(potentials).labeling.labels
        tensor([[1, 1, 0]])
    """

    __slots__ = ()

    def __init__(
        self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None, **options: Any
    ) -> None:
        check_shape(node, "node", "B", "N")
        check_shape(edge, "edge", "B", "E")
        super().__init__(node, edge, edges, lengths, options)


class Segmentation(NamedTuple):
    """A labeling of graphs: the labels of the nodes and the edges that they cut.

    Attributes:
        labels: ``[B, N]`` int64, 0 or 1; -1 beyond an example's nodes.
        cut: ``[B, E]`` int64, 1 if the ends of the edge have different labels, else 0; -1 in the padding.

    Example:
        >>> edges = torch.tensor([[[0, 1], [1, 2]]])
        >>> potentials = GraphPotentials(torch.tensor([[1.0, 1.0, -1.0]]), torch.tensor([[0.1, 0.1]]), edges)
        >>> labels, cut = GraphCut().argmax(potentials).labeling
        >>> labels, cut
        (tensor([[1, 1, 0]]), tensor([[0, 1]]))
    """

    labels: Tensor
    cut: Tensor


class GraphTarget(NamedTuple):
    """The target that :meth:`GraphCut.check_target` returns."""

    labels: Tensor  # as in :class:`Segmentation`
    cut: Tensor  # as in :class:`Segmentation`
    costs: Tensor  # ``[B, N]`` float64, the cost of a wrong label at each node; 0 beyond an example's nodes


class CutOracle(Protocol):
    """A method that finds the labels with the highest score."""

    def solve(self, potentials: GraphPotentials) -> tuple[Tensor, Tensor | None]:
        """Labels ``[B, N]`` bool, and an upper bound of all scores ``[B]`` float64, or None if they are optimal."""


@dataclass(frozen=True)
class MinCut:
    """Exact, for graphs whose edges are all attractive; see :func:`torchssvm.structures.graph_cut.oracle.min_cut`.

    Edges with negative potentials raise an error. To exclude them, use non-negative edge features and bound their
    weights: ``BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)``.

    Example:
        >>> edges = torch.tensor([[[0, 1]]])
        >>> attractive = GraphPotentials(torch.tensor([[1.0, -0.5]]), torch.tensor([[0.6]]), edges)
        >>> GraphCut(MinCut()).argmax(attractive).labeling.labels
        tensor([[1, 0]])
    """

    def solve(self, potentials: GraphPotentials) -> tuple[Tensor, None]:
        """A minimum cut.

        Raises:
            ValueError: An edge has a negative potential.
        """
        return cut_graphs(potentials["node"], potentials["edge"], potentials.edges, potentials.lengths), None


@dataclass(frozen=True)
class RoofDual:
    """Approximate with an upper bound, for any edges; see :func:`torchssvm.structures.graph_cut.oracle.roof_dual`.

    Batches whose edges are all attractive are decoded exactly, by a minimum cut. Scores of an example should lie within
    twelve digits of each other: beside edges such as 1e30 the smallest are rounded away.

    Example:
        >>> edges = torch.tensor([[[0, 1]]])
        >>> repulsive = GraphPotentials(torch.tensor([[1.0, 0.2]]), torch.tensor([[-0.5]]), edges)
        >>> GraphCut(RoofDual()).argmax(repulsive).labeling.labels
        tensor([[1, 0]])
    """

    def solve(self, potentials: GraphPotentials) -> tuple[Tensor, Tensor | None]:
        """The roof dual, or a minimum cut if all edges are attractive."""
        args = potentials["node"], potentials["edge"], potentials.edges, potentials.lengths
        if bool(((potentials["edge"] < 0) & (potentials.edges[..., 0] >= 0)).any()):
            return round_graphs(*args)
        return cut_graphs(*args), None


class GraphCut(LabelledGraphs):
    """A label 0 or 1 for each node of a graph; edges between different labels have a cost. Each example has its graph.

    Potentials: :class:`GraphPotentials`, ``node`` ``[B, N]`` and ``edge`` ``[B, E]``, which carry the graphs. The
    score follows [Osokin et al. 2016, appendix I.3]::

        score(y) = sum_p node_p ([y_p = 1] - [y_p = 0]) - sum_{pq} edge_pq [y_p != y_q]

    Labelings: :class:`Segmentation`, ``(labels, cut)``. Targets: the labels ``[B, N]`` int64 (values beyond an
    example's nodes are ignored), or :class:`~torchssvm.WeightedLabels`, which also give each node a weight, such
    as the area of a superpixel.

    The loss is the Hamming loss: the sum of the weights of the nodes with a wrong label. ``balanced=True`` is the loss
    of [Osokin et al. 2016, appendix I.3], in which both classes are equally important.

    Args:
        oracle: ``MinCut()`` is exact and needs attractive edges; ``RoofDual()`` takes edges of any sign and is
            approximate. None means ``MinCut()``.
        balanced: Scale the weights so that all classes of an example's target have the same total weight; their sum
            does not change.
        normalize: Divide the loss by the sum of the weights of the example's nodes.

    Example:
        >>> from torchssvm.structures.graph_cut import GraphPotentials
        >>> potentials = GraphPotentials(torch.tensor([[1.0, -0.1]]), torch.tensor([[0.5]]), torch.tensor([[[0, 1]]]))
        >>> GraphCut().argmax(potentials).labeling.labels
        tensor([[1, 1]])
    """

    _not_plain = "the minimum cut algorithm loops over single edges"

    _quick_to_decode = True
    _state_parts = (-1.0, 1.0)
    _states = 2
    _target, _potentials = GraphTarget, GraphPotentials

    def __init__(self, oracle: CutOracle | None = None, *, balanced: bool = False, normalize: bool = True) -> None:
        check_flags(balanced=balanced, normalize=normalize)
        self.oracle = MinCut() if oracle is None else oracle
        check_object(self.oracle, "oracle", "solve", "RoofDual()")
        self.balanced = balanced
        self.normalize = normalize

    def argmax(self, potentials: Any) -> Decoding:
        """The oracle's labeling; of several best ones ``MinCut()`` returns the one with the fewest labels 1."""
        on, bound = self.oracle.solve(potentials)
        labels = on.to(torch.int64).masked_fill_(~mask_of(potentials.lengths, potentials["node"]), -1)
        labeling = self._labeling(labels, potentials.edges)
        node, edge = (t.detach().to(torch.float64) for t in potentials.tensors.values())
        gained = torch.where(on, node, -node).masked_fill(labels < 0, 0.0).sum(1)
        value = gained - edge.masked_fill(labeling.cut < 1, 0.0).sum(1)
        return Decoding(labeling, value, bound, exact=bound is None)

    def augmented_argmax(self, potentials: Potentials, target: GraphTarget) -> Decoding:
        """The oracle's labeling with the loss added to the nodes; the target if an approximate labeling is worse."""
        decoding = as_decoding(super().augmented_argmax(potentials, target))
        if decoding.exact:
            return decoding
        parts = {name: part.to(potentials.dtype) for name, part in self.parts(target).items()}
        return at_least(decoding, target, inner(parts, potentials.detach().tensors))

    def parts(self, labeling: Segmentation | GraphTarget) -> dict[str, Tensor]:
        """``[y_p = 1] - [y_p = 0]`` of the nodes ``[B, N]``, and ``-[y_p != y_q]`` of the edges ``[B, E]``."""
        return _parts(labeling.labels, labeling.cut, torch.get_default_dtype())

    @override
    def relative_scores(self, labelings: Segmentation, target: GraphTarget, potentials: Potentials) -> Tensor:
        labels, cut = with_target(labelings, target, 2)
        parts = _parts(labels, cut, torch.float64)
        tensors = potentials.tensors.items()
        total = sum((parts[name] @ tensor.to(torch.float64).unsqueeze(2)).squeeze(2) for name, tensor in tensors)
        assert isinstance(total, Tensor)
        return total[:, :-1] - total[:, -1:]

    @override
    def mean_difference(
        self, labelings: Segmentation, mass: Tensor, target: GraphTarget, potentials: Potentials
    ) -> Parts:
        dtype = potentials.dtype
        parts, true = _parts(*labelings, dtype), _parts(target.labels, target.cut, dtype)
        mass = mass.to(dtype).unsqueeze(1)
        # Subtracted before they are summed: the sum may be small beside its terms.
        return {name: (mass @ (part - true[name].unsqueeze(1))).squeeze(1) for name, part in parts.items()}

    def loss_potentials(self, target: GraphTarget) -> tuple[dict[str, Tensor], Tensor]:
        """Half of each node's cost, negative for the target's label; the constant is half the total cost."""
        half = target.costs / 2
        return {"node": torch.where(target.labels == 1, -half, half)}, half.sum(1)

    @override
    def places(self, potentials: Any) -> dict[str, Tensor]:
        return {"node": mask_of(potentials.lengths, potentials["node"]), "edge": potentials.edges[..., 0] >= 0}

    def signed(self, name: str) -> bool:
        """Label 0 counts the score of label 1 with a minus, and a cut the score of the edge."""
        return True

    def _labeling(self, labels: Tensor, edges: Tensor) -> Segmentation:
        return Segmentation(labels, cut_edges(labels, edges))

    @override
    def _fingerprint(self) -> str:
        return f"GraphCut(balanced={self.balanced}, normalize={self.normalize})"

    def __repr__(self) -> str:
        return f"GraphCut({self.oracle}, balanced={self.balanced}, normalize={self.normalize})"


def cut_edges(labels: Tensor, edges: Tensor) -> Tensor:
    """Whether each edge joins nodes with different labels: ``[B, E]`` int64, -1 in the padding."""
    ends = labels.gather(1, edges.clamp(min=0).flatten(1)).view(edges.shape)
    return (ends[..., 0] != ends[..., 1]).to(torch.int64).masked_fill_(edges[..., 0] < 0, -1)


def _parts(labels: Tensor, cut: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    nodes = torch.where(labels < 0, 0, 2 * labels - 1)
    return {"node": nodes.to(dtype), "edge": -(cut == 1).to(dtype)}
