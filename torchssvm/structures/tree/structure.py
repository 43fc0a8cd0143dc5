"""Trees: an output assigns one of K states to each node of a tree that all examples share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_int64, check_whole, row_name
from torchssvm.core.decoding import Decoding
from torchssvm.core.marginals import Marginals, marginals_by_gradient
from torchssvm.core.operators import on_host, upload
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.structures.common import check_labels, check_potentials, mask_of
from torchssvm.structures.labelled import Indexed, Labelled, Places, every_labeling
from torchssvm.structures.max_marginals import tree_margins
from torchssvm.structures.sampling import sample_states
from torchssvm.structures.tree.oracle import check_parent, max_sum_tree, node_depths
from torchssvm.structures.tree.sum_product import log_partition


class TreeDecoder(nn.Module):
    """The best states of a :class:`~torchssvm.Tree`; ties as there: the smallest state, from the roots on."""

    ragged = True

    def __init__(self, structure: Tree) -> None:
        super().__init__()
        self.structure, self.shared = structure, structure.shared
        self.parent = structure.parent.tolist()
        size = len(self.parent)
        depth = node_depths(torch.empty(1, size, 1), structure.parent, None)[0].tolist()
        self.downwards = sorted(range(size), key=lambda node: (depth[node], node))
        self.upwards = sorted(range(size), key=lambda node: (-depth[node], node))

    def forward(self, potentials: Parts, lengths: Tensor | None) -> Tensor:
        """``node`` ``[B, N, K]`` and ``edge`` -> ``[B, N]`` int64, -1 beyond the length; a graph has a fixed N."""
        node, edge = potentials["node"], potentials["edge"]
        batch, longest, states = node.shape
        if lengths is None:
            lengths = torch.full((batch,), longest, device=node.device)
        real = torch.arange(longest, device=node.device) < lengths.unsqueeze(1)
        if not torch.compiler.is_compiling():
            self.structure.check_sizes(lengths.tolist())
        belief = list(node.unbind(1))
        for v in self.upwards:
            above = self.parent[v]
            if v < longest and above >= 0:
                matrix = edge if self.shared else edge[:, v]
                message = (belief[v].unsqueeze(1) + matrix).amax(2)
                belief[above] = torch.where(real[:, v : v + 1], belief[above] + message, belief[above])
        labels = [real[:, 0].long()] * longest
        for v in self.downwards:
            if v < longest:
                if (above := self.parent[v]) >= 0:
                    matrix = edge if self.shared else edge[:, v]
                    row = matrix.gather(1, labels[above].view(-1, 1, 1).expand(batch, 1, states)).squeeze(1)
                    labels[v] = (belief[v] + row).argmax(1)
                else:
                    labels[v] = belief[v].argmax(1)
        return torch.where(real, torch.stack(labels, 1), -1)


class Tree(Labelled, Indexed):
    """States of the nodes of a tree (or of several), with scores for single states and for child-parent pairs.

    Potentials: ``node`` ``[B, N, K]``; ``edge`` ``[B, K, K]`` (state of the parent, state of the child), the same for
    all edges, or ``[B, N, K, K]`` by the child with ``shared=False``, whose entries at roots are ignored.
    Labelings and targets: ``[B, N]`` int64, -1 beyond an example's length (values of a target there are ignored). An
    example of length T has the first T nodes, which must contain all their parents.

    The loss is the Hamming loss, ``sum_v [y_v != target_v]``.

    Args:
        num_states: K, the number of states.
        parent: The parent of each node, 0 to N - 1, or -1 for a root. Nodes may be numbered in any order.
        shared: Whether one matrix serves all edges of an example.
        normalize: Divide the loss by the number of the example's nodes.

    Raises:
        ValueError: ``num_states`` is less than 1, or ``parent`` does not describe trees.

    Example:
        >>> tree = Tree(num_states=2, parent=[-1, 0, 0])
        >>> node = torch.tensor([[[0.0, 1.0], [0.1, 0.0], [0.1, 0.0]]])
        >>> tree.argmax(Potentials({"node": node, "edge": torch.eye(2).unsqueeze(0)})).labeling
        tensor([[1, 1, 1]])
    """

    unit = single = "node"
    _quick_to_decode = True

    def __init__(
        self, num_states: int, parent: Sequence[int] | Tensor, *, shared: bool = True, normalize: bool = True
    ) -> None:
        self.num_states = check_whole(num_states, "num_states")
        check_flags(shared=shared, normalize=normalize)
        self.parent = check_parent(parent)
        self.shared = shared
        self.normalize = normalize
        # For T = 1 to N: whether the first T nodes contain all their parents.
        self._closed = self.parent.cummax(0).values <= torch.arange(len(self.parent))

    @property
    def num_nodes(self) -> int:
        """N, the largest number of nodes of an example."""
        return len(self.parent)

    def argmax(self, potentials: Potentials) -> Decoding:
        """Max-sum; ties go to the smallest state, chosen from the roots to the leaves."""
        node, edge = potentials["node"], potentials["edge"]
        parent = upload(self.parent[: node.shape[1]], node.device)
        labels, value = max_sum_tree(node, edge, parent, potentials.lengths)
        return Decoding(labels, value)

    @override
    def marginals(self, potentials: Potentials) -> Marginals:
        return marginals_by_gradient(potentials, self._log_partition)

    @override
    def _sample(self, potentials: Potentials, n: int, generator: torch.Generator | None) -> Tensor:
        node, edge = (potentials[name].double() for name in ("node", "edge"))
        if self.shared:  # marginals of each edge by itself
            edge = edge.unsqueeze(1).expand(-1, node.shape[1], -1, -1)
        given = potentials.replace({"node": node, "edge": edge})
        parts = marginals_by_gradient(given, self._log_partition).parts
        return sample_states(parts["node"], parts["edge"], *self._trees(potentials), n, generator)

    def _log_partition(self, potentials: Potentials) -> Tensor:
        return log_partition(potentials["node"], potentials["edge"], *self._trees(potentials))

    def _trees(self, potentials: Potentials) -> tuple[Tensor, Tensor]:
        """Parents and depths of the nodes, ``[B, N]`` each."""
        node = potentials["node"]
        parent = upload(self.parent[: node.shape[1]], node.device).expand(node.shape[:2])
        return parent, node_depths(node, parent, potentials.lengths)

    @override
    def max_marginals(self, potentials: Potentials) -> Tensor:
        node = potentials["node"]
        parent, labels = upload(self.parent[: node.shape[1]], node.device), self.argmax(potentials).labeling
        return tree_margins(node, potentials["edge"], parent, node_depths(node, parent, potentials.lengths), labels)

    def _shapes(self, labeling: Tensor) -> dict[str, tuple[int, ...]]:
        longest, states = labeling.shape[1], self.num_states
        pairs = (states, states) if self.shared else (longest, states, states)
        return {"node": (longest, states), "edge": pairs}

    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        """Check shapes, lengths and labels; write -1 beyond each length."""
        node = potentials["node"]
        batch, longest, states = node.shape
        check_int64(target, "target", (batch, longest), ", a state for each node")
        labels, lengths = on_host(target), None if potentials.lengths is None else on_host(potentials.lengths)
        real = mask_of(lengths, labels)
        self.check_sizes([longest] if lengths is None else lengths.tolist())
        check_labels(labels, states, real)
        return upload(labels.masked_fill(~real, -1), node.device)

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        pairs: tuple[int | str, ...] = () if self.shared else ("N",)
        shapes = {"node": ("B", "N", self.num_states), "edge": ("B", *pairs, self.num_states, self.num_states)}
        node, _ = check_potentials(potentials, shapes)
        if (longest := node.shape[1]) > self.num_nodes:
            raise ValueError(f"potentials have {longest} nodes, more than the {self.num_nodes} of the tree")

    @override
    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        real = mask_of(potentials.lengths, potentials["node"])
        nodes = {"node": real[..., None]}
        parent = upload(self.parent[: real.shape[1]], real.device)
        return nodes if self.shared else {**nodes, "edge": (real & (parent >= 0))[..., None, None]}

    def check_sizes(self, sizes: list[int]) -> None:
        """Raise ValueError if the first nodes of an example, as many as ``sizes`` says, lack a parent."""
        for size in set(sizes):
            if not bool(self._closed[size - 1]):
                v = int((self.parent[:size] >= size).nonzero()[0])
                raise ValueError(
                    f"lengths has {size} in {row_name(sizes.index(size))}, and the parent of node {v} is node "
                    f"{int(self.parent[v])}: number parents first"
                )

    @override
    def _plain(self) -> nn.Module:
        return TreeDecoder(self)

    @override
    def enumerate(self, potentials: Potentials) -> Iterator[Tensor]:
        return every_labeling(self.num_states, mask_of(potentials.lengths, potentials["node"]))

    @override
    def _places(self, labels: Tensor) -> Places:  # type: ignore[override]
        longest, states = labels.shape[2], self.num_states
        parent = upload(self.parent[:longest], labels.device)
        real = labels >= 0
        known = labels.clamp(min=0)
        both = real & (parent >= 0) & real[:, :, parent.clamp(min=0)]
        pairs = (known[:, :, parent.clamp(min=0)] * states + known).masked_fill(~both, 0)
        nodes = torch.arange(longest, device=labels.device)
        pairs = pairs if self.shared else pairs + nodes * states**2
        return [("node", known + nodes * states, real), ("edge", pairs, both)]

    def __repr__(self) -> str:
        parent = self.parent.tolist()
        return f"Tree({self.num_states}, {parent}, shared={self.shared}, normalize={self.normalize})"
