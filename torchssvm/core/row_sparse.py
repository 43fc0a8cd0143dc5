"""Gradients with few non-zero rows: sparse tensors ``[F, K]``, and ``[B, F, K]`` for the examples of a batch.

They are coalesced; the axes of examples and rows are sparse, K is dense. Parameters with one axis have no K.

On CUDA, ``scatter_add_`` and ``index_add_`` use atomic operations in arbitrary order, so the last digits of sums vary
and a resumed run would not give the same bits. ``index_put_(accumulate=True)`` sorts the places there and adds in the
order of the terms. On a CPU, ``scatter_add_`` and ``index_add_`` keep that order and are faster. The order does not
matter if no two terms share a place, or if all that do are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit_fastmath
from torchssvm.core.launch import arrays, fits_numba
from torchssvm.core.operators import scalars

_NUMBERS = 1 << 22  # how many numbers `gram_of_rows` makes dense at a time


def dense(tensor: Tensor) -> Tensor:
    """The tensor in dense layout."""
    return tensor.to_dense() if tensor.is_sparse else tensor


def per_example_rows(example: Tensor, row: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """Sparse per-example gradients of a shape ``[B, F, K]`` or ``[B, F]``; values with the same example and row add up.

    ``values`` ``[M, K]`` or ``[M]`` belong to the examples and rows ``[M]`` int64.
    """
    indices = torch.stack([example, row])
    return torch.sparse_coo_tensor(indices, values, tuple(shape), check_invariants=False).coalesce()


def select_examples(gradients: Tensor, examples: Tensor) -> Tensor:
    """The gradients ``[B, ...]`` of some examples ``[R]`` int64, coalesced if sparse."""
    chosen = gradients.index_select(0, examples)
    return chosen.coalesce() if chosen.is_sparse else chosen


def combine_rows(gradients: Tensor, factors: Tensor) -> Tensor:
    """``sum_b factors_b gradients_b``, ``[F, K]``, of sparse ``[B, F, K]``."""
    (example, row), values = gradients.indices(), gradients.values()
    weights = factors.to(values.dtype)[example].view(-1, *[1] * (values.ndim - 1))
    return rows_of(row, values * weights, gradients.shape[1:]).coalesce()


def gram_of_rows(gradients: Tensor) -> Tensor:
    """``<g_a, g_b>`` of sparse ``[B, F, K]``, ``[B, B]``; a few rows of the parameter are made dense at a time."""
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
    """``sum <a, b>`` in float64; tensors of ``b`` may be sparse, then only their rows of ``a`` are read."""
    return products(a, b)[0]


def products(a: Sequence[Tensor], b: Sequence[Tensor]) -> tuple[float, float]:
    """``sum <a, b>`` and ``sum <b, b>``, as :func:`inner_product`."""
    if not a[0].is_cpu and not any(tensor.is_sparse for tensor in b):
        one, other = flat(a), flat(b)
        inner, square = scalars(one @ other, other @ other)
        return inner, square
    pairs = [_products(x, y) for x, y in zip(a, b, strict=True)]
    return sum(inner for inner, _ in pairs), sum(square for _, square in pairs)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of ``tensors`` in one float64 vector; sparse tensors give their stored numbers."""
    numbers = [t.coalesce().values() if t.is_sparse else t for t in tensors]
    return torch._C._nn.flatten_dense_tensors(numbers).detach().to(torch.float64)


def parts_of(numbers: Tensor, like: Iterable[Tensor]) -> list[Tensor]:
    """What :func:`flat` has put into one vector of dense tensors, in the shapes of ``like``."""
    shapes = [tensor.shape for tensor in like]
    return [part.view(s) for part, s in zip(numbers.split([s.numel() for s in shapes]), shapes, strict=True)]


def doubled(tensors: Sequence[Tensor], factor: float) -> list[Tensor]:
    """``factor`` times each tensor, in float64."""
    if any(tensor.is_sparse for tensor in tensors):
        return [tensor.to(torch.float64) * factor for tensor in tensors]
    return parts_of(flat(tensors) * factor, tensors)


def squared_norm(tensors: Iterable[Tensor]) -> float:
    """``sum |t|^2`` in float64."""
    tensors = list(tensors)
    if _many(tensors):
        return sum(_square(part.double()) for (part,) in pieces(tensors))
    return _square(flat(tensors))


def squared_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """``sum |a - b|^2`` of dense tensors, in float64."""
    if _many(a):
        return sum(_square(x.double() - y.double()) for x, y in pieces(a, b))
    return _square(flat(a) - flat(b))


def _square(numbers: Tensor) -> float:
    vector = numbers.reshape(-1)
    return float(vector.dot(vector))


def pieces(*lists: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Views of the same rows of dense tensors in parallel lists, a part at a time.

    A float64 copy of millions of weights takes new pages, which cost more time than the numbers.
    """
    for tensors in zip(*lists, strict=True):
        parts = [torch.atleast_1d(tensor.detach()) for tensor in tensors]
        rows = max(_PIECE * len(parts[0]) // max(parts[0].numel(), 1), 1)
        yield from zip(*(tensor.split(rows) for tensor in parts), strict=True)


_PIECE = 2**18  # numbers


def _many(tensors: Sequence[Tensor]) -> bool:
    plain = all(tensor.is_cpu and not tensor.is_sparse for tensor in tensors)
    return plain and sum(tensor.numel() for tensor in tensors) > 4 * _PIECE


def _products(x: Tensor, y: Tensor) -> tuple[float, float]:
    if y.is_sparse:
        y = y.coalesce()
        row, y = y.indices()[0], y.values()
        if fits_numba(x, row, y) and x.ndim == 2 and x.dtype == y.dtype:
            return _row_products(*arrays(x, row, y))
        x = x[row]
    inner, square = 0.0, 0.0
    for part in pieces([x], [y]) if _many([x]) else [(x, y)]:
        one, other = (t.detach().reshape(-1).to(torch.float64) for t in part)
        inner, square = inner + float(one @ other), square + float(other @ other)
    return inner, square


@njit_fastmath
def _row_products(x: Any, row: Any, y: Any) -> tuple[float, float]:
    inner, square = 0.0, 0.0
    for r in range(len(row)):
        a, b = x[row[r]], y[r]
        for k in range(len(b)):
            inner += np.float64(a[k]) * np.float64(b[k])
            square += np.float64(b[k]) * np.float64(b[k])
    return inner, square


def distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """``|a - b|``; both tensors of a pair are sparse, or both dense."""
    return squared_norm([(x - y) for x, y in zip(a, b, strict=True)]) ** 0.5


@torch.no_grad()
def add_to(target: Tensor, change: Tensor, rate: float) -> None:
    """``target += rate change`` in place; a sparse ``change`` reads and writes only its rows."""
    if change.is_sparse:
        change = change.coalesce()
        target.index_add_(0, change.indices()[0], change.values(), alpha=rate)
    else:
        target.add_(change, alpha=rate)


def adds_in_order(tensor: Tensor) -> bool:
    """Whether ``scatter_add_``, ``index_add_`` and ``put_`` add in the order of the terms on ``tensor``'s device."""
    return tensor.is_cpu


def add_at(target: Tensor, places: Tensor, values: Tensor, *, any_order: bool = False) -> Tensor:
    """``target[b, places[b, p]] += values[b, p]`` in place, in the order of p; returns ``target``.

    Shapes are ``[..., M]`` or ``[..., M, K]`` (contiguous), ``[..., P]`` int64 with at least one leading axis, and
    ``[..., P]`` or ``[..., P, K]``. The fastest method is taken in ``any_order``, where terms that share a place are
    equal or small integers.
    """
    if any_order or adds_in_order(target):
        axis = places.ndim - 1
        places = places if values.ndim == places.ndim else places.unsqueeze(-1).expand_as(values)
        return target.scatter_add_(axis, places, values)
    flat = target.view(places.shape[:-1].numel(), *target.shape[places.ndim - 1 :])
    rows = torch.arange(len(flat), device=target.device).unsqueeze(1)
    index = rows, places.flatten(0, -2)
    flat.index_put_(index, values.flatten(0, places.ndim - 2), accumulate=True)
    return target


def add_rows(target: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """``target[index[p]] += values[p]`` in place, in the order of p, for ``[N, ...]``, ``[P]`` and ``[P, ...]``."""
    if adds_in_order(target):
        return target.index_add_(0, index, values)
    return target.index_put_((index,), values, accumulate=True)
