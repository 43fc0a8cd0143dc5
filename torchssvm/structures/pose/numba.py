"""The loops of max-sum on trees with places on a grid, and of its max-convolutions, compiled by Numba.

Costs are tables of 2 n - 1 numbers, n the size of the axis: ``table[p - q + n - 1]`` is the cost from place q to place
p. Maxima are written ``v if v > r else r``: LLVM then vectorises them without fast-math, and rounding and ties follow
the order of the code. The loops are O(n^2) for each line; in vector registers and without maximisers, they are faster
than O(n) envelopes up to a few hundred places.
"""

from __future__ import annotations

from torchssvm.core.jit import njit


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
                _add_own(scores, beliefs[v], kinds[b, e, 0])
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
def _add_own(out, belief, scores):
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
        best, found, one, two = message[y], best_kind[y], scores[y], reached[y]
        for x in range(scores.shape[1]):
            v = one[x] + two[x]
            if t == 0 or v > best[x]:
                best[x], found[x] = v, t


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
            row, own = belief[y], scores[s, y]
            for x in range(width):
                k = x - px + width - 1
                found = row[x] + own[x] - (costs_x[0, s, k] + costs_x[1, t, k]) - cost
                if first or found > best:
                    first, best = False, found
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
                held = best[p]
                best[p] = v if v > held else held
            q += 4
        while q < size:
            a = row[q]
            first = table[size - 1 - q : size - 1 - q + wide]
            for p in range(wide):
                v, held = a - first[p], best[p]
                best[p] = v if v > held else held
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
                held = best[x]
                best[x] = e if e > held else held
            q += 4
        while q < size:
            cost, row = table[p - q + size - 1], scores[q]
            for x in range(wide):
                e, held = row[x] - cost, best[x]
                best[x] = e if e > held else held
            q += 1
