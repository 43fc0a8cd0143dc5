"""Rows of features divided by their length, as a module below a head."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from torchssvm.core.sparse_features import SparseFeatures


class UnitRows(nn.Module):
    """Divides each row by its Euclidean length: ``[B, F]``, or :class:`~torchssvm.SparseFeatures` ``[B, P]``.

    Rows of zeros stay. Lists name a column once, as those of a scipy sparse matrix do.

    Example:
        >>> UnitRows()(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """The rows, scaled."""
        if isinstance(x, SparseFeatures):
            real = x.columns >= 0
            values = real.float() if x.values is None else x.values * real
            return SparseFeatures(x.columns, _scaled(values))
        return _scaled(x)


def _scaled(rows: Tensor) -> Tensor:
    length = rows.square().sum(-1, keepdim=True).sqrt()
    return rows / length.where(length > 0.0, 1.0)
