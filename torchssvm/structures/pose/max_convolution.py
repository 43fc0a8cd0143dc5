"""Max-convolution of an image with a cost of the displacement along one axis, compiled by Numba.

Costs are tables of 2 n - 1 numbers, n the size of the axis: ``table[p - q + n - 1]`` is the cost from place q to place
p. Maxima are written ``v if v > r else r``: LLVM then vectorises them without fast-math, and rounding and ties follow
the order of the code. The loops are O(n^2) for each line; in vector registers and without maximisers, they are faster
than O(n) envelopes up to a few hundred places.
"""

from __future__ import annotations

from torchssvm.core.jit import njit


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
