"""Digests of examples: from them a dual knows whether an example still is the one that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.batch import tree_tensors
from torchssvm.core.jit import fits_numba, njit
from torchssvm.core.on_host import on_host
from torchssvm.core.potentials import Potentials

_ODD = (-7046029254386353131, -4417276706812531889, 1609587929392839161)  # large, odd: products spread over all bits

_SIZE = 2**63 - 1  # all bits except the sign, so that -0.0 counts as 0

UNKNOWN = 0
"""Stands for a target that was not seen yet; no target has this digest."""

_FIRST_CARRIED = 1000  # the place of what is carried: behind all tensors of a target

_NONE = torch.empty(0, dtype=torch.int64)


def digest_targets(target: Any, lengths: Tensor | None = None) -> Tensor:
    """A digest of each example's target, as ``check_target`` returns it: ``[B]`` int64 on the CPU; never ``UNKNOWN``.

    It depends on the example's length, and on all numbers and their places, but not on the padding. Numbers that occur
    as padding do not count: 0 and negative integers; of a target whose negative numbers are no padding, the attribute
    ``digested`` has the tensors that tell it. ValueError if there are not as many ``lengths`` as targets.
    """
    leaves = tree_tensors(getattr(target, "digested", target))
    if lengths is not None and lengths.shape != leaves[0].shape[:1]:
        raise ValueError(f"lengths must be [{len(leaves[0])}], one for each target, got {list(lengths.shape)}")
    own = None if lengths is None else on_host(lengths)
    found = [_digest(on_host(leaf), place, own, leaf.dtype != torch.bool) for place, leaf in enumerate(leaves)]
    return sum(found[1:], found[0])


def digest_examples(target: Any, potentials: Potentials) -> Tensor:
    """A digest of all that decides which outputs an example has, ``[B]`` int64 on the CPU; never ``UNKNOWN``.

    These are its target, its length, and what the potentials carry: edges, parents, capacities. Of carried whole
    numbers -1 alone is padding, so that the node 0 counts; of others 0.
    """
    total = digest_targets(target, potentials.lengths)
    for place, name in enumerate(potentials.carried, _FIRST_CARRIED):
        if (carried := getattr(potentials, name)) is not None:
            carried = on_host(carried)
            numbers = carried if carried.is_floating_point() else carried.to(torch.int64) + 1
            total += _digest(numbers, place, None, False)
    return total


def _digest(leaf: Tensor, place: int, lengths: Tensor | None, signed: bool) -> Tensor:
    floating = leaf.is_floating_point()
    numbers = leaf.to(torch.float64).view(torch.int64) if floating else leaf.to(torch.int64)
    where = _places(place, leaf.shape[1:], leaf.device)
    return _sum(numbers.contiguous(), where, lengths, signed and not floating)


def _sum(numbers: Tensor, where: Tensor, lengths: Tensor | None, signed: bool) -> Tensor:
    """The sum of each example's numbers ``[B, ...]`` int64, mixed with their places ``where``, and of its length:
    ``[B]``.

    Numbers may be the bits of floating-point ones; ``signed`` says whether those below 0 are padding.
    """
    if fits_numba(numbers):
        total = torch.empty(len(numbers), dtype=torch.int64)
        flat = numbers.view(len(numbers), -1)
        sizes = _NONE if lengths is None else lengths
        _sum_each(flat.numpy(), where.view(-1).numpy(), sizes.numpy(), signed, total.numpy())
        return total
    counts = numbers > 0 if signed else numbers & _SIZE != 0
    found = torch.where(counts, _mix(numbers * _ODD[1] + where), 0)
    total = found.flatten(1).sum(1) if found.ndim > 1 else found
    if lengths is not None:
        total = total + _mix(lengths * _ODD[0])
    return torch.where(total == UNKNOWN, 1, total)


@njit
def _sum_each(numbers: Any, where: Any, lengths: Any, signed: bool, total: Any) -> None:
    for b in range(numbers.shape[0]):
        found = 0
        if len(lengths):
            found = lengths[b] * _ODD[0]
            found = (found ^ (found >> 29)) * _ODD[2]
            found = found ^ (found >> 32)
        for m in range(numbers.shape[1]):
            number = numbers[b, m]
            if (number > 0) if signed else (number & _SIZE != 0):
                mixed = number * _ODD[1] + where[m]
                mixed = (mixed ^ (mixed >> 29)) * _ODD[2]
                found += mixed ^ (mixed >> 32)
        total[b] = found if found != UNKNOWN else 1


@lru_cache(maxsize=64)
def _places(leaf: int, shape: Sequence[int], device: torch.device) -> Tensor:
    """A number for each place in a tensor, ``[1, *shape]`` int64, which does not depend on the padded size."""
    where = torch.full((1,) * (len(shape) + 1), leaf + 1, dtype=torch.int64, device=device)
    for axis, size in enumerate(shape, 1):
        along = torch.arange(1, size + 1, device=device)
        where = _mix(where * _ODD[0] + along.view([-1 if a == axis else 1 for a in range(len(shape) + 1)]))
    return where


def _mix(numbers: Tensor) -> Tensor:
    """Make low bits depend on high bits; in products only high bits depend on low ones."""
    numbers = (numbers ^ (numbers >> 29)) * _ODD[2]
    return numbers ^ (numbers >> 32)
