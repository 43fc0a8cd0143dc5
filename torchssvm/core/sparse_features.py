"""Sparse features, as lists of columns and values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.ordered_sums import add_at


class SparseFeatures(NamedTuple):
    """Sparse features of a batch: a list of columns for each token, or for each arc with :class:`LinearArcs`.

    If a column occurs more than once in a list, its values add up.

    Attributes:
        columns: ``[B, N, P]`` (arcs: ``[B, N, N+1, P]``) int64 or int32: the non-zero features, 0 to F - 1; -1 is
            padding.
        values: Shaped like ``columns``, of the weights' dtype, finite and ignored in the padding; None means all 1.

    Example:
        >>> columns = torch.tensor([[[0, 7], [3, -1]]])  # two tokens: one has features 0 and 7, one has feature 3
        >>> features = SparseFeatures(columns)
        >>> SparseLinearChain(in_features=10, num_states=2)(features)["emission"].shape
        torch.Size([1, 2, 2])
    """

    columns: Tensor
    values: Tensor | None = None

    def dense(self, num_features: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same features as ``[B, N, num_features]``; for small problems.

        Raises:
            ValueError: A column is beyond ``num_features``.
        """
        check_whole(num_features, "num_features")
        if self.columns.numel() and int(self.columns.max()) >= num_features:
            raise ValueError(f"columns hold {int(self.columns.max())}, so num_features={num_features} must be larger")
        columns, real = self.columns.clamp(min=0).long(), self.columns >= 0
        values = real.to(dtype) if self.values is None else torch.where(real, self.values.to(dtype), 0.0)
        x = torch.zeros(*columns.shape[:-1], num_features, dtype=dtype, device=columns.device)
        return add_at(x, columns, values)  # a column may occur twice in a list


def padded_lists(start: Tensor, count: Tensor, columns: Tensor, values: Tensor | None = None) -> SparseFeatures:
    """Stretches of one long list side by side, padded to the longest.

    Args:
        start: int64 ``[...]``, where each list begins.
        count: Shaped like ``start``, how many entries it has; 0 is an empty list, wherever it begins.
        columns: ``[M]``, the columns of all lists.
        values: ``[M]``, their values; None means all 1.

    Returns:
        Columns int64 ``[..., P]``, P at least 1, -1 in the padding; values of the dtype given, 0 there, or None.
    """
    within = torch.arange(int(count.max()) if count.any() else 1)
    there = within < count.unsqueeze(-1)
    if not len(columns):  # nothing can be read
        zeros = None if values is None else torch.zeros(there.shape, dtype=values.dtype)
        return SparseFeatures(torch.full(there.shape, -1), zeros)
    at = torch.where(there, start.unsqueeze(-1) + within, 0)
    found = torch.where(there, columns[at].long(), -1)
    return SparseFeatures(found, None if values is None else torch.where(there, values[at], 0.0))
