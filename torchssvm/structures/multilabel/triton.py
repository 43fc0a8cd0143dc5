"""Messages between labels on a CUDA device: one Triton program decides, passes messages and decodes for one example.

Pairs with the same remainder of ``i + j`` modulo K have no label in common, so a round is K steps, in each of which
every label meets one other. Both ends of a pair compute its update, in registers: a partner's belief comes by a
shuffle, and up to 128 labels there is one warp. Weights and messages are kept by remainder and label, where
neighbouring threads read neighbouring numbers.

Branch and bound is a search with a stack for each example: it stays on the CPU.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

LARGEST = 1024
"""Most labels that one program holds in its registers."""


def label_sets_triton(unary: Tensor, weights: Tensor, max_rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    """As ``best_label_sets`` without branching, for at most ``LARGEST`` labels; float64.

    ``weights`` ``[B or 1, K, K]`` are symmetric with a zero diagonal.
    """
    batch, size = unary.shape
    labels = unary.new_empty(batch, size, dtype=torch.int64)
    value, bound = unary.new_empty(batch), unary.new_empty(batch)
    if batch:
        label = torch.arange(size, device=unary.device)
        partner = (label.unsqueeze(1) - label) % size  # [remainder, label]
        met = weights[:, label, partner].contiguous()
        split = unary.new_empty(batch, size, size)
        width = max(32, triton.next_power_of_2(size))
        with on_device(unary):
            _decode[(batch,)](
                unary.contiguous(), met, split, labels, value, bound, size, size * size * (len(weights) > 1),
                max_rounds, width=width, num_warps=max(1, width // 128), enable_fp_fusion=False,
            )  # fmt: skip
    return labels, value, bound


@triton.jit(do_not_specialize=["by_example", "max_rounds"])
def _decode(
    unary, met, split, labels, value, bound, size, by_example, max_rounds, width: tl.constexpr
):  # fmt: skip
    """``met[r, a]`` is the weight of label a and its partner ``(r - a) mod K``; ``split[r, a]`` that pair's message."""
    b = tl.program_id(0).to(tl.int64)
    met += b * by_example
    split += b * size * size
    labels += b * size
    lane = tl.arange(0, width)
    known = lane < size
    alone = tl.load(unary + b * size + lane, known, 0.0)
    state, single = _screen(met, alone, lane, known, size)
    free = known & (state < 0)
    belief, scale = single, tl.abs(single)
    for r in range(0, size):
        w, j, pair = _pair(met, r, lane, free, size)
        first = lane < j
        scale += tl.where(first, tl.abs(w), 0.0)
        share = w / 2
        tl.store(split + r * size + lane, share, known)
        belief += tl.where(first | (w <= 0.0), share, w - share)
    tl.debug_barrier()  # a thread may read what another one wrote
    tiny = 2.220446049250313e-16 * size * tl.sum(tl.where(free, scale, 0.0), 0)
    best, lowest = tl.full([], -float("inf"), tl.float64), tl.full([], float("inf"), tl.float64)
    chosen = lane * 0
    finite = tl.abs(tiny) < float("inf")
    running = (tl.sum(free.to(tl.int32), 0) > 0) & finite
    done, check = 0, 1
    while running:
        moved = tl.zeros([width], tl.float64)
        for r in range(0, size):
            w, j, pair = _pair(met, r, lane, free, size)
            share, other, first = tl.load(split + r * size + lane, known, 0.0), tl.gather(belief, j, 0), lane < j
            one, two = tl.where(first, belief, other), tl.where(first, other, belief)
            sign = tl.where(w > 0.0, 1.0, -1.0)
            wanted = share + 0.5 * (sign * two - one)
            change = tl.minimum(tl.maximum(wanted, tl.minimum(w, 0.0)), tl.maximum(w, 0.0)) - share
            change = tl.where(pair, change, 0.0)
            # An entry of `split` belongs to one thread: there are no fewer lanes than threads.
            tl.store(split + r * size + lane, share + change, known)
            belief += tl.where(first, change, -sign * change)
            moved += tl.where(first, tl.abs(change), 0.0)
        tl.debug_barrier()
        done += 1
        settled = tl.sum(moved, 0) <= tiny
        running = done < max_rounds
        if (done >= check) | (done == max_rounds) | settled:
            check = done + 1 + done // 4
            above = tl.where(free, tl.maximum(belief, 0.0), 0.0)
            for r in range(0, size):
                w, j, pair = _pair(met, r, lane, free, size)
                share = tl.load(split + r * size + lane, known, 0.0)
                above -= tl.where((w < 0.0) & (lane < j), share, 0.0)
            lowest = tl.minimum(lowest, tl.sum(above, 0))
            now, reached = _climb(met, single, (free & (belief > 0.0)).to(tl.int32), lane, free, size, tiny)
            chosen = tl.where(reached > best, now, chosen)
            best = tl.maximum(best, reached)
            running = running & ~settled & (lowest - best > tiny)
    on = tl.where(free, chosen, state)
    tl.store(labels + lane, on.to(tl.int64), known)
    tl.debug_barrier()  # threads read what other threads wrote
    total = tl.zeros([], tl.float64)
    for k in range(0, size):  # in the order of the labels, as on the CPU
        if tl.load(labels + k) == 1:
            total += tl.load(unary + b * size + k)
            for j in range(0, k):
                if tl.load(labels + j) == 1:
                    total += tl.load(met + ((k + j) % size) * size + k)
    bad = tl.sum((known & (on != 1) & ~(alone < float("inf"))).to(tl.int32), 0) > 0
    total = tl.where(bad, float("nan"), total)
    gap = tl.where(best == -float("inf"), 0.0, lowest - best)  # nothing was left open
    tl.store(value + b, total)
    tl.store(bound + b, tl.where(finite, tl.where(gap <= tiny, total, total + gap), float("nan")))


@triton.jit
def _pair(met, r, lane, free, size):
    """Each label's pair of remainder r: its weight, 0 unless both labels are undecided; the other label; if it is."""
    j = r - lane
    j = tl.maximum(tl.where(j < 0, j + size, j), 0)
    w = tl.load(met + r * size + lane, lane < size, 0.0)
    pair = free & (tl.gather(free.to(tl.int32), j, 0) > 0) & (w != 0.0)
    return tl.where(pair, w, 0.0), j, pair


@triton.jit
def _screen(met, alone, lane, known, size):
    """Decide labels whose scores outweigh all their undecided pairs: 0, 1 or -1, and scores with the pairs that are on.

    The CPU decides one label after another; the last state is the same.
    """
    state = tl.where(known, -1, 0)
    single = alone
    changed = True
    while changed:
        low, high = tl.zeros_like(alone), tl.zeros_like(alone)
        single = alone
        for r in range(0, size):
            j = r - lane
            j = tl.maximum(tl.where(j < 0, j + size, j), 0)
            w = tl.load(met + r * size + lane, known, 0.0)
            other = tl.gather(state, j, 0)
            single += tl.where(other == 1, w, 0.0)
            low += tl.where(other < 0, tl.minimum(w, 0.0), 0.0)
            high += tl.where(other < 0, tl.maximum(w, 0.0), 0.0)
        off = (state < 0) & (single + high < 0.0)
        on = (state < 0) & ~off & (single + low > 0.0)
        state = tl.where(off, 0, tl.where(on, 1, state))
        changed = tl.sum((off | on).to(tl.int32), 0) > 0
    return state, tl.where(state < 0, single, 0.0)


@triton.jit
def _climb(met, single, labels, lane, free, size, tiny):
    """Flip single labels or pairs while the score rises; the labels and their score."""
    gain, worth = single, single
    for r in range(0, size):
        w, j, pair = _pair(met, r, lane, free, size)
        with_on = tl.where(tl.gather(labels, j, 0) == 1, w, 0.0)
        gain += with_on
        worth += tl.where(lane < j, with_on, 0.0)
    value = tl.sum(tl.where(labels == 1, worth, 0.0), 0)
    gain = tl.where(free, tl.where(labels == 1, -gain, gain), -float("inf"))
    left = 2 * tl.sum(free.to(tl.int32), 0)
    while left > 0:
        left -= 1
        most = tl.max(gain, 0)
        one, other = tl.min(tl.where(gain == most, lane, size), 0), -1
        if most <= tiny:
            highest, at = tl.full(gain.shape, -float("inf"), tl.float64), lane * 0
            for r in range(0, size):
                w, j, pair = _pair(met, r, lane, free, size)
                together = tl.where(labels == tl.gather(labels, j, 0), w, -w)
                both = gain + tl.gather(gain, j, 0) + together
                better = pair & (lane < j) & (both > highest)
                highest, at = tl.where(better, both, highest), tl.where(better, r, at)
            most = tl.max(highest, 0)
            place = tl.min(tl.where(highest == most, at * size + lane, size * size), 0)  # the first of the pairs
            one = place % size
            other = (place // size - one + size) % size
        if most > tiny:
            value += most
            labels, gain = _flip(met, labels, gain, one, lane, free, size)
            if other >= 0:
                labels, gain = _flip(met, labels, gain, other, lane, free, size)
        else:
            left = 0
    return labels, value


@triton.jit
def _flip(met, labels, gain, one, lane, free, size):
    """Flip one label; the weight of a pair counts if both are on, so the gains of flipping its partners change."""
    before = tl.max(tl.where(lane == one, labels, 0), 0)
    w = tl.load(met + ((one + lane) % size) * size + lane, free & (lane != one), 0.0)
    gain = tl.where(lane == one, -gain, gain + tl.where(labels == before, w, -w))
    return tl.where(lane == one, 1 - labels, labels), gain
