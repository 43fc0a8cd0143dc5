"""What structures share that label the nodes of graphs, where each example has a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_int64, check_tensor
from torchssvm.core.batch import tree_replace
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Decoding, fit
from torchssvm.structures.arguments import WeightedLabels, check_edges, check_labels, check_lengths
from torchssvm.structures.labelled import Labelled, every_labeling

_MOST_LISTED = 4096


class EdgePotentials(Potentials):
    """Scores of the nodes ``[B, N, ...]`` and edges ``[B, E, ...]`` of graphs, which they carry."""

    __slots__ = ("edges",)
    carried = ("edges",)

    def __init__(self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None, options: Any) -> None:
        ragged = None if lengths is None else {"node": 0}
        super().__init__({"node": node, "edge": edge}, lengths, ragged=ragged, **options)
        self.edges = check_edges(edges, edge.shape[1], node.shape, self.lengths)


class LabelledGraphs(Labelled):
    """One of several labels for each node of a graph; subclasses say what an edge gets from the labels of its ends.

    Labelings and targets begin with the labels ``[B, N]`` and with a number of each edge ``[B, E]``; both are int64,
    and -1 in the padding. A target also has the cost of a wrong label at each node.
    """

    unit = single = "node"
    balanced = False
    normalize: bool
    _target: Callable[..., Any]

    def _fitting(self, potentials: Potentials) -> Any:
        """The potentials, if they are of this kind; else ValueError."""
        raise NotImplementedError

    def _labeling(self, labels: Tensor, edges: Tensor) -> Any:
        """The labeling with these labels."""
        raise NotImplementedError

    def resize(self, labelings: Any, target: Any) -> Any:
        """Stored labelings ``[B, C, ...]``, cropped or padded to the nodes and edges of this batch."""
        pairs = zip(labelings, target[:2], strict=True)
        return tree_replace(labelings, [fit(held, like.shape[1:], self.padding) for held, like in pairs])

    def costs(self, target: Any) -> Tensor:
        """The cost of a wrong label at each node, ``[B, N]`` float64."""
        return target.costs

    def check_target(self, target: Tensor | WeightedLabels, potentials: Potentials) -> Any:
        """Check shapes and numbers; add what the target has at the edges and the cost of a wrong label at each node."""
        graphs = self._fitting(potentials)
        labels, weights = target if isinstance(target, WeightedLabels) else (target, None)
        shape = graphs["node"].shape[:2]
        check_int64(labels, "target", shape, ", a label for every node, or WeightedLabels with such labels")
        real = real_nodes(graphs)
        check_labels(labels, self._states, real)
        labels = labels.masked_fill(~real, -1)
        costs = self._costs(labels, node_costs(weights, real))
        return self._target(*self._labeling(labels, graphs.edges), costs)

    def enumerate(self, potentials: Potentials) -> Iterator[Any] | None:
        """All labelings of small graphs, of up to 4096 labelings; None for larger ones."""
        graphs = self._fitting(potentials)
        longest = graphs["node"].shape[1]
        if self._states**longest > _MOST_LISTED:
            return None
        real = real_nodes(graphs)

        return (self._labeling(labels, graphs.edges) for labels in every_labeling(self._states, real))

    def _costs(self, labels: Tensor, weights: Tensor) -> Tensor:
        # Running sums: padding does not change their bits, and so not the digest of the target.
        total = weights.cumsum(1)[:, -1:]
        if self.balanced:
            of_class = torch.cat([(weights * (labels == k)).cumsum(1)[:, -1:] for k in range(self._states)], 1)
            present = (of_class > 0).sum(1, keepdim=True)
            own = of_class.gather(1, labels.clamp(min=0))
            weights = torch.where(own > 0, weights * total / (own * present), 0.0)
        return torch.where(total > 0, weights / total, 0.0) if self.normalize else weights


def node_costs(weights: Tensor | None, real: Tensor) -> Tensor:
    """The cost of a wrong label at each node, ``[B, N]`` float64: its weight, or 1; 0 beyond an example's nodes.

    Raises:
        ValueError: The shape is another, or a weight is negative or not finite.
    """
    if weights is None:
        return real.to(torch.float64)
    if check_tensor(weights, "target.weights").shape != real.shape:
        raise ValueError(f"target has weights {list(weights.shape)}, and labels {list(real.shape)}")
    costs = weights.to(torch.float64).masked_fill(~real, 0.0)
    if not bool(((costs >= 0) & torch.isfinite(costs)).all()):
        raise ValueError("target has weights that are negative or not finite")
    return costs


def at_least(found: Decoding, target: Any, own: Tensor) -> Decoding:
    """``found``, with the target for the examples where it scores more, ``own`` ``[B]`` float64; two tensors each."""
    assert found.value is not None
    worse = (found.value < own).unsqueeze(1)
    pairs = zip(found.labeling, target[:2], strict=True)
    labeling = type(found.labeling)(*(torch.where(worse, true, held) for held, true in pairs))
    return found._replace(labeling=labeling, value=torch.maximum(found.value, own))


def with_target(labelings: tuple[Tensor, Tensor], target: Any) -> tuple[Tensor, Tensor]:
    """Labelings ``[B, C, ...]`` and the target, ``[B, C + 1, ...]``."""
    first, second = (torch.cat([held, own.unsqueeze(1)], 1) for held, own in zip(labelings, target[:2], strict=True))
    return first, second


def real_nodes(potentials: Potentials) -> Tensor:
    """The nodes of each example, ``[B, N]`` bool."""
    batch, longest = potentials["node"].shape[:2]
    return check_lengths(potentials.lengths, batch, longest, potentials.device)
