"""Sum-product on a CUDA device: one Triton program makes the marginals of one chain.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

_BYTES = 512  # most bytes of a row of transitions: the marginals of all of them stay in registers


def fits(scores: Tensor) -> bool:
    """Whether a program can hold the marginals of transitions between so many states, the last dimension."""
    return scores.shape[-1] * scores.element_size() <= _BYTES


def sum_product_triton(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`torchssvm.structures.chain.sum_product.sum_product`, for tensors of one dtype that fit."""
    batch, longest, states = emission.shape
    emission = emission.contiguous()
    table = transition if transition.stride(-1) == 1 and transition.stride(-2) == states else transition.contiguous()
    by_chain = table.stride(0) if table.ndim > 2 else 0
    by_position = table.stride(1) if table.ndim > 3 else 0
    moves = table.ndim > 3
    marginals = torch.zeros_like(emission)
    pairs = (
        emission.new_zeros(batch, longest - 1, states, states) if moves else emission.new_empty(batch, states, states)
    )
    log_partition = emission.new_empty(batch, dtype=torch.float64)
    if not batch:
        return marginals, pairs, log_partition
    if lengths is None:
        lengths = torch.full((batch,), longest, device=emission.device)
    width = max(triton.next_power_of_2(states), 2)
    with on_device(emission):
        _sum_product[(batch,)](
            emission, table, lengths.contiguous(), torch.empty_like(emission), marginals, pairs, log_partition,
            longest, states, by_chain, by_position,
            width=width, moves=moves, num_warps=max(1, width // 8), enable_fp_fusion=False,
        )  # fmt: skip
    return marginals, pairs, log_partition


@triton.jit
def _highest(scores):
    """The maximum along the first axis; 0 where all are ``-inf``, as for a state without a predecessor."""
    highest = tl.max(scores, 0)
    return tl.where(highest == -float("inf"), 0.0, highest)


@triton.jit(do_not_specialize=["longest", "by_chain", "by_position"])
def _sum_product(
    emission, table, lengths, prefixes, marginals, pairs, log_partition, longest, states, by_chain, by_position,
    width: tl.constexpr, moves: tl.constexpr,
):  # fmt: skip
    """``prefixes`` ``[B, N, K]``: logarithms of the mass of prefixes that end in each state, less their maximum."""
    b = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths + b), 1), longest)  # keep memory accesses in bounds
    state = tl.arange(0, width)
    inside = state < states
    square = state[:, None] * states + state[None, :]
    both = inside[:, None] & inside[None, :]
    emission += b * longest * states
    prefixes += b * longest * states
    marginals += b * longest * states
    table += b * by_chain
    pairs += b * (longest - 1 if moves else 1) * states * states
    never = -float("inf")
    prefix = tl.load(emission + state, inside, never)
    highest = _highest(prefix)
    prefix -= highest
    shift = highest.to(tl.float64)
    # Prefixes are read behind the barrier below, all other results never.
    tl.store(prefixes + state, prefix, inside)
    for t in range(1, length):
        joint = prefix[:, None] + tl.load(table + (t - 1) * by_position + square, both, never)
        finite = _highest(joint)
        total = tl.sum(tl.exp(joint - finite[None, :]), 0)
        prefix = tl.where(inside, finite + tl.log(total) + tl.load(emission + t * states + state, inside), never)
        highest = _highest(prefix)
        prefix -= highest
        shift += highest.to(tl.float64)
        tl.store(prefixes + t * states + state, prefix, inside)
    mass = tl.exp(prefix.to(tl.float64))
    whole = tl.sum(mass, 0)
    tl.store(log_partition + b, shift + tl.log(whole))
    following = (mass / whole).to(prefix.dtype)
    tl.store(marginals + (length - 1) * states + state, following, inside)
    tl.debug_barrier()  # threads read the prefixes that other threads wrote
    added = tl.zeros([width, width], prefix.dtype)
    for back in range(2, length + 1):
        t = length - back
        joint = tl.load(table + t * by_position + square, both, never)
        joint += tl.load(prefixes + t * states + state, inside, never)[:, None]
        joint = tl.exp(joint - _highest(joint)[None, :])
        # P(y_t | y_{t+1}) P(y_{t+1}); a state that no other may precede has probability 0
        joint = tl.where((following == 0.0)[None, :], 0.0, joint * (following / tl.sum(joint, 0))[None, :])
        if moves:
            tl.store(pairs + tl.cast(t, tl.int64) * states * states + square, joint, both)
        else:
            added += joint
        following = tl.sum(joint, 1)
        tl.store(marginals + t * states + state, following, inside)
    if not moves:
        tl.store(pairs + square, added, both)
