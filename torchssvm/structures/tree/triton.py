"""Max-sum on trees on a CUDA device: one Triton program decodes one tree, back-pointers included.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.operators import on_host, upload
from torchssvm.core.triton_support import on_device

_TILE = 64  # most states of a tile, for children and for parents


def max_sum_tree_triton(node: Tensor, edge: Tensor, parent: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`torchssvm.structures.tree.oracle.max_sum_tree`, for tensors of one float dtype; K up to 32767.

    ``depth`` ``[B, N]`` is the depth of each node, -1 in the padding.
    """
    batch, longest, states = node.shape
    labels = node.new_full((batch, longest), -1, dtype=torch.int64)
    value = node.new_empty(batch)
    if not batch:
        return labels, value
    edge = edge.detach()
    edge = edge if edge.stride(-1) == 1 and edge.stride(-2) == states else edge.contiguous()
    by_tree = edge.stride(0) if edge.ndim > 2 else 0
    by_node = edge.stride(1) if edge.ndim > 3 else 0
    # The deepest first, siblings in ascending order, padding last.
    levels = on_host(depth)
    order = upload(torch.where(levels >= 0, -levels, 1).argsort(dim=1, stable=True), depth.device)
    size = upload((levels >= 0).sum(1), depth.device)
    belief = node.detach().clone(memory_format=torch.contiguous_format)
    pointers = node.new_empty(batch, longest, states, dtype=torch.int16)
    tile = min(_TILE, max(2, triton.next_power_of_2(states)))
    with on_device(node):
        _decode[(batch,)](
            belief, edge, parent.expand(batch, longest).contiguous(), order, size, pointers, labels, value,
            longest, states, by_tree, by_node, tile=tile, num_warps=max(1, tile // 8), enable_fp_fusion=False,
        )  # fmt: skip
    return labels, value


@triton.jit(do_not_specialize=["longest", "by_tree", "by_node"])
def _decode(
    belief, edge, parent, order, size, pointers, labels, value, longest, states, by_tree, by_node,
    tile: tl.constexpr,
):  # fmt: skip
    """``belief`` starts as the scores of the nodes; messages are added from the deepest nodes to the roots."""
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(size + b)
    belief += b * longest * states
    pointers += b * longest * states
    edge += b * by_tree
    parent += b * longest
    order += b * longest
    labels += b * longest
    total = tl.zeros([], value.dtype.element_ty)
    for i in range(0, length):
        v = tl.load(order + i)
        above = tl.load(parent + v)
        if above < 0:
            best, state = _largest(belief + v * states, states, tile)
            total += best
            # Read behind the barriers below.
            tl.store(labels + v, state.to(tl.int64))
        else:
            matrix = edge + v * by_node
            for top in range(0, states, tile):
                row = top + tl.arange(0, tile)  # states of the parent
                inside = row < states
                highest = tl.full([tile], -float("inf"), value.dtype.element_ty)
                chosen = tl.zeros([tile], tl.int32)
                for left in range(0, states, tile):
                    column = left + tl.arange(0, tile)  # states of the child
                    known = column < states
                    score = tl.load(belief + v * states + column, known, -float("inf"))
                    place = row.to(tl.int64)[:, None] * states + column[None, :]
                    moved = tl.load(matrix + place, inside[:, None] & known[None, :], 0.0) + score[None, :]
                    best, index = tl.max(moved, 1, return_indices=True, return_indices_tie_break_left=True)
                    better = best > highest  # ties go to the earlier tile
                    highest, chosen = tl.where(better, best, highest), tl.where(better, left + index, chosen)
                # A NaN score may give any index: keep it within the states. They are read behind a barrier.
                tl.store(pointers + v * states + row, tl.minimum(chosen, states - 1).to(tl.int16), inside)
                target = belief + above * states + row
                old = tl.load(target, inside)
                tl.debug_barrier()  # a tile has fewer rows than there are threads: each warp has them all
                tl.store(target, old + highest, inside)
            tl.debug_barrier()  # threads read what other threads wrote
    tl.store(value + b, total)
    tl.debug_barrier()
    for back in range(1, length + 1):
        v = tl.load(order + length - back)
        above = tl.load(parent + v)
        if above >= 0:
            state = tl.load(pointers + v * states + tl.load(labels + above))
            tl.store(labels + v, state.to(tl.int64))  # of another node than the one that is read here
        tl.debug_barrier()


@triton.jit
def _largest(scores, states, tile: tl.constexpr):
    """The highest of K scores, and the first state that has it."""
    best = tl.load(scores)
    state = 0
    for left in range(0, states, tile):
        column = left + tl.arange(0, tile)
        some = tl.load(scores + column, column < states, -float("inf"))
        highest, index = tl.max(some, 0, return_indices=True, return_indices_tie_break_left=True)
        if highest > best:
            best = highest
            state = left + index
    return best, tl.minimum(state, states - 1)
