"""Operations on rows of numbers, for kernels: in plain loops here, in vectors of LLVM in :mod:`.vector_code`.

Kernels get the vectors; stock Numba and Python run the loops. All arrays are contiguous. Their numbers have one dtype,
float32 or float64, where nothing else is said. Sums may be taken in another order; maxima are exact.
"""

from __future__ import annotations

from math import inf

import numpy as np

from torchssvm.compiler.jit import njit, vectorised, vectorised_sum


@vectorised
def max_rows(maxima, scores, rows, count, fresh, sums, finish):
    """``maxima[k] = max(maxima[k], scores[j] + rows[j, k])`` over the first ``count`` rows, exactly.

    Args:
        maxima: ``[at least K]``.
        scores: ``[at least count]``.
        rows: ``[at least count, K]``.
        fresh: Whether the old ``maxima`` are ignored.
        sums: ``[at least K]``.
        finish: Whether ``sums += maxima`` at the end.
    """
    width = rows.shape[1]
    if fresh:
        maxima[:width] = -inf
    for j in range(count):
        for k in range(width):
            value = scores[j] + rows[j, k]
            maxima[k] = value if value > maxima[k] else maxima[k]
    if finish:
        for k in range(width):
            sums[k] += maxima[k]


@vectorised
def max_rows_of_two(maxima, scores, sums, others, other_scores, other_sums, rows, count, fresh, finish):
    """:func:`max_rows` for two rows of scores with the same ``rows``, which are read once for both."""
    width = rows.shape[1]
    if fresh:
        maxima[:width] = -inf
        others[:width] = -inf
    for j in range(count):
        for k in range(width):
            value, other = scores[j] + rows[j, k], other_scores[j] + rows[j, k]
            maxima[k] = value if value > maxima[k] else maxima[k]
            others[k] = other if other > others[k] else others[k]
    if finish:
        for k in range(width):
            sums[k] += maxima[k]
            other_sums[k] += others[k]


@vectorised
def prefetch(array):
    """Ask for the first 4096 bytes of a contiguous array, which will be read soon; changes nothing."""


@vectorised
def first_equal(scores, rows, column, count, value):
    """The smallest j below ``count`` with ``scores[j] + rows[j, column] == value``; 0 if there is none.

    Args:
        scores: ``[at least count]``.
        rows: ``[at least count, more than column]``; None is 0.
    """
    for j in range(count):
        if (scores[j] if rows is None else scores[j] + rows[j, column]) == value:
            return j
    return 0


@vectorised
def largest_sum(a, b):
    """The largest ``a[k] + b[k]``, exactly; each array is taken as one row, and ``b`` is at least as long as ``a``.

    It is -inf where there are no numbers.
    """
    row, other, largest = a.reshape(a.size), b.reshape(b.size), a.dtype.type(-inf)
    for k in range(a.size):
        value = row[k] + other[k]
        largest = value if value > largest else largest
    return largest


@vectorised_sum
def add_rows(total, rows, chosen, weights, begin, end):
    """``total += sum_p weights[p] rows[chosen[p]]`` over p in ``begin`` to ``end - 1``.

    Args:
        total: ``[K]``.
        rows: ``[*, at least K]``.
        chosen: Integers; None is p itself.
        weights: Numbers; None is 1.
    """
    for p in range(begin, end):
        row = p if chosen is None else chosen[p]
        for k in range(total.size):
            total[k] += rows[row, k] if weights is None else weights[p] * rows[row, k]


@vectorised_sum
def add_to_rows(rows, chosen, weights, begin, end, row, factor):
    """``rows[chosen[p]] += weights[p] factor row`` for p in ``begin`` to ``end - 1``; see :func:`add_rows`."""
    scale = rows.dtype.type(factor)
    for p in range(begin, end):
        place = p if chosen is None else chosen[p]
        each = scale if weights is None else scale * weights[p]
        for k in range(row.size):
            rows[place, k] += each * row[k]


@vectorised_sum
def set_rows(out, rows, chosen, count, factor, shifts):
    """``out[t] = factor rows[t] + shifts[t]`` for some t, over the shorter of the two widths.

    Args:
        out: ``[*, *]``.
        rows: ``[*, *]``, and may be ``out``; None is 0.
        chosen: Integers, of which the first ``count`` are the t; None takes 0 to ``count - 1``.
        factor: A number; None is 1.
        shifts: ``[*]``; None is 0.
    """
    width = out.shape[1] if rows is None else min(out.shape[1], rows.shape[1])
    scale = out.dtype.type(1.0 if factor is None else factor)
    for p in range(count):
        t = p if chosen is None else chosen[p]
        shift = out.dtype.type(0.0) if shifts is None else shifts[t]
        for k in range(width):
            out[t, k] = shift if rows is None else scale * rows[t, k] + shift


@vectorised_sum
def set_row(out, row, factor, shift):
    """``out = factor row + shift``, over the shorter of the two; each array is taken as one row.

    Args:
        out: Any shape.
        row: Any shape, and may be ``out``; None is 0.
        factor, shift: Numbers; None is 1, and nothing.
    """
    left, plus = out.reshape(out.size), out.dtype.type(0.0 if shift is None else shift)
    scale = out.dtype.type(1.0 if factor is None else factor)
    if row is None:
        for k in range(out.size):
            left[k] = plus
    else:
        right = row.reshape(row.size)
        for k in range(min(out.size, row.size)):
            left[k] = scale * right[k] + plus


@vectorised_sum
def add_row(out, row, factor):
    """``out += factor row``, over the shorter of the two; see :func:`set_row`. ``out`` may have a wider dtype."""
    left, right = out.reshape(out.size), row.reshape(row.size)
    scale = out.dtype.type(1.0 if factor is None else factor)
    for k in range(min(out.size, row.size)):
        left[k] += scale * right[k]


@vectorised_sum
def dot(a, b):
    """``<a, b>`` in their dtype; each array is taken as one row, and ``b`` is at least as long as ``a``."""
    row, other, total = a.reshape(a.size), b.reshape(b.size), a.dtype.type(0.0)
    for k in range(a.size):
        total += row[k] * other[k]
    return total


@vectorised_sum
def exact_dot(a, b):
    """:func:`dot` in float64; the dtypes of the arrays may differ."""
    row, other, total = a.reshape(a.size), b.reshape(b.size), 0.0
    for k in range(a.size):
        total += np.float64(row[k]) * np.float64(other[k])
    return total


@vectorised_sum
def exact_sums(a, b, count, sums):
    """:func:`exact_dot`, the sum of ``a`` and the sum of its absolute values, for the first ``count`` rows.

    Args:
        a, b: Matrices; the shorter of the two widths counts.
        sums: ``[at least count, 3]`` float64, to be filled.
    """
    for t in range(count):
        sums[t] = 0.0
        for k in range(min(a.shape[1], b.shape[1])):
            value = np.float64(a[t, k])
            sums[t, 0] += value * np.float64(b[t, k])
            sums[t, 1] += value
            sums[t, 2] += abs(value)


@vectorised_sum
def exact_dots(a, b, chosen, count):
    """The sum of ``<a[t], b[t]>`` in float64 for some t, over the shorter of the two widths; see :func:`set_rows`."""
    total = 0.0
    for p in range(count):
        t = p if chosen is None else chosen[p]
        for k in range(min(a.shape[1], b.shape[1])):
            total += np.float64(a[t, k]) * np.float64(b[t, k])
    return total


@vectorised_sum
def quadratic(rows, count, products, squares):
    """``sum_tu products[t, u] <rows[t], rows[u]>`` over the first ``count`` rows.

    Args:
        rows: ``[at least count, K]``.
        products: The lower triangle of a symmetric matrix, row after row.
        squares: ``[at least count]`` float64, gets ``|rows[t]|^2``.
    """
    total = 0.0
    for t in range(count):
        line = t * (t + 1) // 2
        squares[t] = 0.0
        for k in range(rows.shape[1]):
            squares[t] += np.float64(rows[t, k]) * np.float64(rows[t, k])
        if squares[t] > 0.0:
            total += products[line + t] * squares[t]
            for u in range(t):
                if squares[u] > 0.0:
                    both = 0.0
                    for k in range(rows.shape[1]):
                        both += np.float64(rows[t, k]) * np.float64(rows[u, k])
                    total += 2.0 * products[line + u] * both
    return total


_RUN = 12  # numbers that are sorted by insertion


@njit
def sort_falling(keys, order, count, room):
    """Sort ``order[:count]``, places in ``keys``, by falling ``keys[order]``; of equal keys the first stays first.

    NaN may stand anywhere. ``order`` and ``room`` are ``[at least count]`` integers.
    """
    for begin in range(0, count, _RUN):
        for p in range(begin + 1, min(begin + _RUN, count)):
            place, q = order[p], p
            while q > begin and keys[order[q - 1]] < keys[place]:
                order[q] = order[q - 1]
                q -= 1
            order[q] = place
    width = _RUN
    while width < count:
        for begin in range(0, count - width, 2 * width):
            middle, end = begin + width, min(begin + 2 * width, count)
            for p in range(begin, middle):
                room[p] = order[p]
            p, q, place = begin, middle, begin
            while p < middle and q < end:
                if keys[room[p]] < keys[order[q]]:
                    order[place] = order[q]
                    q += 1
                else:
                    order[place] = room[p]
                    p += 1
                place += 1
            while p < middle:
                order[place] = room[p]
                p += 1
                place += 1
        width *= 2
