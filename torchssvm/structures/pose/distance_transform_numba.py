"""The loops of the distance transform, compiled by Numba."""

from __future__ import annotations

import math

from torchssvm.core.jit import njit


@njit
def transform(scores, springs, dense, begin, end, memory, places, value, place):
    """Transform the images ``begin`` to ``end - 1``, first their rows, then their columns.

    Args:
        scores: ``[B, H, W]``.
        springs: ``[B or 1, 4]`` float64: a, b, c, d.
        dense: Lines of more places than this use the envelope.
        begin: The first image.
        end: The last image plus 1.
        memory: Room for ``H * W + 2 * (H + W)`` numbers.
        places: Room for ``H * W + 2 * max(H, W)`` integers.
        value: ``[B, H, W]``, to be filled.
        place: ``[B, H, W]`` int64, to be filled with ``y * W + x``.
    """
    height, width = scores.shape[1], scores.shape[2]
    area, most = height * width, max(height, width)
    rows = memory[:area].reshape(height, width)
    table_x = memory[area : area + 2 * width - 1]
    table_y = memory[area + 2 * width : area + 2 * width + 2 * height - 1]
    columns = places[:area].reshape(height, width)  # the best place of each row
    owner, start = places[area : area + most], places[area + most : area + 2 * most]
    for i in range(begin, end):
        spring = springs[i if springs.shape[0] > 1 else 0]
        fill_table(table_x, spring[0], spring[1])
        fill_table(table_y, spring[2], spring[3])
        out, found = value[i], place[i]
        for y in range(height):
            if width > dense:
                _by_envelope(scores[i, y], spring[0], spring[1], table_x, rows[y], columns[y], owner, start)
            else:
                _row(scores[i, y], table_x, rows[y], columns[y])
        if height > dense:
            for x in range(width):
                _by_envelope(rows[:, x], spring[2], spring[3], table_y, out[:, x], found[:, x], owner, start)
        else:
            _columns(rows, table_y, out, found)
        for y in range(height):
            for x in range(width):
                found[y, x] = found[y, x] * width + columns[found[y, x], x]


@njit
def fill_table(table, curvature, slope):
    """The cost of every displacement from 1 - n to n - 1."""
    size = (table.shape[0] + 1) // 2
    for k in range(2 * size - 1):
        d = float(k - size + 1)
        table[k] = curvature * d * d + slope * d


@njit
def _row(scores, table, out, found):
    """All pairs of places of one line, vectorised over the target place p."""
    size = scores.shape[0]
    first, score = table[size - 1 :], scores[0]
    for p in range(size):
        out[p] = score - first[p]
        found[p] = 0
    for q in range(1, size):
        first, score = table[size - 1 - q :], scores[q]
        for p in range(size):
            v, best, held = score - first[p], out[p], found[p]
            out[p] = v if v > best else best
            found[p] = q if v > best else held


@njit
def _columns(scores, table, out, found):
    """All pairs of places of all columns at once."""
    size, width = scores.shape
    for p in range(size):
        best, place = out[p], found[p]
        cost, row = table[p + size - 1], scores[0]
        for x in range(width):
            best[x] = row[x] - cost
            place[x] = 0
        for q in range(1, size):
            cost, row = table[p - q + size - 1], scores[q]
            for x in range(width):
                v, high, held = row[x] - cost, best[x], place[x]
                best[x] = v if v > high else high
                place[x] = q if v > high else held


@njit
def _by_envelope(scores, curvature, slope, table, out, found, owner, start):
    """One line in O(n): the upper envelope of the parabolas ``scores[q] - a (p - q)^2 - b (p - q)``.

    Parabola j lies strictly above an earlier one, i, at the places right of ``s = (h_i - h_j) / (2 a (j - i))`` with
    ``h_q = scores[q] - a q^2 + b q``; so ties go to the first.
    """
    size = scores.shape[0]
    top = -1
    if curvature == 0.0:  # parallel straight lines: the highest one is highest everywhere
        for j in range(size):
            if top < 0 or scores[j] + slope * j > scores[owner[0]] + slope * owner[0]:
                top, owner[0], start[0] = 0, j, 0
    else:
        for j in range(size):
            if scores[j] == -math.inf:
                continue
            height, begin = scores[j] - curvature * j * j + slope * j, 0
            while top >= 0:
                i = owner[top]
                other = scores[i] - curvature * i * i + slope * i
                crossing = (other - height) / (2.0 * curvature * (j - i))
                begin = 0 if crossing < 0.0 else (size if crossing >= size else int(crossing) + 1)
                if begin > start[top]:
                    break
                top, begin = top - 1, 0
            if begin < size:
                top += 1
                owner[top], start[top] = j, begin
        if top < 0:
            top, owner[0], start[0] = 0, 0, 0
    piece = 0
    for p in range(size):
        while piece < top and start[piece + 1] <= p:
            piece += 1
        q = owner[piece]
        out[p] = scores[q] - table[p - q + size - 1]
        found[p] = q
