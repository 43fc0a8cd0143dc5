"""The linear head of multilabel problems with sparse features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_flags
from torchssvm.core.operators import full_precision, plain, transformed
from torchssvm.core.potentials import Potentials
from torchssvm.core.sparse_features import SparseFeatures, as_lists, padded_product
from torchssvm.structures.chain.sparse_head import SparseEmission
from torchssvm.structures.multilabel.head import LinearMultilabel, check_no_lengths
from torchssvm.structures.multilabel.structure import Multilabel


class SparseLinearMultilabel(LinearMultilabel):
    """:class:`LinearMultilabel` for sparse features: ``unary = sum_p values[p] U[columns[p]] + b``.

    The weights have the names and shapes of ``LinearMultilabel(in_features, num_labels)``, but ``unary`` is transposed:
    ``[F, K]`` as in ``nn.EmbeddingBag``. Its gradient is a sparse tensor, so a step touches only the batch's columns.

    Args:
        in_features: F, the number of columns.
        num_labels, bias, pairwise, structure: As in :class:`LinearMultilabel`.
        sparse_gradient: Whether ``unary`` gets a sparse gradient; most optimizers except BCFW need False.

    Raises:
        ValueError: As in :class:`LinearMultilabel`.

    Example:
        >>> head = SparseLinearMultilabel(in_features=1000, num_labels=3)
        >>> head(SparseFeatures(torch.tensor([[5, 17], [999, -1]])))["unary"].shape
        torch.Size([2, 3])
    """

    _version = 1  # see LinearHead

    def __init__(
        self,
        in_features: int,
        num_labels: int,
        *,
        bias: bool = True,
        pairwise: bool = True,
        structure: Multilabel | None = None,
        sparse_gradient: bool = True,
    ) -> None:
        super().__init__(in_features, num_labels, bias=bias, pairwise=pairwise, structure=structure)
        check_flags(sparse_gradient=sparse_gradient)
        self.sparse_gradient = sparse_gradient

    @staticmethod
    def by_feature(weight: Any) -> Any:
        """``unary`` unchanged: it is stored as ``[F, K]``, one row for each feature."""
        return weight

    def compiled_form(self) -> Any:
        """That of the dense head."""
        return super().compiled_form()

    def forward(self, x: SparseFeatures, lengths: None = None) -> Potentials:  # type: ignore[override]
        """Features -> ``unary`` ``[B, K]`` and ``pairwise`` ``[B, P]``; in the weights' dtype, autocast off.

        Args:
            x: The features of all examples, ``columns`` and ``values`` ``[B, L]``; -1 in ``columns`` is padding.
            lengths: None.

        Raises:
            TypeError: ``x`` is not :class:`~torchssvm.SparseFeatures`.
            ValueError: A shape or a column does not fit, or the batch has lengths.
        """
        check_no_lengths(lengths)
        if isinstance(x, SparseFeatures) and isinstance(x.columns, Tensor):
            if x.columns.ndim != 2:
                raise ValueError(f"x.columns must be [B, L], lists of columns, got {list(x.columns.shape)}")
            # The lists are by token: an example has one token here.
            values = x.values.unsqueeze(1) if isinstance(x.values, Tensor) else x.values
            x = SparseFeatures(x.columns.unsqueeze(1), values)
        if plain():
            scores = padded_product(x, self.unary).squeeze(1)
            scores = scores if self.bias is None else scores + self.bias
            pairs = {} if self.pairwise is None else {"pairwise": self.pairwise.expand(scores.shape[0], -1)}
            return Potentials({"unary": scores, **pairs})
        lists = as_lists(x, self.in_features, self.unary.dtype)
        with full_precision(self.unary.device):
            if transformed():
                scores = lists.emission(self.unary).squeeze(1)
                scores = scores if self.bias is None else scores + self.bias
            else:
                last = torch.zeros(len(lists.starts), dtype=torch.int64, device=self.unary.device)
                scores = SparseEmission.apply(
                    lists.values, self.unary, self.bias, None, None, lists, last, self.sparse_gradient
                ).squeeze(1)
        return self._potentials(
            scores,
            per_example=lambda v: lists.per_example(v.unsqueeze(1), self.in_features),
            squared=lambda: lists.token_products(self.unary.dtype).squeeze(2),
            trained=lists.values is not None and lists.values.requires_grad,
        )
