"""Gradients of which few rows are not zero: sparse tensors ``[F, K]``, and ``[B, F, K]`` of the examples of a batch.

They are coalesced; the axes before the last are sparse, and the rows dense.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_NUMBERS = 1 << 22  # that are dense at a time


def dense(tensor: Tensor) -> Tensor:
    """The tensor with all its zeros."""
    return tensor.to_dense() if tensor.is_sparse else tensor


def combine_rows(gradients: Tensor, factors: Tensor) -> Tensor:
    """``sum_b factors_b gradients_b``, ``[F, K]``.

    Args:
        gradients: Sparse ``[B, F, K]``.
        factors: ``[B]``.
    """
    (example, row), values = gradients.indices(), gradients.values()
    weights = factors.to(values.dtype)[example].view(-1, *[1] * (values.ndim - 1))
    return rows_of(row, values * weights, gradients.shape[1:]).coalesce()


def gram_of_rows(gradients: Tensor) -> Tensor:
    """``<g_a, g_b>`` of the examples of a batch, ``[B, B]``; columns are made dense a few at a time.

    Args:
        gradients: Sparse ``[B, F, K]``.
    """
    gradients = gradients.coalesce()
    (example, row), values = gradients.indices(), gradients.values()
    size, width = gradients.shape[0], values[:1].numel() or 1
    known, local = row.unique(return_inverse=True)
    total = values.new_zeros(size, size)
    step = max(1, _NUMBERS // (size * width))
    for begin in range(0, len(known), step):
        chosen = (local >= begin) & (local < begin + step)
        some = values.new_zeros(size, min(step, len(known) - begin), *values.shape[1:])
        some[example[chosen], local[chosen] - begin] = values[chosen]
        total += some.flatten(1) @ some.flatten(1).t()
    return total


def rows_of(row: Tensor, values: Tensor, shape: Sequence[int], *, coalesced: bool = False) -> Tensor:
    """The sparse tensor that has ``values`` at ``row`` ``[M]``."""
    return torch.sparse_coo_tensor(
        row.unsqueeze(0), values, tuple(shape), is_coalesced=coalesced or None, check_invariants=False
    )


def inner_product(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """``sum <a, b>`` in float64; tensors of ``b`` may be sparse, and of ``a`` only their rows are read then."""
    total = 0.0
    for x, y in zip(a, b, strict=True):
        if y.is_sparse:
            y = y.coalesce()
            x, y = x[y.indices()[0]], y.values()
        total += float(x.reshape(-1).to(torch.float64) @ y.reshape(-1).to(torch.float64))
    return total


def squared_length(tensors: Sequence[Tensor]) -> float:
    """``sum |t|^2`` in float64."""
    numbers = [t.coalesce().values() if t.is_sparse else t for t in tensors]
    return inner_product(numbers, numbers)


def distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """``|a - b|``, where each pair is sparse or dense together."""
    return squared_length([(x - y) for x, y in zip(a, b, strict=True)]) ** 0.5


@torch.no_grad()
def add_to(held: Tensor, change: Tensor, rate: float) -> None:
    """``held += rate change``; of a sparse change only its rows are read and written."""
    if change.is_sparse:
        change = change.coalesce()
        held.index_add_(0, change.indices()[0], change.values(), alpha=rate)
    else:
        held.add_(change, alpha=rate)
