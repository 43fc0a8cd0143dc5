"""Trees: an output assigns one of K states to each node of a tree that all examples share."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import as_parents, check_flags, check_int64, check_whole
from torchssvm.core.ordered_sums import add_at
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.structure import Decoding, Structure
from torchssvm.structures.arguments import check_labels, check_lengths
from torchssvm.structures.max_marginals import tree_margins
from torchssvm.structures.tree.oracle import max_sum_tree, node_depths


class Tree(Structure):
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

    unit = "node"
    quick_to_decode = True

    def __init__(
        self, num_states: int, parent: Sequence[int] | Tensor, *, shared: bool = True, normalize: bool = True
    ) -> None:
        self.num_states = check_whole(num_states, "num_states")
        check_flags(shared=shared, normalize=normalize)
        self.parent = _check_parent(parent)
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
        node = potentials["node"]
        parent = self._on(node.device)[: node.shape[1]]
        labels, value = max_sum_tree(node, potentials["edge"], parent, potentials.lengths)
        return Decoding(labels, value)

    def max_marginals(self, potentials: Potentials) -> Tensor:
        """Of each state of each node, ``[B, N, K]``."""
        node = potentials["node"]
        parent, labels = self._on(node.device)[: node.shape[1]], self.argmax(potentials).labeling
        return tree_margins(node, potentials["edge"], parent, node_depths(node, parent, potentials.lengths), labels)

    def augmented_argmax(self, potentials: Potentials, target: Tensor) -> Decoding:
        """Max-sum with the Hamming loss added to the nodes."""
        # delta is exactly 0 at the target: adding the cost everywhere and subtracting it at the target would leave
        # rounding errors.
        delta, _ = self.loss_potentials(target)
        node = potentials["node"]
        augmented = {"node": node + delta["node"].to(node.dtype), "edge": potentials["edge"]}
        return self.argmax(potentials.replace(augmented))

    def parts(self, labeling: Tensor) -> dict[str, Tensor]:
        """Indicators of the states ``[B, N, K]``, and counts (or indicators) of the pairs."""
        batch, longest = labeling.shape
        pairs = (self.num_states, self.num_states)
        like = {
            "node": torch.zeros(batch, longest, self.num_states, device=labeling.device),
            "edge": torch.zeros(batch, *(pairs if self.shared else (longest, *pairs)), device=labeling.device),
        }
        return self._add(like, labeling.unsqueeze(1), torch.ones(batch, 1, device=labeling.device))

    def difference(self, labeling: Tensor, target: Tensor, potentials: Potentials) -> Parts:
        """Parts of the labeling less parts of the target."""
        mass = torch.tensor([1.0, -1.0], device=labeling.device).expand(len(labeling), 2)
        return self._add(_zeros_like(potentials), torch.stack([labeling, target], 1), mass)

    def relative_scores(self, labelings: Tensor, target: Tensor, potentials: Potentials) -> Tensor:
        """Sums of looked-up potentials, less the target's: ``[B, C]`` float64."""
        everything = torch.cat([labelings, target.unsqueeze(1)], 1)
        batch = len(everything)
        states, pairs, real, both = self._places(everything)
        scores = potentials["node"].flatten(1).gather(1, states.view(batch, -1)).view(states.shape) * real
        edges = potentials["edge"].flatten(1).gather(1, pairs.view(batch, -1)).view(pairs.shape) * both
        total = scores.sum(2, dtype=torch.float64) + edges.sum(2, dtype=torch.float64)
        return total[:, :-1] - total[:, -1:]

    def mean_difference(self, labelings: Tensor, mass: Tensor, target: Tensor, potentials: Potentials) -> Parts:
        """The mass of each state and pair, less the total mass at the target's."""
        everything = torch.cat([labelings, target.unsqueeze(1)], 1)
        mass = torch.cat([mass, -mass.sum(1, keepdim=True)], 1)
        return self._add(_zeros_like(potentials), everything, mass)

    def loss(self, labeling: Tensor, target: Tensor) -> Tensor:
        """Hamming loss, ``[B]`` float64."""
        return (self.costs(target) * (labeling != target)).sum(1)

    def loss_potentials(self, target: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The cost of each state, ``[B, N, K]``, 0 at the target; edges cost nothing; the constant is zero."""
        delta = self.costs(target).unsqueeze(2).repeat(1, 1, self.num_states)
        return {"node": delta.scatter_(2, target.clamp(min=0).unsqueeze(2), 0.0)}, delta.new_zeros(len(delta))

    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        """Check shapes, lengths and labels; write -1 beyond each length."""
        if potentials.tensors.keys() != {"node", "edge"} or potentials["node"].ndim != 3:
            raise ValueError(f"a tree takes potentials node [B, N, K] and edge, got {potentials}")
        node, edge = potentials["node"], potentials["edge"]
        batch, longest, states = node.shape
        pairs = [batch, states, states] if self.shared else [batch, longest, states, states]
        if states != self.num_states or longest > self.num_nodes or list(edge.shape) != pairs:
            raise ValueError(
                f"potentials of {self} must be node [B, N, {self.num_states}], N at most {self.num_nodes}, and edge "
                f"{pairs}; got {list(node.shape)} and {list(edge.shape)}"
            )
        check_int64(target, "target", (batch, longest), ", a state for each node")
        real = check_lengths(potentials.lengths, batch, longest, node.device)
        self.check_sizes({longest} if potentials.lengths is None else set(potentials.lengths.tolist()))
        check_labels(target, states, real)
        return target.masked_fill(~real, -1)

    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        """The nodes of each example, and the edges of those that have a parent."""
        longest = potentials["node"].shape[1]
        limit = longest if potentials.lengths is None else potentials.lengths.unsqueeze(1)
        real = torch.arange(longest, device=potentials.device) < limit
        own = {"node": real[..., None]}
        return own if self.shared else {**own, "edge": (real & (self._on(real.device)[:longest] >= 0))[..., None, None]}

    def check_sizes(self, sizes: Iterable[int]) -> None:
        """Raise ValueError if the parent of a node is missing in an example of one of these numbers of nodes."""
        for size in sizes:
            if not bool(self._closed[size - 1]):
                v = int((self.parent[:size] >= size).nonzero()[0])
                raise ValueError(
                    f"an example has {size} nodes, and the parent of node {v} is {int(self.parent[v])}: number the "
                    "nodes so that the first nodes contain all their parents"
                )

    def _plain(self) -> nn.Module:
        """Max-sum."""
        from torchssvm.structures.tree.plain import TreeDecoder

        return TreeDecoder(self)

    def enumerate(self, potentials: Potentials) -> Iterator[Tensor]:
        """All K^N labelings."""
        batch, longest, states = potentials["node"].shape
        real = check_lengths(potentials.lengths, batch, longest, potentials.device)
        for states_of in itertools.product(range(states), repeat=longest):
            yield torch.tensor(states_of, device=potentials.device).expand(batch, longest).masked_fill(~real, -1)

    def costs(self, target: Tensor) -> Tensor:
        """The cost of a wrong state at each node: ``[B, N]`` float64, zero in the padding."""
        costs = (target >= 0).to(torch.float64)
        return costs / costs.sum(1, keepdim=True).clamp(min=1) if self.normalize else costs

    def _on(self, device: torch.device) -> Tensor:
        if self.parent.device != device:
            self.parent = self.parent.to(device)
        return self.parent

    def _places(self, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Places of the states and pairs of ``[B, C, N]`` in the flattened potentials, and masks of the real ones."""
        longest, states = labels.shape[2], self.num_states
        parent = self._on(labels.device)[:longest]
        real = labels >= 0
        known = labels.clamp(min=0)
        both = real & (parent >= 0)
        pairs = (known[:, :, parent.clamp(min=0)] * states + known).masked_fill(~both, 0)
        nodes = torch.arange(longest, device=labels.device)
        return known + nodes * states, pairs if self.shared else pairs + nodes * states**2, real, both

    def _add(self, parts: Parts, labels: Tensor, mass: Tensor) -> Parts:
        """Add the parts of the labelings ``[B, C, N]``, weighted by ``mass`` ``[B, C]``, to ``parts``."""
        batch = len(labels)
        states, pairs, real, both = self._places(labels)
        mass = mass.to(parts["node"].dtype).unsqueeze(2)
        alike = labels.shape[1] == 1  # all terms that share a place are equal
        for name, places, counts in (("node", states, real), ("edge", pairs, both)):
            flat = parts[name].view(batch, -1)
            add_at(flat, places.view(batch, -1), (mass * counts).view(batch, -1), any_order=alike)
        return parts

    def __repr__(self) -> str:
        parent = self.parent.tolist()
        return f"Tree({self.num_states}, {parent}, shared={self.shared}, normalize={self.normalize})"


def _check_parent(parent: Sequence[int] | Tensor) -> Tensor:
    tree = as_parents(parent)
    max_sum_tree(torch.zeros(1, len(tree), 1), torch.zeros(1, 1), tree)  # raises if it is not a tree
    return tree


def _zeros_like(potentials: Potentials) -> Parts:
    return {name: tensor.new_zeros(tensor.shape) for name, tensor in potentials.tensors.items()}
