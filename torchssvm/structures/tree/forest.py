"""Forests: trees that differ between examples, with features at nodes and edges."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_costs, check_int64, check_whole
from torchssvm.core.decoding import Decoding
from torchssvm.core.marginals import Marginals, marginals_by_gradient
from torchssvm.core.operators import apart
from torchssvm.core.potentials import Parts, Potentials, own_weights
from torchssvm.structures.common import (
    Head,
    check_fields,
    check_kind,
    check_labels,
    check_shape,
    fitting,
    mask_of,
    weight,
)
from torchssvm.structures.labelled import Labelled
from torchssvm.structures.max_marginals import tree_margins
from torchssvm.structures.sampling import sample_states
from torchssvm.structures.tree.oracle import max_sum_tree, node_depths
from torchssvm.structures.tree.sum_product import log_partition


class ForestFeatures(NamedTuple):
    """The forests of a batch, the input of :class:`LinearForest`.

    Attributes:
        nodes: ``[B, N, F]``.
        edges: ``[B, N, G]``, features of the edge between each node and its parent; zero at roots and in the padding.
        parent: ``[B, N]`` int64, -1 at roots and in the padding.
        forward: ``[B, N]`` bool, whether the edge leads from the parent to the child; else its matrix is transposed.

    Example:
        >>> nodes, ones = torch.rand(1, 3, 4), torch.tensor([[[0.0], [1.0], [1.0]]])
        >>> ForestFeatures(nodes, ones, parent=torch.tensor([[-1, 0, 1]]), forward=torch.ones(1, 3).bool())
        ForestFeatures(...)
    """

    nodes: Tensor
    edges: Tensor
    parent: Tensor
    forward: Tensor


class ForestPotentials(Potentials):
    """Scores of states ``node`` ``[B, N, K]`` and of pairs ``edge`` ``[B, N, K, K]`` (parent, child), by the child.

    Args:
        node: As above.
        edge: As above; entries at roots are ignored.
        parent: ``[B, N]`` int64, -1 at roots.
        lengths: ``[B]`` int64, the number of nodes of each example; None means N for all.
        options: As :class:`~torchssvm.Potentials` takes them.
    """

    __slots__ = ("parent",)
    carried = ("parent",)

    def __init__(
        self, node: Tensor, edge: Tensor, parent: Tensor, lengths: Tensor | None = None, **options: Any
    ) -> None:
        bound: dict[str, int] = {}
        check_shape(node, "node", "B", "N", "K", bound=bound)
        check_shape(edge, "edge", "B", "N", "K", "K", bound=bound)
        ragged = None if lengths is None else {"node": 0, "edge": 0}
        super().__init__({"node": node, "edge": edge}, lengths, ragged=ragged, **options)
        self.parent = apart(check_int64(parent, "parent", node.shape[:2], ", the parent of every node"))


class ForestLabeling(NamedTuple):
    """States, and the pairs that they make."""

    labels: Tensor  # ``[B, N]`` int64, -1 in the padding
    # ``[B, N]`` int64, K times the parent's state plus the node's state; -1 at roots and in the padding
    pairs: Tensor


class Forest(Labelled):
    """A state for every node of an example's trees, decoded exactly; the loss is the number of wrong states.

    Args:
        num_states: K, the number of states.
        class_weight: ``[K]`` float64, the cost of a wrong state by the true one; None is 1 for all.

    Raises:
        ValueError: ``num_states`` is less than 1, or ``class_weight`` has another number of costs.
    """

    _not_plain = "trees that differ from example to example are decoded by loops over single nodes"

    unit = single = "node"

    def __init__(self, num_states: int, class_weight: Tensor | None = None) -> None:
        self.num_states = check_whole(num_states, "num_states")
        self.class_weight = check_costs(class_weight, "class_weight", num_states)

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        check_kind(potentials, ForestPotentials)
        check_shape(potentials["node"], "potentials['node']", "B", "N", self.num_states)

    @override
    def argmax(self, potentials: Potentials) -> Decoding:
        parent = potentials.parent  # type: ignore[attr-defined]
        labels, value = max_sum_tree(potentials["node"], potentials["edge"], parent, potentials.lengths)
        return Decoding(self._with_pairs(labels, parent), value)

    @override
    def marginals(self, potentials: Potentials) -> Marginals:
        return marginals_by_gradient(
            potentials,
            lambda p: log_partition(p["node"], p["edge"], p.parent, _depths(p)),  # type: ignore[attr-defined]
        )

    @override
    def _sample(self, potentials: Potentials, n: int, generator: torch.Generator | None) -> ForestLabeling:
        parent: Tensor = potentials.parent  # type: ignore[attr-defined]
        wide = potentials.replace({name: tensor.double() for name, tensor in potentials.tensors.items()})
        parts = self.marginals(wide).parts
        labels = sample_states(parts["node"], parts["edge"], parent, _depths(potentials), n, generator)
        each = self._with_pairs(labels.flatten(0, 1), parent.repeat_interleave(n, 0))
        return ForestLabeling(*(tensor.unflatten(0, (-1, n)) for tensor in each))

    @override
    def max_marginals(self, potentials: Potentials) -> Tensor:
        parent, labels = potentials.parent, self.argmax(potentials).labeling.labels  # type: ignore[attr-defined]
        node = potentials["node"]
        return tree_margins(node, potentials["edge"], parent, node_depths(node, parent, potentials.lengths), labels)

    @override
    def parts(self, labeling: ForestLabeling) -> Parts:
        states = self.num_states
        node = _indicators(labeling.labels, states)
        return {"node": node, "edge": _indicators(labeling.pairs, states**2).unflatten(2, (states, states))}

    def check_target(self, target: Tensor, potentials: Potentials) -> ForestLabeling:
        """Check the states, ``[B, N]`` int64, and the parents; add the pairs."""
        node, parent, lengths = potentials["node"], potentials.parent, potentials.lengths  # type: ignore[attr-defined]
        check_int64(target, "target", node.shape[:2], ", a state for every node")
        real = mask_of(lengths, target)
        check_labels(target, self.num_states, real)
        node_depths(node, parent, lengths)
        return self._with_pairs(target.masked_fill(~real, -1), parent)

    @override
    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        parent = potentials.parent  # type: ignore[attr-defined]
        return {"edge": ((parent >= 0) & mask_of(potentials.lengths, parent))[..., None, None]}

    def _with_pairs(self, labels: Tensor, parent: Tensor) -> ForestLabeling:
        above = labels.gather(1, parent.clamp(min=0))
        joined = (parent >= 0) & (labels >= 0)
        return ForestLabeling(labels, torch.where(joined, above * self.num_states + labels, -1))


class LinearForest(Head):
    """Potentials of forests, ``node = W x + bias`` and ``edge = sum_g z_g E_g``; all weights are zero at the start.

    Args:
        node_features: F, numbers per node.
        edge_features: G, numbers per edge.
        num_states: K, the number of states.
        structure: How outputs are decoded and what they cost; None is ``Forest(num_states)``.

    Raises:
        ValueError: A size is out of range, or ``structure`` has another number of states.
        TypeError: A size is not a number, or ``structure`` is not a structure of forests.
    """

    def __init__(
        self, node_features: int, edge_features: int, num_states: int, *, structure: Forest | None = None
    ) -> None:
        super().__init__()
        self.node_features = node_features = check_whole(node_features, "node_features")
        self.edge_features = edge_features = check_whole(edge_features, "edge_features")
        self.structure = fitting(structure, lambda: Forest(num_states), "Forest(num_states)", num_states=num_states)
        self.node = weight(torch.zeros(num_states, node_features))
        self.edge = weight(torch.zeros(edge_features, num_states, num_states))
        self.bias = weight(torch.zeros(num_states))

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.tree.kind import ForestAdapter

        return ForestAdapter(self, ForestLabeling) if type(self.structure) is Forest else None

    def forward(self, x: ForestFeatures, lengths: Tensor | None = None) -> ForestPotentials:
        """Features -> potentials, in the weights' dtype.

        Args:
            x: :class:`ForestFeatures`, or any tuple of its fields in the same order.
            lengths: ``[B]`` int64, the number of nodes of each example; None means N for all.

        Raises:
            TypeError: ``x`` is not a tuple of four.
            ValueError: A shape or a length does not fit.
        """
        x = check_fields(x, ForestFeatures)
        batch = check_shape(x.nodes, "x.nodes", "B", "N", self.node.shape[1]).shape[:2]
        check_shape(x.edges, "x.edges", *batch, len(self.edge))
        check_shape(x.parent, "x.parent", *batch)
        check_shape(x.forward, "x.forward", *batch)
        nodes, links = x.nodes.to(self.node.dtype), x.edges.to(self.node.dtype)
        turned = ~x.forward.bool()[..., None, None]
        edge = torch.einsum("bng,gkl->bnkl", links, self.edge)
        edge = torch.where(turned, edge.mT, edge)

        def adjoint(parts: Parts) -> list[Tensor]:
            v, pairs = parts["node"], parts["edge"]
            pairs = torch.where(turned, pairs.mT, pairs)
            return [v.transpose(1, 2) @ nodes, torch.einsum("bnkl,bng->bgkl", pairs, links), v.sum(1)]

        def gram_product(parts: Parts) -> Parts:
            states, pairs, bias = adjoint(parts)
            change = torch.einsum("bng,bgkl->bnkl", links, pairs)
            return {
                "node": nodes @ states.transpose(1, 2) + bias.unsqueeze(1),
                "edge": torch.where(turned, change.mT, change),
            }

        return ForestPotentials(
            nodes @ self.node.T + self.bias,
            edge,
            x.parent,
            lengths,
            adjoint=adjoint,
            gram_product=gram_product,
            weights=own_weights(self),
        )


def _indicators(labels: Tensor, states: int) -> Tensor:
    parts = torch.zeros(*labels.shape, states, device=labels.device)
    return parts.scatter_(2, labels.clamp(min=0).unsqueeze(2), (labels >= 0).to(parts.dtype).unsqueeze(2))


def _depths(potentials: Potentials) -> Tensor:
    return node_depths(potentials["node"], potentials.parent, potentials.lengths)  # type: ignore[attr-defined]
