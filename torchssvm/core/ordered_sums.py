"""Scatter-add in a fixed order on every device.

On CUDA, ``scatter_add_`` and ``index_add_`` use atomic operations in arbitrary order, so the last digits of sums vary
and a resumed run would not give the same bits. ``index_put_(accumulate=True)`` sorts the places there and adds in the
order of the terms. On a CPU, ``scatter_add_`` and ``index_add_`` keep that order and are faster. The order does not
matter if no two terms share a place, or if all that do are equal.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
