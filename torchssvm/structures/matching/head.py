"""The linear head of bipartite matchings: each edge's score is linear in that edge's features."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.potentials import SINGLE
from torchssvm.core.precision import full_precision, product
from torchssvm.structures.common import Head, check_shape, check_structure, weight
from torchssvm.structures.matching.structure import EdgePotentials, Matching


class Edges(NamedTuple):
    """Features of the edges of bipartite graphs whose right sides differ in size.

    Attributes:
        features: ``[B, S, T, F]``; values beyond an example's nodes must be finite and are otherwise ignored.
        widths: ``[B]`` int64, 1 to T, the number of right nodes of each example.

    Example:
        >>> edges = Edges(features=torch.rand(2, 2, 3, 4), widths=torch.tensor([3, 1]))
        >>> LinearEdges(in_features=4)(edges).widths
        tensor([3, 1])
    """

    features: Tensor
    widths: Tensor


class LinearEdges(Head):
    """Scores of edges, ``x[s, t] . weight``, with all weights zero at the start.

    There is no bias: add a constant feature if you need one.

    Args:
        in_features: F, numbers per edge.
        structure: How outputs are decoded and what they cost; None is ``Matching()``.

    Raises:
        ValueError: ``in_features`` is less than 1.
        TypeError: ``in_features`` is not a number, or ``structure`` is not a :class:`Matching`.

    Example:
        >>> head = LinearEdges(in_features=2)
        >>> features = torch.rand(1, 2, 3, 2)  # 2 left nodes, 3 right nodes
        >>> head(features).single.shape
        torch.Size([1, 2, 3])
    """

    def __init__(self, in_features: int, *, structure: Matching | None = None) -> None:
        super().__init__()
        self.in_features = check_whole(in_features, "in_features")
        self.structure = check_structure(structure, "Matching()") or Matching()
        self.weight = weight(torch.zeros(self.in_features))

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.matching.kind import MatchingAdapter

        return MatchingAdapter(self) if type(self.structure) is Matching else None

    def forward(self, x: Tensor | Edges, lengths: Tensor | None = None) -> EdgePotentials:
        """Features ``[B, S, T, F]`` -> potentials ``[B, S, T]``; runs in the weights' dtype, autocast off.

        Args:
            x: Features of all edges, or :class:`Edges` if the number of right nodes differs between examples.
            lengths: ``[B]`` int64, 1 to S, the number of left nodes of each example; None means S for all.

        Raises:
            ValueError: A shape or a size does not fit.
        """
        features, widths = x if isinstance(x, Edges) else (x, None)
        check_shape(features, "x", "B", "S", "T", self.weight.shape[0])
        with full_precision(features.device):
            features = features.to(self.weight.dtype)
            scores = product(features, self.weight)
        return EdgePotentials(scores, lengths, widths, **self._products({SINGLE: features}))
