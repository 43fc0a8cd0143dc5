"""Features that are mostly zero, as lists of those that are not."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.ordered_sums import add_at


class SparseFeatures(NamedTuple):
    """The features of a batch, each token's a list of column numbers: what ``SparseLinearChain`` takes for ``x``.

    ``LinearArcs`` takes those of arcs, ``[B, N, N+1, P]``.

    A column may come more than once in a list: its values add up.

    Attributes:
        columns: ``[B, N, P]`` int64 (or int32); the features of token t of example b that are not zero, 0 to F - 1; -1
            where a token has fewer than P, or is padding.
        values: ``[B, N, P]`` of the weights' dtype, finite, read where ``columns`` is not -1; None where all are 1.
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
            raise ValueError(f"columns hold {int(self.columns.max())}, and num_features={num_features} must be more")
        columns, real = self.columns.clamp(min=0).long(), self.columns >= 0
        values = real.to(dtype) if self.values is None else torch.where(real, self.values.to(dtype), 0.0)
        x = torch.zeros(*columns.shape[:-1], num_features, dtype=dtype, device=columns.device)
        return add_at(x, columns, values)  # a column may come twice in a list
