"""Loops over the labels of chains on a CUDA device, many programs for a large table; their twins are in ``oracle.py``.

Import it only where Triton is installed. Labels are states of the chain, or below 0 in the padding: the caller has
checked that. No program reads what one of the same launch writes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.launch import by_example
from torchssvm.core.triton_support import on_device

_BLOCK = 1024  # numbers of a table that a program takes
_PLACES = 256  # positions that it looks at together
_SMALL = 16 * _BLOCK  # numbers of a chain that its only program looks through itself


def augment_triton(emission: Tensor, labels: Tensor, normalize: bool) -> Tensor:
    """``emission`` plus the cost of each wrong state: 1, or 1 / length; ``[B, N, K]`` contiguous."""
    batch, longest, states = emission.shape
    found = torch.empty_like(emission)
    pieces = triton.cdiv(longest * states, _BLOCK)
    with on_device(emission):
        _augment[(batch * pieces,)](
            emission, labels, found, pieces, longest, states, normalize=normalize, places=_PLACES, block=_BLOCK,
            enable_fp_fusion=False,
        )  # fmt: skip
    return found


def examine_triton(
    found: Tensor, labels: Tensor, emission: Tensor, transition: Tensor, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Relative score (NaN where a potential is not finite) and Hamming loss of ``found``, ``[B]`` float64 each."""
    batch, longest, states = emission.shape
    score = torch.empty(batch, dtype=torch.float64, device=emission.device)
    loss = torch.empty_like(score)
    pairs = by_example(transition)
    by_chain = pairs.stride(0) if pairs.shape[0] > 1 else 0
    by_position = pairs.stride(1) if pairs.shape[1] > 1 else 0
    sizes = [table.shape[1:].numel() for table in (emission, pairs)]
    own = [size if size <= _SMALL else 0 for size in sizes]
    with on_device(emission):
        _examine[(batch,)](
            found, labels, emission, pairs, score, loss, longest, states, *own, by_chain, by_position,
            normalize=normalize, places=_PLACES, block=_BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
        for table, size in zip((emission, pairs), sizes, strict=True):
            if size > _SMALL:
                rows, pieces = len(table), triton.cdiv(size, _BLOCK)
                chains = batch if rows == 1 else 1
                _mark[(rows * pieces,)](table, score, pieces, size, chains, block=_BLOCK, enable_fp_fusion=False)
    return score, loss


def add_difference_triton(found: Tensor, labels: Tensor, emission: Tensor, transition: Tensor) -> tuple[Tensor, Tensor]:
    """The parts ``emission`` ``[B, N, K]`` and ``transition`` ``[B, K, K]`` plus those of ``found`` less ``labels``."""
    (batch, longest, states), size = emission.shape, transition.shape[1:].numel()
    results = torch.empty_like(emission), torch.empty_like(transition)
    pieces = triton.cdiv(max(longest * states, size), _BLOCK)
    with on_device(emission):
        _add_difference[(batch * pieces,)](
            found, labels, emission, transition, *results, pieces, longest, states, size,
            places=_PLACES, block=_BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
    return results


@triton.jit(do_not_specialize=["pieces", "longest"])
def _augment(
    emission, labels, result, pieces, longest, states,
    normalize: tl.constexpr, places: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // pieces).to(tl.int64)
    at = tl.program_id(0) % pieces * block + tl.arange(0, block)
    labels += b * longest
    cost = tl.full([], 1.0, tl.float64)
    if normalize:
        real = tl.zeros([places], tl.int32)
        for begin in range(0, longest, places):
            place = begin + tl.arange(0, places)
            real += (tl.load(labels + place, place < longest, -1) >= 0).to(tl.int32)
        cost = cost / tl.maximum(tl.sum(real, 0), 1)
    inside = at < longest * states
    label = tl.load(labels + at // states, inside, -1)
    value = tl.load(emission + b * longest * states + at, inside, 0.0)
    wrong = (label >= 0) & (at % states != label)
    # No program reads a result.
    tl.store(result + b * longest * states + at, tl.where(wrong, value + cost.to(value.dtype), value), inside)


@triton.jit(do_not_specialize=["longest", "emissions", "moves", "by_chain", "by_position"])
def _examine(
    found, labels, emission, pairs, score, loss, longest, states, emissions, moves, by_chain, by_position,
    normalize: tl.constexpr, places: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """``emissions`` and ``moves`` are how many numbers of the tables are looked at: 0 where :func:`_mark` does it."""
    b = tl.program_id(0).to(tl.int64)
    emission += b * longest * states
    pairs += b * by_chain
    found += b * longest
    labels += b * longest
    own, true = tl.zeros([places], tl.float64), tl.zeros([places], tl.float64)
    tokens, wrong = tl.zeros([places], tl.int32), tl.zeros([places], tl.int32)
    for begin in range(0, longest, places):
        place = begin + tl.arange(0, places)
        label = tl.load(labels + place, place < longest, -1)
        real = label >= 0
        state = tl.load(found + place, real, 0)
        own += tl.load(emission + place * states + state, real, 0.0).to(tl.float64)
        true += tl.load(emission + place * states + label, real, 0.0).to(tl.float64)
        later = real & (place > 0)
        before = tl.load(found + place - 1, later, 0) * states + state
        truly = tl.load(labels + place - 1, later, 0) * states + label
        step = pairs + (place - 1).to(tl.int64) * by_position
        own += tl.load(step + before, later, 0.0).to(tl.float64)
        true += tl.load(step + truly, later, 0.0).to(tl.float64)
        tokens += real.to(tl.int32)
        wrong += (real & (state != label)).to(tl.int32)
    total = tl.sum(own, 0) - tl.sum(true, 0)
    bad = _not_finite(emission, emissions, block) + _not_finite(pairs, moves, block)
    # No program of this launch reads a score or a loss.
    tl.store(score + b, tl.where(tl.sum(bad, 0) > 0, float("nan"), total))
    cost = tl.sum(wrong, 0).to(tl.float64)
    if normalize:
        cost = cost / tl.maximum(tl.sum(tokens, 0), 1)
    tl.store(loss + b, cost)


@triton.jit
def _not_finite(table, size, block: tl.constexpr):
    found = tl.zeros([block], tl.int32)
    for begin in range(0, size, block):
        at = begin + tl.arange(0, block)
        found += (~(tl.abs(tl.load(table + at, at < size, 0.0)) < float("inf"))).to(tl.int32)
    return found


@triton.jit(do_not_specialize=["pieces", "size", "chains"])
def _mark(table, score, pieces, size, chains, block: tl.constexpr):
    """The scores of all chains that share a row of the table become NaN, if the row has a number that is not finite."""
    row = (tl.program_id(0) // pieces).to(tl.int64)
    at = (tl.program_id(0) % pieces).to(tl.int64) * block + tl.arange(0, block)
    finite = tl.abs(tl.load(table + row * size + at, at < size, 0.0)) < float("inf")
    if tl.sum((~finite).to(tl.int32), 0) > 0:
        for chain in range(0, chains):
            tl.store(score + row + chain, float("nan"))  # other programs of the row may store the same


@triton.jit(do_not_specialize=["pieces", "longest"])
def _add_difference(
    found, labels, emission, pairs, new_emission, new_pairs, pieces, longest, states, size,
    places: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    b, begin = (tl.program_id(0) // pieces).to(tl.int64), tl.program_id(0) % pieces * block
    at = begin + tl.arange(0, block)
    found += b * longest
    labels += b * longest
    inside = at < longest * states
    label = tl.load(labels + at // states, inside, -1)
    state = tl.load(found + at // states, inside, -1)
    change = (at % states == state).to(tl.int32) - (at % states == label).to(tl.int32)
    old = tl.load(emission + b * longest * states + at, inside, 0.0)
    new = old + tl.where(label >= 0, change, 0).to(old.dtype)
    # No program reads a result, here and below.
    tl.store(new_emission + b * longest * states + at, new, inside)
    net = tl.zeros([block], tl.int32)
    for first in range(1, longest, places):
        place = first + tl.arange(0, places)
        true = tl.load(labels + place, place < longest, -1)
        real = true >= 0
        one = tl.load(found + place - 1, real, 0) * states + tl.load(found + place, real, 0)
        other = tl.load(labels + place - 1, real, 0) * states + true
        here = real & (((one >= begin) & (one < begin + block)) | ((other >= begin) & (other < begin + block)))
        if tl.sum(here.to(tl.int32), 0) > 0:  # few of the many pieces of a large table have any of these pairs
            for t in range(first, first + tl.sum(real.to(tl.int32), 0)):
                net += (at == tl.load(found + t - 1) * states + tl.load(found + t)).to(tl.int32)
                net -= (at == tl.load(labels + t - 1) * states + tl.load(labels + t)).to(tl.int32)
    old = tl.load(pairs + b * size + at, at < size, 0.0)
    tl.store(new_pairs + b * size + at, old + net.to(old.dtype), at < size)
