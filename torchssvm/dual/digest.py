"""One number for the target of every example: whether a dual still sees the targets that it was trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.batch import tree_tensors

_ODD = (-7046029254386353131, -4417276706812531889, 1609587929392839161)  # large, odd: products spread over all bits


def digest_targets(target: Any, lengths: Tensor | None = None) -> Tensor:
    """A digest of every example's target, ``[B]`` int64, whatever it is padded to.

    Numbers count with their places, other than 0, the negative whole numbers that padding is made of, and what lies
    beyond the length of an example on the first axis.

    Args:
        target: Tensors ``[B, ...]``, in tuples, lists or dicts.
        lengths: ``[B]`` int64; None where nothing is padded.
    """
    leaves = tree_tensors(target)
    total = torch.zeros(len(leaves[0]), dtype=torch.int64, device=leaves[0].device)
    longest = None if lengths is None else int(lengths.max())  # once: it waits for the device
    for place, leaf in enumerate(leaves):
        if leaf.is_complex():
            continue
        floating = leaf.is_floating_point()
        numbers = leaf.to(torch.float64).view(torch.int64) if floating else leaf.to(torch.int64)
        counts = leaf != 0 if floating or leaf.dtype == torch.bool else leaf > 0
        if lengths is not None and longest is not None and leaf.ndim > 1 and leaf.shape[1] >= longest:
            inside = torch.arange(leaf.shape[1], device=leaf.device) < lengths.to(leaf.device).unsqueeze(1)
            counts = counts & inside.view(*inside.shape, *[1] * (leaf.ndim - 2))
        where = torch.full((1,) * leaf.ndim, place + 1, dtype=torch.int64, device=leaf.device)
        for axis in range(1, leaf.ndim):
            along = torch.arange(1, leaf.shape[axis] + 1, device=leaf.device)
            shape = [-1 if a == axis else 1 for a in range(leaf.ndim)]
            where = _mix(where * _ODD[0] + along.view(shape))
        found = torch.where(counts, _mix(numbers * _ODD[1] + where), 0)
        total += found.flatten(1).sum(1) if leaf.ndim > 1 else found
    return total


def _mix(numbers: Tensor) -> Tensor:
    """Low bits must depend on high ones, as well as the other way round."""
    numbers = (numbers ^ (numbers >> 29)) * _ODD[2]
    return numbers ^ (numbers >> 32)
