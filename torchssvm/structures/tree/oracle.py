"""Max-sum on a batch of trees: one torch operator with a kernel for each device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import first_equal, largest_sum, set_row
from torchssvm.core.arguments import as_parents, check_int64, check_length_form
from torchssvm.core.launch import by_example, compiles, launch, plan
from torchssvm.core.operators import apart, define, on_host, upload
from torchssvm.core.triton_support import triton_available
from torchssvm.structures.common import check_operands, check_range, own_lengths, reject_entries
from torchssvm.structures.maxplus import add, first_maximiser, first_of_largest, maxplus_rows

_NONE = np.empty(0, np.int64)
_AT_ONCE = 2**24  # most numbers in a table of the torch operations


def max_sum_tree(
    node: Tensor, edge: Tensor, parent: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Best states of every tree: ``argmax_y sum_v node[v, y_v] + sum_(v not a root) edge[v][y_parent(v), y_v]``.

    Messages go from the leaves to the roots; states are chosen from the roots to the leaves. Ties go to the smallest
    state on every device. A path rooted at its last node gives the same bits as :func:`viterbi`. This is the operator
    ``torch.ops.torchssvm.max_sum_tree``: compiled by Numba on the CPU and by Triton on CUDA if Triton is installed,
    otherwise in torch operations. It has no gradient.

    Args:
        node: ``[B, N, K]``, float32 or float64.
        edge: (state of the parent, state of the child): ``[K, K]`` for all, ``[B, K, K]`` by the tree, or
            ``[B, N, K, K]`` by the child; entries at roots are ignored.
        parent: int64 ``[N]`` for all or ``[B, N]``: the parent of each node, -1 for a root. Nodes may be numbered in
            any order, and an example may have several roots.
        lengths: ``[B]`` int64, 1 to N: an example of length T has the first T nodes; None means N for all.

    Returns:
        ``labels`` ``[B, N]`` int64, -1 beyond the length, and ``value`` ``[B]``, the score of the best states.

    Raises:
        ValueError: Scores are not floating, or a shape, a length or a parent does not fit.
    """
    return _operator(node, edge, parent, lengths)


def _fake(node: Tensor, edge: Tensor, parent: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    check_operands(node=(node, "BNK"), edge=(edge, (*"BN"[: edge.ndim - 2], "K", "K")))
    check_int64(parent, "parent", node.shape[:2] if parent.ndim == 2 else node.shape[1:2])
    if lengths is not None:
        check_length_form(lengths, len(node))
    return node.new_empty(node.shape[:2], dtype=torch.int64), node.new_empty(node.shape[0])


def _on_cpu(node: Tensor, edge: Tensor, parent: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    labels, value = _fake(node, edge, parent, lengths)
    lengths = own_lengths(lengths, *node.shape[:2])
    if not compiles(node, edge):
        return max_sum_tree_torch(node, edge, parent, lengths)
    batch, longest, states = node.shape
    parent = apart(parent)
    edges = by_example(edge)
    if edges.shape[1] == 1:
        edges = edges.mT  # the child's state first; tables by position are not copied
    parents = parent if parent.ndim == 2 else parent.unsqueeze(0)
    known = _NONE if lengths is None else lengths.contiguous().numpy()
    group, height = plan(batch, states, node.itemsize, edges.shape[0] == 1, 2 * longest)
    bad = launch(
        decode,
        (node, edges, parents, known, group, height),
        (labels, value),
        known if len(known) else np.full(batch, longest),
        [(2 * group * longest * states, value.dtype), ((2 * group + 1) * longest + 2, torch.int64)],
        each=states**2,
    )
    if max(bad, default=-1) >= 0:
        node_depths(node, parent, lengths)  # raises an error that names the node
    return labels, value


def _on_cuda(node: Tensor, edge: Tensor, parent: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _fake(node, edge, parent, lengths)
    fits = node.shape[2] < 2**15 and node.shape[0] > 0  # back-pointers are int16
    if fits and triton_available() and compiles(node, edge):
        from torchssvm.structures.tree.triton import max_sum_tree_triton

        return max_sum_tree_triton(node, edge, parent, node_depths(node, parent, lengths))
    return max_sum_tree_torch(node, edge, parent, lengths)


def check_parent(parent: Any) -> Tensor:
    """The parents of nodes, int64 ``[N]``; ValueError if they do not form trees."""
    tree = as_parents(parent)
    node_depths(torch.empty(1, len(tree), 1), tree, None)
    return tree


def node_depths(node: Tensor, parent: Tensor, lengths: Tensor | None) -> Tensor:
    """The distance of each node from its root, ``[B, N]`` int64; -1 in the padding.

    Raises:
        ValueError: The parents of an example do not form trees, or a length is not in 1 to N.
    """
    batch, longest, _ = node.shape
    parent = on_host(parent).expand(batch, longest)
    if lengths is not None:
        check_range(lengths := on_host(lengths), batch, longest)
    size = torch.full((batch, 1), longest, device=parent.device) if lengths is None else lengths.unsqueeze(1)
    real = torch.arange(longest, device=parent.device) < size
    # Pointer doubling: after r rounds, ancestor is 2^r steps above the node.
    ancestor = torch.where(real, parent, -1)
    out = real & ((parent < -1) | (parent >= size))
    ancestor = ancestor.masked_fill(out, -1)
    depth = (ancestor >= 0).to(torch.int64)
    for _ in range(longest.bit_length()):
        above = ancestor.clamp(min=0)
        depth = depth + torch.where(ancestor >= 0, depth.gather(1, above), 0)
        ancestor = torch.where(ancestor >= 0, ancestor.gather(1, above), -1)
    reject_entries(out, parent, "parent has", "give another node of the example, or -1 at a root")
    reject_entries(ancestor >= 0, parent, "parent has", "nodes must lead to a root, and these lead in a circle")
    return upload(depth.masked_fill(~real, -1), node.device)


@torch.no_grad()
def max_sum_tree_torch(
    node: Tensor, edge: Tensor, parent: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """:func:`max_sum_tree` in torch operations on any device, level by level for all trees at once."""
    batch, longest, states = node.shape
    edge = edge.to(node.dtype)
    depth = node_depths(node, parent, lengths)
    parent = parent.expand(batch, longest)
    rank = _sibling_ranks(parent, depth)
    deepest = int(depth.max()) if batch else 0
    belief, messages = node.clone(), torch.zeros_like(node)  # at [b, v]: by the state of v; by the state of its parent
    levels = [(depth == level).nonzero(as_tuple=True) for level in range(deepest + 1)]
    for rows, nodes in reversed(levels[1:]):
        for few in torch.arange(len(rows), device=rows.device).split(max(1, _AT_ONCE // states**2)):
            table = belief[rows[few], nodes[few]].unsqueeze(1) + _edges_at(edge, rows[few], nodes[few])
            messages[rows[few], nodes[few]] = table.amax(2)
        above, place = parent[rows, nodes], rank[rows, nodes]
        for r in range(int(place.max()) + 1):  # siblings in ascending order
            some = place == r
            belief[rows[some], above[some]] += messages[rows[some], nodes[some]]
    labels = parent.new_full((batch, longest), -1)
    value = node.new_zeros(batch)
    first, last = levels[0] if levels else (depth[:0], depth[:0])
    value_at, state_at = belief[first, last].max(1)
    labels[first, last] = state_at
    order = _sibling_ranks(parent, torch.where(depth == 0, depth, -1))[first, last]
    for r in range(int(order.max()) + 1 if batch else 0):  # roots in ascending order
        some = order == r
        value[first[some]] += value_at[some]
    for rows, nodes in levels[1:]:
        for few in torch.arange(len(rows), device=rows.device).split(max(1, _AT_ONCE // states)):
            state = labels[rows[few], parent[rows[few], nodes[few]]]
            incoming = _edges_at(edge, rows[few], nodes[few], state)
            labels[rows[few], nodes[few]] = (belief[rows[few], nodes[few]] + incoming).argmax(1)
    return labels, value


def _sibling_ranks(parent: Tensor, depth: Tensor) -> Tensor:
    """The number of siblings before each node, ``[B, N]``; the padding (depth -1) is one group."""
    longest = parent.shape[1]
    key = torch.where(depth >= 0, parent, longest)
    ordered, nodes = key.sort(dim=1, stable=True)
    position = torch.arange(longest, device=parent.device).expand_as(nodes)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    start = torch.where(begins, position, 0).cummax(1).values
    return torch.empty_like(nodes).scatter_(1, nodes, position - start)


def _edges_at(edge: Tensor, rows: Tensor, nodes: Tensor, state: Tensor | None = None) -> Tensor:
    """Edge scores of M nodes with their parents, ``[M or 1, K, K]``; for given states of the parents, ``[M, K]``."""
    if edge.ndim == 2:
        return edge.unsqueeze(0) if state is None else edge[state]
    places = (rows,) if edge.ndim == 3 else (rows, nodes)
    return edge[places] if state is None else edge[(*places, state)]


_operator = define(
    "max_sum_tree(Tensor node, Tensor edge, Tensor parent, Tensor? lengths) -> (Tensor labels, Tensor value)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=_on_cuda,
    default=max_sum_tree_torch,
)


@njit
def decode(node, edges, parents, lengths, group, height, begin, end, memory, places, labels, value):
    """Decode the trees ``begin`` to ``end - 1``, ``group`` of them together, level by level.

    Args:
        node: ``[B, N, K]``.
        edges: ``[B or 1, 1, K, K]`` (state of the child, state of its parent), one matrix if ``group > 1``; or
            ``[B or 1, N, K, K]`` (state of the parent, state of the child).
        parents: ``[B or 1, N]``, -1 at roots.
        lengths: ``[B]``; empty if all are N.
        group: Number of trees that read the edges together.
        height: Rows of a block of the edges, which stays in the cache meanwhile.
        memory: Room for ``2 * group * N`` rows of scores.
        places: Room for ``(2 * group + 1) * N + 2`` integers.
        labels, value: ``[B, N]`` and ``[B]``, to be filled.

    Returns:
        -1, or the first row whose parents do not form trees.
    """
    longest, states = node.shape[1], node.shape[2]
    size = group * longest * states
    beliefs = memory[:size].reshape(group * longest, states)  # best score of each subtree, by its root's state
    messages = memory[size : 2 * size].reshape(group * longest, states)  # by the parent's state
    depth = places[: group * longest].reshape(group, longest)
    jobs = places[group * longest : 2 * group * longest]
    starts = places[2 * group * longest : (2 * group + 1) * longest + 2]
    for first in range(begin, end, group):
        members = min(group, end - first)
        for g in range(members):
            b = first + g
            length = lengths[b] if lengths.shape[0] else longest
            parent = parents[b if parents.shape[0] > 1 else 0]
            if not _find_depths(parent, length, depth[g]):
                return b
            for v in range(length):
                set_row(beliefs[g * longest + v], node[b, v], None, None)
        chain = first if edges.shape[0] > 1 else 0
        deepest = _sort_by_depth(depth[:members], lengths, first, longest, jobs, starts)

        for level in range(deepest, 0, -1):
            now = jobs[starts[level] : starts[level + 1]]
            if edges.shape[1] == 1:
                maxplus_rows(messages, beliefs, now, edges[chain, 0], height, level % 2 == 0, False)
            else:
                for job in now:
                    for k in range(states):
                        messages[job, k] = largest_sum(edges[chain, job % longest, k], beliefs[job])
            for job in now:  # siblings in ascending order
                g, v = job // longest, job % longest
                above = parents[first + g if parents.shape[0] > 1 else 0, v]
                add(beliefs[g * longest + above], messages, job, states)

        for g in range(members):
            length = lengths[first + g] if lengths.shape[0] else longest
            labels[first + g, length:] = -1
        previous = -1
        for job in jobs[: starts[1]]:  # the roots
            g, v = job // longest, job % longest
            best = first_of_largest(beliefs[job], states)
            labels[first + g, v] = best
            if g == previous:
                value[first + g] += beliefs[job, best]
            else:
                value[first + g] = beliefs[job, best]
            previous = g
        for job in jobs[starts[1] : starts[deepest + 1]]:
            g, v = job // longest, job % longest
            b = first + g
            above = labels[b, parents[b if parents.shape[0] > 1 else 0, v]]
            if edges.shape[1] > 1:
                row = edges[chain, v, above].reshape(states, 1)
                labels[b, v] = first_equal(beliefs[job], row, 0, states, messages[job, above])
            else:
                labels[b, v] = first_maximiser(messages[job], beliefs[job], edges[chain, 0], above, states)
    return -1


@njit
def _find_depths(parent, length, depth):
    """Fill ``depth`` with each node's distance from its root; False if the parents do not form trees."""
    for v in range(length):
        depth[v] = -1
    for v in range(length):
        u, steps = v, 0
        while u >= 0 and depth[u] < 0:
            steps += 1
            if steps > length or parent[u] < -1 or parent[u] >= length:
                return False
            u = parent[u]
        level = steps - 1 + (depth[u] + 1 if u >= 0 else 0)
        u = v
        for _ in range(steps):
            depth[u] = level
            level -= 1
            u = parent[u]
    return True


@njit
def _sort_by_depth(depth, lengths, first, longest, jobs, starts):
    """Fill ``jobs`` with ``g * N + v`` by ascending depth, and ``starts`` with the place where each depth begins."""
    starts[:] = 0
    deepest = 0
    for g in range(depth.shape[0]):
        for v in range(lengths[first + g] if lengths.shape[0] else longest):
            deepest = max(deepest, depth[g, v])
            starts[depth[g, v] + 1] += 1
    for level in range(deepest + 1):
        starts[level + 1] += starts[level]
    for g in range(depth.shape[0]):
        for v in range(lengths[first + g] if lengths.shape[0] else longest):
            jobs[starts[depth[g, v]]] = g * longest + v
            starts[depth[g, v]] += 1
    for level in range(deepest + 1, 0, -1):  # each entry now holds the start of the next depth
        starts[level] = starts[level - 1]
    starts[0] = 0
    return deepest
