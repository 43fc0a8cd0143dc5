"""The linear head of rankings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.potentials import Potentials
from torchssvm.core.precision import full_precision, product
from torchssvm.structures.common import Head, check_range, check_shape, check_structure, weight
from torchssvm.structures.ranking.measure import NDCG, PairSwaps, PrecisionAt
from torchssvm.structures.ranking.structure import Ranking


class LinearRanking(Head):
    """Scores of documents, ``x . weight``, with all weights zero at the start.

    There is no bias: it would not change the order.

    Args:
        in_features: F, numbers per document.
        structure: How rankings are decoded and what they cost; None is ``Ranking()``.

    Raises:
        ValueError: ``in_features`` is less than 1.
        TypeError: ``in_features`` is not a number, or ``structure`` is not a :class:`Ranking`.

    Example:
        >>> head = LinearRanking(in_features=2)
        >>> documents = torch.rand(3, 5, 2)  # 3 queries of up to 5 documents
        >>> head(documents, lengths=torch.tensor([5, 2, 4])).single.shape
        torch.Size([3, 5])
    """

    def __init__(self, in_features: int, *, structure: Ranking | None = None) -> None:
        super().__init__()
        self.in_features = check_whole(in_features, "in_features")
        self.structure = check_structure(structure, "Ranking()", "measure") or Ranking()
        self.weight = weight(torch.zeros(self.in_features))

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None for user-defined measures."""
        from torchssvm.structures.ranking.kind import RankingAdapter

        measured = type(self.structure.measure) in (PairSwaps, NDCG, PrecisionAt)
        return RankingAdapter(self) if measured and type(self.structure) is Ranking else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Potentials:
        """Features ``[B, N, F]`` -> potentials ``[B, N]``; runs in the weights' dtype, autocast off.

        Args:
            x: Features of the documents; those in the padding must be finite and are otherwise ignored.
            lengths: ``[B]`` int64, 1 to N, the number of documents of each query; None means N for all.

        Raises:
            ValueError: A shape or a length does not fit.
        """
        check_shape(x, "x", "B", "N", len(self.weight))
        if lengths is not None:
            check_range(lengths, *x.shape[:2])
        with full_precision(x.device):
            x = x.to(self.weight.dtype)
            scores = product(x, self.weight)
        ragged = None if lengths is None else {"scores": 0}
        return Potentials({"scores": scores}, lengths, ragged=ragged, **self._products({"scores": x}))
