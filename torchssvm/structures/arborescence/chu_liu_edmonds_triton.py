"""Non-projective arborescences on a CUDA device: one Triton program runs Chu, Liu and Edmonds on one sentence.

The path of best arcs grows slot by slot, and only the scans over the heads or tokens of a slot are parallel, four a
thread: one warp up to 127 tokens, whose reductions need no barrier. Notes on slots and nodes stay in registers; the
arcs, which contraction rewrites, lie in global memory, by token and head, so that the heads of a token are neighbours.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device

LARGEST = 1023
"""Most tokens whose notes one program holds in its registers."""


def max_arborescence_triton(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """As ``max_arborescence``, for at most ``LARGEST`` tokens."""
    batch, longest, size = scores.shape
    heads = scores.new_full((batch, longest), -1, dtype=torch.int64)
    value = scores.new_empty(batch, dtype=torch.float64)
    if batch:
        if lengths is None:
            lengths = torch.full((batch,), longest, device=scores.device)
        best = scores.new_empty(batch, size, size, dtype=torch.float64)
        notes = torch.empty(batch, 3, size, size, dtype=torch.int32, device=scores.device)
        width = max(32, triton.next_power_of_2(size))
        with on_device(scores):
            _decode[(batch,)](
                scores.detach().to(torch.float64).contiguous(), lengths.contiguous(), best, notes, heads, value,
                longest, single_root=single_root, width=width, num_warps=max(1, width // 128), enable_fp_fusion=False,
            )  # fmt: skip
    return heads, value.to(scores.dtype)


@triton.jit
def _at(vector, numbers, place):
    """``vector[place]``; the entries are at least -1."""
    return tl.max(tl.where(numbers == place, vector, -1), 0)


@triton.jit(do_not_specialize=["longest"])
def _decode(
    scores, lengths, best, notes, heads, value, longest, single_root: tl.constexpr, width: tl.constexpr
):  # fmt: skip
    """A slot is a token or a contracted cycle; a node is a token or a cycle, numbered as they form.

    ``best[t, h]`` and ``roots[t, h]`` are the score and the number of root arcs that the best arc from slot h into slot
    t adds, less the cycle arcs that it replaces; ``from_head`` and ``to_token`` are its true ends.
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths + b), 1), longest).to(tl.int32)  # keep accesses in bounds
    size, slots = longest + 1, length + 1
    scores += b * longest * size
    best += b * size * size
    heads += b * longest
    roots = notes + b * 3 * size * size
    from_head, to_token = roots + size * size, roots + 2 * size * size
    lane, each = tl.arange(0, width), tl.arange(0, 2 * width)
    known = lane < slots
    for t in range(1, slots):
        arc = t * size + lane
        # All that is stored here is read behind the barrier below.
        tl.store(best + arc, tl.load(scores + (t - 1) * size + lane, known), known)
        tl.store(roots + arc, tl.where((lane == 0) & single_root, 1, 0), known)
        tl.store(from_head + arc, lane, known)
        tl.store(to_token + arc, lane * 0 + t, known)
    tl.debug_barrier()  # threads read what other threads wrote
    state = tl.where(lane == 0, 2, 0)  # 0: unseen, 1: on the path, 2: done, 3: in a cycle that another slot stands for
    node, source = lane, lane * 0  # by slot; source: the tail of its best arc
    parent, head, token = each * 0 - 1, each * 0, each * 0  # by node
    nodes = slots
    for start in range(1, slots):
        v = start
        going = _at(state, lane, start) == 0
        while going:
            state = tl.where(lane == v, 1, state)
            usable = known & (state != 3) & (lane != v)
            few = tl.load(roots + v * size + lane, usable, 2147483647)
            score = tl.load(best + v * size + lane, usable, -float("inf"))
            usable = usable & (few == tl.min(few, 0))
            usable = usable & (score == tl.max(tl.where(usable, score, -float("inf")), 0))
            u = tl.min(tl.where(usable, lane, width), 0)
            u = tl.where(u == width, 0, u)  # scores are NaN
            source = tl.where(lane == v, u, source)
            same = each == _at(node, lane, v)
            head = tl.where(same, tl.load(from_head + v * size + u), head)
            token = tl.where(same, tl.load(to_token + v * size + u), token)
            seen = _at(state, lane, u)
            if seen == 1:  # the path closes a cycle, from u to v: contract it into slot u
                x = u
                state = tl.where(lane == u, 3, state)
                parent = tl.where(each == _at(node, lane, u), nodes, parent)
                while x != v:
                    x = _at(source, lane, x)
                    state = tl.where(lane == x, 3, state)
                    parent = tl.where(each == _at(node, lane, x), nodes, parent)
                outside = known & (state != 3)
                _contract(best, roots, from_head, to_token, source, lane, outside, u, v, size)
                state = tl.where(lane == u, 1, state)
                node = tl.where(lane == u, nodes, node)
                nodes += 1
            going = seen != 2
            v = u
        state = tl.where(state == 1, 2, state)
    for back in range(0, nodes - slots):  # expand the cycles, the last one first
        cycle = nodes - 1 - back
        x = _at(token, each, cycle)
        above = _at(parent, each, x)
        while (above != cycle) & (above >= 0):
            x = above
            above = _at(parent, each, x)
        entered = each == x  # the arc into the cycle replaces the cycle's arc into this node
        tail, end = _at(head, each, cycle), _at(token, each, cycle)
        head, token = tl.where(entered, tail, head), tl.where(entered, end, token)
    tl.store(heads + each - 1, head.to(tl.int64), (each > 0) & (each < slots))
    tl.debug_barrier()
    total = tl.zeros([], tl.float64)
    for t in range(1, slots):  # in the order of the tokens, as on the CPU
        total += tl.load(scores + (t - 1) * size + tl.load(heads + t - 1))
    tl.store(value + b, total)


@triton.jit
def _contract(best, roots, from_head, to_token, source, lane, outside, u, v, size):
    """Rewrite the arcs into and out of slot u, which stands for the cycle from u to v: the first best of its slots."""
    into = outside
    x = u
    arc = x * size + lane
    tail = x * size + _at(source, lane, x)
    most = tl.load(best + arc, into, 0.0) - tl.load(best + tail)
    few = tl.load(roots + arc, into, 0) - tl.load(roots + tail)
    enters = arc
    while x != v:
        x = _at(source, lane, x)
        arc = x * size + lane
        tail = x * size + _at(source, lane, x)
        score = tl.load(best + arc, into, 0.0) - tl.load(best + tail)
        count = tl.load(roots + arc, into, 0) - tl.load(roots + tail)
        better = (count < few) | ((count == few) & (score > most))
        most, few = tl.where(better, score, most), tl.where(better, count, few)
        enters = tl.where(better, arc, enters)
    head, token = tl.load(from_head + enters, into, 0), tl.load(to_token + enters, into, 0)
    out = outside & (lane > 0)
    x = u
    leaves = lane * size + x
    highest, least = tl.load(best + leaves, out, 0.0), tl.load(roots + leaves, out, 0)
    while x != v:
        x = _at(source, lane, x)
        arc = lane * size + x
        score, count = tl.load(best + arc, out, 0.0), tl.load(roots + arc, out, 0)
        better = (count < least) | ((count == least) & (score > highest))
        highest, least = tl.where(better, score, highest), tl.where(better, count, least)
        leaves = tl.where(better, arc, leaves)
    out_head, out_token = tl.load(from_head + leaves, out, 0), tl.load(to_token + leaves, out, 0)
    tl.debug_barrier()  # threads write what other threads have read
    arc = u * size + lane
    tl.store(best + arc, most, into)
    tl.store(roots + arc, few, into)
    tl.store(from_head + arc, head, into)
    tl.store(to_token + arc, token, into)
    arc = lane * size + u
    # `outside` leaves u out: these are other arcs.
    tl.store(best + arc, highest, out)
    tl.store(roots + arc, least, out)
    tl.store(from_head + arc, out_head, out)
    tl.store(to_token + arc, out_token, out)
    tl.debug_barrier()
