"""Loops over the labels of chains on a CUDA device, one program for each chain; their twins are in ``numba.py``.

Import it only where Triton is installed. Labels are states of the chain, or below 0 in the padding: the caller has
checked that.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.jit import on_device
from torchssvm.core.launch import by_example

_BLOCK = 1024


def augment_triton(emission: Tensor, labels: Tensor, normalize: bool) -> Tensor:
    """``emission`` plus the cost of each wrong state: 1, or 1 / length; ``[B, N, K]`` contiguous."""
    batch, longest, states = emission.shape
    found = torch.empty_like(emission)
    with on_device(emission):
        _augment[(batch,)](
            emission, labels, found, longest, states, normalize=normalize, places=_places(longest), block=_BLOCK,
            enable_fp_fusion=False,
        )  # fmt: skip
    return found


def examine_triton(
    found: Tensor, labels: Tensor, emission: Tensor, transition: Tensor, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Relative score (NaN where a potential is not finite) and Hamming loss of ``found``, ``[B]`` float64 each."""
    batch, longest, states = emission.shape
    score, loss = torch.empty(2, batch, dtype=torch.float64, device=emission.device).unbind(0)
    pairs = by_example(transition)
    by_chain = pairs.stride(0) if pairs.shape[0] > 1 else 0
    by_position = pairs.stride(1) if pairs.shape[1] > 1 else 0
    with on_device(emission):
        _examine[(batch,)](
            found, labels, emission, pairs, score, loss, longest, states, pairs[0].numel(), by_chain, by_position,
            normalize=normalize, places=_places(longest), block=_BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
    return score, loss


def add_difference_triton(found: Tensor, labels: Tensor, emission: Tensor, transition: Tensor) -> tuple[Tensor, Tensor]:
    """The parts ``emission`` ``[B, N, K]`` and ``transition`` ``[B, K, K]`` plus those of ``found`` less ``labels``."""
    (batch, longest, states), size = emission.shape, transition.shape[1:].numel()
    results = torch.empty_like(emission), torch.empty_like(transition)
    with on_device(emission):
        _add_difference[(batch,)](
            found, labels, emission, transition, *results, longest, states, size,
            places=_places(longest), block=_BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
    return results


def _places(longest: int) -> int:
    return triton.next_power_of_2(longest)


@triton.jit
def _augment(
    emission, labels, result, longest, states, normalize: tl.constexpr, places: tl.constexpr, block: tl.constexpr
):
    b = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, places)
    labels += b * longest
    length = tl.sum((tl.load(labels + place, place < longest, -1) >= 0).to(tl.int32), 0)
    cost = tl.full([], 1.0, tl.float64)
    if normalize:
        cost = cost / tl.maximum(length, 1)
    emission += b * longest * states
    result += b * longest * states
    for begin in range(0, longest * states, block):
        at = begin + tl.arange(0, block)
        inside = at < longest * states
        label = tl.load(labels + at // states, inside, -1)
        value = tl.load(emission + at, inside, 0.0)
        wrong = (label >= 0) & (at % states != label)
        tl.store(result + at, tl.where(wrong, value + cost.to(value.dtype), value), inside)


@triton.jit
def _examine(
    found, labels, emission, pairs, score, loss, longest, states, numbers, by_chain, by_position,
    normalize: tl.constexpr, places: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, places)
    emission += b * longest * states
    pairs += b * by_chain
    label = tl.load(labels + b * longest + place, place < longest, -1)
    real = label >= 0
    state = tl.load(found + b * longest + place, real, 0)
    own = tl.load(emission + place * states + state, real, 0.0).to(tl.float64)
    true = tl.load(emission + place * states + label, real, 0.0).to(tl.float64)
    later = real & (place > 0)
    before = tl.load(found + b * longest + place - 1, later, 0) * states + state
    truly = tl.load(labels + b * longest + place - 1, later, 0) * states + label
    step = pairs + (place - 1) * by_position
    own += tl.load(step + before, later, 0.0).to(tl.float64)
    true += tl.load(step + truly, later, 0.0).to(tl.float64)
    wrong = tl.zeros([block], tl.int32)
    for begin in range(0, longest * states, block):
        at = begin + tl.arange(0, block)
        wrong |= (~(tl.abs(tl.load(emission + at, at < longest * states, 0.0)) < float("inf"))).to(tl.int32)
    for begin in range(0, numbers, block):
        at = begin + tl.arange(0, block)
        wrong |= (~(tl.abs(tl.load(pairs + at, at < numbers, 0.0)) < float("inf"))).to(tl.int32)
    total = tl.sum(own, 0) - tl.sum(true, 0)
    tl.store(score + b, tl.where(tl.max(wrong, 0) > 0, float("nan"), total))
    cost = tl.sum((real & (state != label)).to(tl.float64), 0)
    if normalize:
        cost = cost / tl.maximum(tl.sum(real.to(tl.int32), 0), 1)
    tl.store(loss + b, cost)


@triton.jit
def _add_difference(
    found, labels, emission, pairs, new_emission, new_pairs, longest, states, size,
    places: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, places)
    found += b * longest
    labels += b * longest
    length = tl.sum((tl.load(labels + place, place < longest, -1) >= 0).to(tl.int32), 0)
    for begin in range(0, longest * states, block):
        at = begin + tl.arange(0, block)
        inside = at < longest * states
        label = tl.load(labels + at // states, inside, -1)
        state = tl.load(found + at // states, inside, -1)
        change = (at % states == state).to(tl.int32) - (at % states == label).to(tl.int32)
        old = tl.load(emission + b * longest * states + at, inside, 0.0)
        new = old + tl.where(label >= 0, change, 0).to(old.dtype)
        tl.store(new_emission + b * longest * states + at, new, inside)
    for begin in range(0, size, block):
        at = begin + tl.arange(0, block)
        net = tl.zeros([block], tl.int32)
        for t in range(1, length):
            net += (at == tl.load(found + t - 1) * states + tl.load(found + t)).to(tl.int32)
            net -= (at == tl.load(labels + t - 1) * states + tl.load(labels + t)).to(tl.int32)
        old = tl.load(pairs + b * size + at, at < size, 0.0)
        tl.store(new_pairs + b * size + at, old + net.to(old.dtype), at < size)
