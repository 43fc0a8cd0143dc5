"""The features of tokens as lists of those that are not zero."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.heads.sparse_chain import as_lists
from torchssvm.sparse import SparseFeatures


class Lists(NamedTuple):
    """Features, token after token; columns rise within each token, and come once.

    Attributes:
        counts: ``[tokens]`` int64, how many each has.
        columns: ``[M]`` int32.
        values: ``[M]`` of the weights' dtype.
    """

    counts: Tensor
    columns: Tensor
    values: Tensor


def check_finite(x: Tensor | SparseFeatures, index: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError, with its place, for the first feature that is not finite; ``index`` names the examples."""
    columns, numbers = (x.columns, x.values) if isinstance(x, SparseFeatures) else (None, x)
    if numbers is None:
        return
    if columns is not None:
        numbers = torch.where(columns >= 0, numbers, 0.0)
    wrong = ~torch.isfinite(numbers.detach().to(dtype))
    if not bool(wrong.any()):
        return
    place = wrong.nonzero()[0].tolist()
    column = place[-1] if columns is None else int(columns[tuple(place)])
    token, padding = (f"token {place[1]}, ", ", padding included") if len(place) > 2 else ("", "")
    raise ValueError(
        f"x of example {int(index[place[0]])} holds numbers that are not finite in {dtype}{padding}: "
        f"{float(numbers[tuple(place)])} at {token}column {column}"
    )


def lists_of(x: Tensor) -> Lists:
    """Those of dense features ``[tokens, F]``."""
    rows, columns = x.nonzero(as_tuple=True)
    return Lists(torch.bincount(rows, minlength=len(x)), columns.to(torch.int32), x[rows, columns])


@torch.no_grad()
def lists_within(x: Any, inside: Tensor, num_features: int, dtype: torch.dtype) -> Lists:
    """Those of :class:`torchssvm.SparseFeatures` at the positions ``inside`` ``[B, N]``; a column's values add up.

    Raises:
        TypeError: ``x`` is something else.
        ValueError: A column is out of range.
    """
    lists = as_lists(x, num_features, dtype)
    real = inside.flatten()
    keep = real[lists.token]
    place = (real.cumsum(0) - 1)[lists.token[keep]]  # among the tokens that are inside
    key = place * num_features + lists.columns[keep]
    values = torch.ones(len(key), dtype=dtype) if lists.values is None else lists.values[keep]
    if not bool((key.diff() > 0).all()):
        key, order = key.sort(stable=True)
        key, first = key.unique_consecutive(return_inverse=True)
        values = torch.zeros(len(key), dtype=dtype).index_add_(0, first, values[order])
    counts = torch.bincount(key // num_features, minlength=int(real.sum()))
    return Lists(counts, (key % num_features).to(torch.int32), values)
