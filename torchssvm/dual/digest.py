"""One number for the target of every example: whether a dual still sees the targets that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torchssvm.batch import tree_tensors

_ODD = (-7046029254386353131, -4417276706812531889, 1609587929392839161)  # large, odd: products spread over all bits

UNKNOWN = 0
"""The digest of a target that was not seen yet; no target has it."""


def digest_targets(target: Any, lengths: Tensor | None = None, longest: int | None = None) -> Tensor:
    """A digest of every example's target, ``[B]`` int64, whatever it is padded to.

    The length of an example counts, and numbers count with their places, other than those that padding is made of: 0,
    and negative whole numbers. What lies beyond the length does not count in the first tensor, and in those of real
    numbers; others may have axes of another size, such as a graph's edges.

    Args:
        target: Tensors ``[B, ...]``, in tuples, lists or dicts.
        lengths: ``[B]`` int64; None where nothing is padded.
        longest: The largest length, if it is known already: reading it from another device waits for it.
    """
    leaves = tree_tensors(target)
    total = torch.zeros(len(leaves[0]), dtype=torch.int64, device=leaves[0].device)
    if lengths is not None:
        lengths = lengths.to(total.device)
        total += _mix(lengths * _ODD[0])
        longest = int(lengths.max()) if longest is None else longest
    for place, leaf in enumerate(leaves):
        if leaf.is_complex():
            continue
        floating = leaf.is_floating_point()
        numbers = leaf.to(torch.float64).view(torch.int64) if floating else leaf.to(torch.int64)
        counts = leaf != 0 if floating or leaf.dtype == torch.bool else leaf > 0
        if lengths is not None and longest is not None and (floating or place == 0) and leaf.ndim > 1:
            inside = torch.arange(leaf.shape[1], device=leaf.device) < lengths.unsqueeze(1)
            counts = counts & inside.view(*inside.shape, *[1] * (leaf.ndim - 2)) if leaf.shape[1] >= longest else counts
        mixed = _mix(numbers * _ODD[1] + _places(place, tuple(leaf.shape[1:]), leaf.device))
        found = torch.where(counts, mixed, 0)
        total += found.flatten(1).sum(1) if leaf.ndim > 1 else found
    return torch.where(total == UNKNOWN, 1, total)


@lru_cache(maxsize=64)
def _places(leaf: int, shape: Sequence[int], device: torch.device) -> Tensor:
    """A number for every place of a leaf, ``[1, *shape]`` int64, that does not depend on how far it is padded."""
    where = torch.full((1,) * (len(shape) + 1), leaf + 1, dtype=torch.int64, device=device)
    for axis, size in enumerate(shape, 1):
        along = torch.arange(1, size + 1, device=device)
        where = _mix(where * _ODD[0] + along.view([-1 if a == axis else 1 for a in range(len(shape) + 1)]))
    return where


def _mix(numbers: Tensor) -> Tensor:
    """Low bits must depend on high ones, as well as the other way round."""
    numbers = (numbers ^ (numbers >> 29)) * _ODD[2]
    return numbers ^ (numbers >> 32)
