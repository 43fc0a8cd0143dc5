"""The linear head of trees: node scores are linear in the features, edge scores are the weights themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_flags, check_whole
from torchssvm.core.potentials import Potentials
from torchssvm.core.precision import full_precision, product
from torchssvm.structures.common import LinearHead, check_shape, fitting, read_span, weight
from torchssvm.structures.tree.structure import Tree


class LinearTree(LinearHead):
    """Potentials of a tree, ``node[v] = W x[v] + bias``, ``edge = E`` or ``E[v]``; all weights are zero at the start.

    The parameter ``node`` is W, ``[K, F]`` as in ``nn.Linear``.

    Args:
        in_features: F, numbers per node.
        num_states: K, the number of states.
        parent: The parent of each node, -1 for a root, as in :class:`~torchssvm.Tree`.
        shared: Whether one matrix ``[K, K]`` (state of the parent, state of the child) serves all edges; otherwise
            each node has a matrix with its parent, ``[N, K, K]``, which stays zero at roots.
        structure: How outputs are decoded and what they cost; None is ``Tree(num_states, parent, shared=shared)``,
            with the Hamming loss divided by the number of nodes.

    Raises:
        ValueError: ``parent`` does not describe trees, or ``structure`` has a different tree, number of states or
            ``shared``.

    Example:
        >>> head = LinearTree(in_features=4, num_states=3, parent=[-1, 0, 0, 1, 1])
        >>> solve(head, chains, lam=0.1, tolerance=Relative(0.1)).exact
        True
    """

    def __init__(
        self,
        in_features: int,
        num_states: int,
        parent: Sequence[int] | Tensor,
        *,
        bias: bool = True,
        shared: bool = True,
        structure: Tree | None = None,
    ) -> None:
        super().__init__()
        check_flags(bias=bias, shared=shared)
        in_features, num_states = check_whole(in_features, "in_features", 0), check_whole(num_states, "num_states")
        tree = Tree(num_states, parent, shared=shared)
        settings: dict[str, Any] = {"num_states": num_states, "parent": tree.parent, "shared": shared}
        self.structure = fitting(structure, lambda: tree, "Tree(num_states, parent)", **settings)
        self.in_features = in_features
        self.node = weight(torch.zeros(num_states, in_features))
        pairs = (num_states, num_states) if shared else (tree.num_nodes, num_states, num_states)
        self.edge = weight(torch.zeros(pairs))
        self.bias = weight(torch.zeros(num_states)) if bias else None

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.tree.kind import TreeAdapter

        return TreeAdapter(self) if type(self.structure) is Tree else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Potentials:
        """Features ``[B, N, F]`` -> potentials; runs in the weights' dtype, autocast off.

        Args:
            x: Features; values beyond a length must be finite and are otherwise ignored.
            lengths: ``[B]`` int64, 1 to N: an example of length T has the first T nodes; None means N for all.

        Raises:
            ValueError: A shape or a length does not fit.
        """
        check_shape(x, "x", "B", "N", self.in_features)
        batch, longest, _ = x.shape
        lengths, _ = read_span(lengths, batch, longest, x.device)
        with full_precision(x.device):
            x = x.to(self.node.dtype)
            node = product(x, self.node)
            if self.bias is not None:
                node = node + self.bias
            edge = self.edge if self.structure.shared else self.edge[:longest]
            edge = edge.expand(batch, *edge.shape)

        tensors, ragged = {"node": node, "edge": edge}, {"node": 0} if self.structure.shared else {"node": 0, "edge": 0}
        return Potentials(tensors, lengths, ragged=ragged, **self._with_pairs(x, "node", "edge"))
