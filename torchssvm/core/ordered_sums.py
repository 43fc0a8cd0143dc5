"""Sums into places that several terms share, in the same order at every call on every device.

``scatter_add_`` and ``index_add_`` add by atomic operations on a CUDA device, in the order in which its threads happen
to come: terms that differ then leave other last digits each time, and a resumed run would not go on as the first one.
``index_put_(accumulate=True)`` sorts the places there instead, and adds in the order of the terms. On a CPU the former
have that order, and are quicker. Where no two terms share a place, or all that do are equal, any of them will do.
"""

from __future__ import annotations

import torch
from torch import Tensor


def adds_in_order(tensor: Tensor) -> bool:
    """Whether ``scatter_add_``, ``index_add_`` and ``put_`` add in the order of the terms, where ``tensor`` is."""
    return tensor.is_cpu


def add_at(target: Tensor, places: Tensor, values: Tensor, *, any_order: bool = False) -> Tensor:
    """``target[b, places[b, p]] += values[b, p]`` in place, in the order of p; returns ``target``.

    Args:
        target: ``[..., M]`` or ``[..., M, K]``; contiguous.
        places: ``[..., P]`` int64, with as many leading axes, at least one.
        values: ``[..., P]`` or ``[..., P, K]``.
        any_order: Whether sums are the same in any order, so that the quickest will do: terms that share a place are
            equal, or small whole numbers.
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
    """``target[index[p]] += values[p]`` in place, in the order of p; returns ``target``.

    Args:
        target: ``[N, ...]``.
        index: ``[P]`` int64.
        values: ``[P, ...]``.
    """
    if adds_in_order(target):
        return target.index_add_(0, index, values)
    return target.index_put_((index,), values, accumulate=True)
