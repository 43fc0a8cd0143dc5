"""Max-sum on trees whose nodes have places on a grid and whose edges have kinds: one torch operator.

Costs are tables of 2 n - 1 numbers, n the size of the axis: ``table[p - q + n - 1]`` is the cost from place q to place
p. Maxima are written ``v if v > r else r``: LLVM then vectorises them without fast-math, and rounding and ties follow
the order of the code. The loops are O(n^2) for each line; in vector registers and without maximisers, they are faster
than O(n) envelopes up to a few hundred places.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.core.arguments import check_int64
from torchssvm.core.launch import LANES, compiles, launch, once
from torchssvm.core.operators import apart, define
from torchssvm.core.triton_support import triton_available
from torchssvm.structures.common import check_operands, check_shape
from torchssvm.structures.tree.oracle import node_depths

_AT_ONCE = 2**24  # most numbers in a table of the torch operations


def max_sum_grid(
    node: Tensor, kinds: Tensor, cost_x: Tensor, cost_y: Tensor, parent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The best place l of each node and the best kinds (s, t) of each edge, for trees on a grid of H x W places.

        ``sum_v node[v, l_v] + sum_e kinds[e, 0, s_e, l_v] + kinds[e, 1, t_e, l_u] - cost[e, 0, s_e](l_v - l_u)
        - cost[e, 1, t_e](l_v - l_u)``,

    where edge e joins node v with its parent u, and each cost is a sum over both axes. Kind s has scores at the child's
    place, kind t at the parent's. Both costs depend on the same displacement, so s and t cannot be maximised
    separately: a message is the best of T^2 max-convolutions, each exact and O(H W (H + W)) for any costs. Ties go, on
    every device, to the first place of a root in row-major order; then, given the parent's place, to the first t, the
    first s and the first place of the child. This is the operator ``torch.ops.torchssvm.max_sum_grid``: compiled by
    Numba on the CPU, otherwise in torch operations that give the same bits; on CUDA, where Triton is installed, the
    max-convolutions are its kernel. It has no gradient.

    Args:
        node: ``[B, P, H, W]``, float32 or float64.
        kinds: ``[B, E, 2, T, H, W]``, edges in ascending order of their child v.
        cost_x: ``[B, E, 2, T, 2 W - 1]``, the cost of ``l_v - l_u`` along x, from 1 - W to W - 1.
        cost_y: ``[B, E, 2, T, 2 H - 1]``, the same along y.
        parent: ``[P]`` int64, the parent of each node, -1 for a root; there may be several roots.

    Returns:
        ``place`` ``[B, P]`` int64, ``y * W + x``; ``kind`` ``[B, E, 2]`` int64; ``value`` ``[B]``.

    Raises:
        ValueError: Scores are not floating, a shape does not fit, or ``parent`` is no forest of E edges.
    """
    return _operator(node, kinds, cost_x, cost_y, parent)


def _fake(
    node: Tensor, kinds: Tensor, cost_x: Tensor, cost_y: Tensor, parent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    each = "B", "E", 2, "K"
    check_operands(
        node=(node, "BNHW"),
        kinds=(kinds, (*each, "H", "W")),
        cost_x=(cost_x, (*each, 2 * node.shape[-1] - 1)),
        cost_y=(cost_y, (*each, 2 * node.shape[-2] - 1)),
    )
    check_int64(parent, "parent", node.shape[1:2])
    return parent.new_empty(node.shape[:2]), parent.new_empty(kinds.shape[:3]), node.new_empty(len(node))


def _on_cpu(
    node: Tensor, kinds: Tensor, cost_x: Tensor, cost_y: Tensor, parent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if not compiles(node, kinds, cost_x, cost_y):
        return max_sum_grid_torch(node, kinds, cost_x, cost_y, parent)
    parent = apart(parent)
    place, kind, value = _fake(node, kinds, cost_x, cost_y, parent)
    order = _upwards(parent, kinds)
    batch, parts, height, width = node.shape
    edges, types = kinds.shape[1], kinds.shape[3]
    wide = -(-width // LANES) * LANES
    room = (parts + 3) * height * wide + types * height * width + width - 1 + wide + 2 * height
    launch(
        decode,
        (node, kinds, once(cost_x), once(cost_y), parent, order, wide),
        (place, kind, value),
        np.full(batch, float(edges * types * types) * height * width * (height + width)),
        [(room, value.dtype), (edges * height * width, torch.int32)],
    )
    return place, kind, value


def _upwards(parent: Tensor, kinds: Tensor) -> Tensor:
    """The nodes in descending order of depth, then ascending order."""
    depth = node_depths(torch.empty(1, len(parent), 1, device=parent.device), parent, None)[0]
    check_shape(kinds, "kinds", len(kinds), int((depth > 0).sum()), *kinds.shape[2:])
    return (-depth).sort(stable=True).indices


@torch.no_grad()
def max_sum_grid_torch(
    node: Tensor, kinds: Tensor, cost_x: Tensor, cost_y: Tensor, parent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`max_sum_grid` in torch operations on any device."""
    _fake(node, kinds, cost_x, cost_y, parent)
    order = _upwards(parent, kinds).tolist()
    batch, parts, height, width = node.shape
    edge_of = ((parent >= 0).cumsum(0) - 1).tolist()
    above = parent.tolist()
    beliefs = list(node.unbind(1))
    best_kind: dict[int, Tensor] = {}
    for v in order:
        if above[v] < 0:
            continue
        e = edge_of[v]
        scores = beliefs[v].unsqueeze(1) + kinds[:, e, 0]
        by_kind = []
        for t in range(kinds.shape[3]):
            across, down = (_to_parent(cost[:, e, 0] + cost[:, e, 1, t : t + 1]) for cost in (cost_x, cost_y))
            lines, _ = best_along_last(scores, across.unsqueeze(2))
            reached, _ = best_along_last(lines.mT, down.unsqueeze(2))
            by_kind.append(kinds[:, e, 1, t] + reached.amax(1).mT)
        message, best_kind[v] = torch.stack(by_kind, 1).max(1)
        beliefs[above[v]] = beliefs[above[v]] + message
    place, value = parent.new_zeros(batch, parts), node.new_zeros(batch)
    kind = parent.new_zeros(batch, kinds.shape[1], 2)
    for v in range(parts):
        if above[v] < 0:
            best, place[:, v] = beliefs[v].flatten(1).max(1)
            value = value + best
    rows = torch.arange(batch, device=node.device)
    rank_y, rank_x = torch.arange(height, device=node.device), torch.arange(width, device=node.device)
    for v in reversed(order):
        if above[v] >= 0:
            e, at = edge_of[v], place[:, above[v]].unsqueeze(1)
            up = best_kind[v].flatten(1).gather(1, at).squeeze(1)
            costs = [cost[:, e, 0] + cost[rows, e, 1, up].unsqueeze(1) for cost in (cost_x, cost_y)]
            across = costs[0][rows.unsqueeze(1), :, rank_x - at % width + width - 1].mT.unsqueeze(2)
            down = costs[1][rows.unsqueeze(1), :, rank_y - at // width + height - 1].mT.unsqueeze(3)
            scores = beliefs[v].unsqueeze(1) + kinds[:, e, 0] - across - down
            best_place = scores.flatten(1).argmax(1)
            kind[:, e, 0], kind[:, e, 1] = best_place // (height * width), up
            place[:, v] = best_place % (height * width)
    return place, kind, value


def _to_parent(cost: Tensor) -> Tensor:
    """Costs ``[..., 2 n - 1]`` by displacement (child less parent) -> ``[..., parent, child]``."""
    size = (cost.shape[-1] + 1) // 2
    place = torch.arange(size, device=cost.device)
    return cost[..., place - place.unsqueeze(1) + size - 1]


def best_along_last(scores: Tensor, costs: Tensor) -> tuple[Tensor, Tensor]:
    """``max_q scores[..., q] - costs[..., p, q]`` and the first maximiser q, both shaped like ``scores``."""
    if scores.is_cuda and triton_available() and compiles(scores, costs):
        from torchssvm.structures.pose.triton import best_along_last_triton

        return best_along_last_triton(scores, costs)
    shape, size = scores.shape, scores.shape[-1]
    costs = costs.expand(*shape, size).flatten(0, -3)
    lines = scores.reshape(-1, 1, size)
    best = [
        (lines[few] - costs[few]).max(2)
        for few in torch.arange(len(lines), device=scores.device).split(max(1, _AT_ONCE // size**2))
    ]
    if not best:
        return scores.clone(), scores.to(torch.int64)
    return torch.cat([few.values for few in best]).view(shape), torch.cat([few.indices for few in best]).view(shape)


_operator = define(
    "max_sum_grid(Tensor node, Tensor kinds, Tensor cost_x, Tensor cost_y, Tensor parent) "
    "-> (Tensor place, Tensor kind, Tensor value)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=max_sum_grid_torch,
    default=max_sum_grid_torch,
)


@njit
def decode(node, kinds, cost_x, cost_y, parent, order, wide, begin, end, memory, chosen, place, kind, value):
    """Decode the trees ``begin`` to ``end - 1``.

    Args:
        node: ``[B, P, H, W]``.
        kinds: ``[B, E, 2, T, H, W]``.
        cost_x: ``[B or 1, E, 2, T, 2 W - 1]``.
        cost_y: ``[B or 1, E, 2, T, 2 H - 1]``.
        parent: ``[P]``, -1 at roots.
        order: ``[P]``, the nodes in descending order of depth.
        wide: The width of a row of working memory, at least W.
        memory: Room for ``(P + 3) * H * wide + T * H * W + W - 1 + wide + 2 * H`` numbers.
        chosen: Room for ``E * H * W`` integers.
        place: ``[B, P]``, to be filled with ``y * W + x``.
        kind, value: ``[B, E, 2]`` and ``[B]``, to be filled.
    """
    parts, height, width = node.shape[1], node.shape[2], node.shape[3]
    area, types = height * wide, kinds.shape[3]
    beliefs = memory[: parts * area].reshape(parts, height, wide)
    start = (parts + 3) * area
    images = memory[parts * area : start].reshape(3, height, wide)
    rows, reached, message = images[0], images[1], images[2]  # unpacked slices would lose their contiguous type
    scores = memory[start : start + types * height * width].reshape(types, height, width)
    start += types * height * width
    table_x, start = memory[start : start + width - 1 + wide], start + width - 1 + wide
    table_y = memory[start : start + 2 * height]
    table_x[:] = 0.0
    best_kind = chosen[: kinds.shape[1] * height * width].reshape(kinds.shape[1], height, width)
    for b in range(begin, end):
        for v in range(parts):
            for y in range(height):
                for x in range(width):
                    beliefs[v, y, x] = node[b, v, y, x]
                beliefs[v, y, width:] = 0.0
        costs_x, costs_y = cost_x[b if cost_x.shape[0] > 1 else 0], cost_y[b if cost_y.shape[0] > 1 else 0]
        for v in order:
            if parent[v] >= 0:
                e = _edge(parent, v)
                _add_kinds(scores, beliefs[v], kinds[b, e, 0])
                for t in range(types):
                    for s in range(types):
                        _pair(table_x, costs_x[e, 0, s], costs_x[e, 1, t])
                        _pair(table_y, costs_y[e, 0, s], costs_y[e, 1, t])
                        convolve_rows(rows, scores[s], table_x)
                        raise_along_columns(reached, rows, table_y, s == 0)
                    _keep_best(message, best_kind[e], kinds[b, e, 1, t], reached, t)
                _add(beliefs[parent[v]], message)
        value[b] = 0.0
        for v in range(parts):
            if parent[v] < 0:
                value[b] += _first_maximum(beliefs[v], width, place[b], v)
        for i in range(parts):
            v = order[parts - 1 - i]
            if parent[v] >= 0:
                e = _edge(parent, v)
                above = place[b, parent[v]]
                t = best_kind[e, above // width, above % width]
                kind[b, e, 1] = t
                _follow(
                    beliefs[v], kinds[b, e, 0], costs_x[e], costs_y[e], t, above, place[b], v, kind[b, e]
                )  # fmt: skip


@njit
def _edge(parent, v):
    """The index of the edge between v and its parent."""
    count = 0
    for u in range(v):
        if parent[u] >= 0:
            count += 1
    return count


@njit
def _add_kinds(out, belief, scores):
    """``out[s] = belief + scores[s]``."""
    for s in range(out.shape[0]):
        for y in range(out.shape[1]):
            to, one, two = out[s, y], belief[y], scores[s, y]
            for x in range(out.shape[2]):
                to[x] = one[x] + two[x]


@njit
def _add(belief, message):
    for y in range(belief.shape[0]):
        to, one = belief[y], message[y]
        for x in range(to.shape[0]):
            to[x] = to[x] + one[x]


@njit
def _pair(table, below, above):
    """Sum the costs of both arcs of an edge; ``table`` is by parent less child, the costs by child less parent."""
    size = below.shape[0]
    for k in range(size):
        table[k] = below[size - 1 - k] + above[size - 1 - k]


@njit
def _keep_best(message, best_kind, scores, reached, t):
    """``message = max(message, scores + reached)``; ``best_kind`` keeps the first t of the maximum."""
    for y in range(scores.shape[0]):
        best, kinds, one, two = message[y], best_kind[y], scores[y], reached[y]
        for x in range(scores.shape[1]):
            v = one[x] + two[x]
            if t == 0 or v > best[x]:
                best[x], kinds[x] = v, t


@njit
def _first_maximum(belief, width, place, v):
    best, at = belief[0, 0], 0
    for y in range(belief.shape[0]):
        for x in range(width):
            if belief[y, x] > best:
                best, at = belief[y, x], y * width + x
    place[v] = at
    return best


@njit
def _follow(belief, scores, costs_x, costs_y, t, above, place, v, kind):
    """The best place of a node and kind s, given its parent's place and kind t; ties go to the first."""
    types, height, width = scores.shape
    py, px = above // width, above % width
    place[v], kind[0] = 0, 0
    first, best = True, belief[0, 0]
    for s in range(types):
        for y in range(height):
            k = y - py + height - 1
            cost = costs_y[0, s, k] + costs_y[1, t, k]
            row, kind_row = belief[y], scores[s, y]
            for x in range(width):
                k = x - px + width - 1
                value = row[x] + kind_row[x] - (costs_x[0, s, k] + costs_x[1, t, k]) - cost
                if first or value > best:
                    first, best = False, value
                    place[v], kind[0] = y * width + x, s


@njit
def convolve_rows(out, scores, table):
    """``out[y, p] = max_q scores[y, q] - table[p - q + n - 1]``; ``out`` and the table may have more columns."""
    size, wide = scores.shape[1], out.shape[1]
    for y in range(scores.shape[0]):
        row, best = scores[y], out[y]
        a, first = row[0], table[size - 1 : size - 1 + wide]
        for p in range(wide):
            best[p] = a - first[p]
        q = 1
        while q + 4 <= size:  # four at once need a quarter of the reads and writes
            a, b, c, d = row[q], row[q + 1], row[q + 2], row[q + 3]
            first = table[size - 4 - q : size - 1 - q + wide]
            for p in range(wide):
                v, w, x, z = a - first[p + 3], b - first[p + 2], c - first[p + 1], d - first[p]
                v = w if w > v else v
                x = z if z > x else x
                v = x if x > v else v
                highest = best[p]
                best[p] = v if v > highest else highest
            q += 4
        while q < size:
            a = row[q]
            first = table[size - 1 - q : size - 1 - q + wide]
            for p in range(wide):
                v, highest = a - first[p], best[p]
                best[p] = v if v > highest else highest
            q += 1


@njit
def raise_along_columns(out, scores, table, fresh):
    """``out[p] = max(out[p], scores[q] - table[p - q + n - 1])``, row by row, over all q.

    ``fresh`` ignores the old content of ``out``.
    """
    size, wide = scores.shape[0], out.shape[1]
    for p in range(size):
        best = out[p]
        q = 0
        if fresh:
            cost, row = table[p + size - 1], scores[0]
            for x in range(wide):
                best[x] = row[x] - cost
            q = 1
        while q + 4 <= size:
            k = p - q + size - 1
            s, t, u, v = table[k], table[k - 1], table[k - 2], table[k - 3]
            a, b, c, d = scores[q], scores[q + 1], scores[q + 2], scores[q + 3]
            for x in range(wide):
                e, f, g, h = a[x] - s, b[x] - t, c[x] - u, d[x] - v
                e = f if f > e else e
                g = h if h > g else g
                e = g if g > e else e
                highest = best[x]
                best[x] = e if e > highest else highest
            q += 4
        while q < size:
            cost, row = table[p - q + size - 1], scores[q]
            for x in range(wide):
                e, highest = row[x] - cost, best[x]
                best[x] = e if e > highest else highest
            q += 1
