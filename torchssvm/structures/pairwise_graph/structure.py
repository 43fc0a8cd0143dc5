"""Labels for the nodes of graphs, one graph an example, with scores for every pair of labels at an edge."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_object, check_whole
from torchssvm.core.decoding import Decoding, as_decoding
from torchssvm.core.potentials import Potentials
from torchssvm.structures.common import check_shape, mask_of
from torchssvm.structures.labelled import EdgePotentials, Indexed, LabelledGraphs, Places, at_least
from torchssvm.structures.pairwise_graph.oracle import GraphOracle, TreeReweighted


class PairwisePotentials(EdgePotentials):
    """Scores of labels at the nodes and of pairs of labels at the edges, one graph for each example.

    Args:
        node: ``[B, N, K]``.
        edge: ``[B, E, K, K]``: by the labels of the edge's first and second end.
        edges, lengths, options: As :class:`GraphPotentials` takes them.

    Raises:
        ValueError: A shape or a size does not fit, or an edge does not join two nodes of its example.

    Example:
        >>> node, edge = torch.tensor([[[0.0, 1.0], [0.2, 0.0]]]), torch.eye(2).view(1, 1, 2, 2)
        >>> potentials = PairwisePotentials(node, edge, torch.tensor([[[0, 1]]]))
        >>> PairwiseGraph(2).argmax(potentials).labeling.labels
        tensor([[1, 1]])
    """

    __slots__ = ()

    def __init__(
        self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None, **options: Any
    ) -> None:
        bound: dict[str, int] = {}
        check_shape(node, "node", "B", "N", "K", bound=bound)
        check_shape(edge, "edge", "B", "E", "K", "K", bound=bound)
        super().__init__(node, edge, edges, lengths, options)


class GraphLabels(NamedTuple):
    """A labeling of graphs: the labels of the nodes, and the pairs that they make at the edges.

    Attributes:
        labels: ``[B, N]`` int64; -1 beyond an example's nodes.
        pairs: ``[B, E]`` int64, K times the label of the edge's first end plus the second's; -1 in the padding.

    Example:
        >>> node, edge = torch.tensor([[[0.0, 1.0], [0.2, 0.0]]]), torch.zeros(1, 1, 2, 2)
        >>> PairwiseGraph(2).decode(PairwisePotentials(node, edge, torch.tensor([[[0, 1]]])))
        GraphLabels(labels=tensor([[1, 0]]), pairs=tensor([[2]]))
    """

    labels: Tensor
    pairs: Tensor


class PairwiseTarget(NamedTuple):
    """The target that :meth:`PairwiseGraph.check_target` returns."""

    labels: Tensor  # as in :class:`GraphLabels`
    pairs: Tensor  # as in :class:`GraphLabels`
    costs: Tensor  # ``[B, N]`` float64, the cost of a wrong label at each node; 0 beyond an example's nodes


class PairwiseGraph(LabelledGraphs, Indexed):
    """One of K labels for each node of a graph, with a score for every pair of labels at an edge; any graph.

    Potentials: :class:`PairwisePotentials`, ``node`` ``[B, N, K]`` and ``edge`` ``[B, E, K, K]``, which carry the
    graphs. Labelings: :class:`GraphLabels`, ``(labels, pairs)``. Targets: the labels ``[B, N]`` int64 (values beyond an
    example's nodes are ignored), or :class:`~torchssvm.WeightedLabels`, which also give each node a weight.

    Graphs without cycles are decoded exactly. For the others the oracle returns good labels and an upper bound of all
    scores, so that certificates hold for the problem itself, not for a relaxation.

    The loss is the Hamming loss: the sum of the weights of the nodes with a wrong label.

    Args:
        num_labels: K, the number of labels.
        oracle: How graphs with cycles are decoded; None means ``TreeReweighted()``.
        normalize: Divide the loss by the sum of the weights of the example's nodes.

    Raises:
        ValueError: ``num_labels`` is less than 1.

    Example:
        >>> from torchssvm.structures.pairwise_graph import PairwisePotentials
        >>> node, edge = torch.tensor([[[0.0, 1.0], [0.2, 0.0], [0.1, 0.0]]]), torch.eye(2).expand(1, 3, 2, 2)
        >>> triangle = torch.tensor([[[0, 1], [1, 2], [2, 0]]])
        >>> PairwiseGraph(2).argmax(PairwisePotentials(node, edge, triangle)).labeling.labels
        tensor([[1, 1, 1]])
    """

    _not_plain = "messages pass along single edges, in an order of each example"

    _target, _potentials, tensors = PairwiseTarget, PairwisePotentials, 2

    def __init__(self, num_labels: int, oracle: GraphOracle | None = None, *, normalize: bool = True) -> None:
        self.num_labels = check_whole(num_labels, "num_labels")
        check_flags(normalize=normalize)
        self.oracle = TreeReweighted() if oracle is None else oracle
        check_object(self.oracle, "oracle", "solve", "TreeReweighted()")
        self.normalize = normalize

    @property
    def _states(self) -> int:
        return self.num_labels

    @override
    def argmax(self, potentials: Any) -> Decoding:
        tensors = potentials["node"], potentials["edge"]
        labels, value, bound = self.oracle.solve(*tensors, potentials.edges, potentials.lengths)
        exact = bool((bound <= value).all())
        labeling = self._labeling(labels, potentials.edges)
        return Decoding(labeling, value, None if exact else bound, exact)

    def augmented_argmax(self, potentials: Potentials, target: PairwiseTarget) -> Decoding:
        """The oracle's labels with the loss added to the nodes; the target if approximate labels score less."""
        wide = potentials.replace({name: t.detach().to(torch.float64) for name, t in potentials.tensors.items()})
        decoding = as_decoding(super().augmented_argmax(wide, target))
        if decoding.exact:
            return decoding
        return at_least(decoding, target, self._scores(self._stack(target), potentials).squeeze(1))

    def _shapes(self, labeling: GraphLabels | PairwiseTarget) -> dict[str, tuple[int, ...]]:
        nodes, edges, states = labeling.labels.shape[1], labeling.pairs.shape[1], self.num_labels
        return {"node": (nodes, states), "edge": (edges, states, states)}

    @override
    def places(self, potentials: Any) -> dict[str, Tensor]:
        joined = potentials.edges[..., 0] >= 0
        return {"node": mask_of(potentials.lengths, potentials["node"]).unsqueeze(2), "edge": joined[..., None, None]}

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        super()._check_potentials(potentials)
        check_shape(potentials["node"], "potentials['node']", "B", "N", self.num_labels)

    def _labeling(self, labels: Tensor, edges: Tensor) -> GraphLabels:
        ends = labels.gather(1, edges.clamp(min=0).flatten(1)).view(edges.shape)
        pairs = (ends[..., 0] * self.num_labels + ends[..., 1]).masked_fill_(edges[..., 0] < 0, -1)
        return GraphLabels(labels, pairs)

    @override
    def _places(self, labels: Tensor, pairs: Tensor) -> Places:  # type: ignore[override]
        places: Places = []
        for name, entries, size in (("node", labels, self.num_labels), ("edge", pairs, self.num_labels**2)):
            offsets = size * torch.arange(entries.shape[2], device=entries.device)
            places.append((name, entries.clamp(min=0) + offsets, entries >= 0))
        return places

    @override
    def _fingerprint(self) -> str:
        return f"PairwiseGraph({self.num_labels}, normalize={self.normalize})"

    def __repr__(self) -> str:
        return f"PairwiseGraph({self.num_labels}, {self.oracle}, normalize={self.normalize})"
