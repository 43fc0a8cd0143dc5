"""Operations on rows of numbers, for kernels: what they compute, in Python; :mod:`.vector_code` is what Numba runs.

All arrays are contiguous, and those of numbers have one dtype, float32 or float64, where nothing else is said; sums
may be taken in another order.
"""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import Vectorised, njit


@Vectorised
def set_row(out, row, factor, shift):
    """``out = factor row + shift``, over the shorter of the two; each array is taken as one row.

    Args:
        out: Any shape.
        row: Any shape, and may be ``out``; None is 0.
        factor, shift: Numbers; None is 1, and nothing.
    """
    for k in range(out.size if row is None else min(out.size, row.size)):
        value = 0 if row is None else row.flat[k]
        out.flat[k] = (value if factor is None else out.dtype.type(factor) * value) + out.dtype.type(shift or 0)


@Vectorised
def add_row(out, row, factor):
    """``out += factor row``, over the shorter of the two; see :func:`set_row`. ``out`` may have a wider dtype."""
    for k in range(min(out.size, row.size)):
        out.flat[k] += row.flat[k] if factor is None else out.dtype.type(factor) * row.flat[k]


@Vectorised
def add_rows(total, rows, chosen, weights, begin, end):
    """``total += sum_p weights[p] rows[chosen[p]]`` over p in ``begin`` to ``end - 1``.

    Args:
        total: ``[K]``.
        rows: ``[*, at least K]``.
        chosen: Integers; None is p itself.
        weights: Numbers; None is 1.
        begin, end: Integers.
    """
    for p in range(begin, end):
        row = rows[p if chosen is None else chosen[p]]
        total += row[: len(total)] * (1 if weights is None else weights[p])


@Vectorised
def add_to_rows(rows, chosen, weights, begin, end, row, factor):
    """``rows[chosen[p]] += weights[p] factor row`` for p in ``begin`` to ``end - 1``; see :func:`add_rows`."""
    row = row.dtype.type(factor) * row
    for p in range(begin, end):
        rows[p if chosen is None else chosen[p], : len(row)] += row * (1 if weights is None else weights[p])


@Vectorised
def max_rows(maxima, scores, rows, count, fresh, sums, finish):
    """``maxima[k] = max(maxima[k], scores[j] + rows[j, k])`` over the first ``count`` rows, exactly.

    Args:
        maxima: ``[at least K]``.
        scores: ``[at least count]``.
        rows: ``[at least count, K]``.
        count: Integer.
        fresh: Whether the old ``maxima`` are ignored.
        sums: ``[at least K]``.
        finish: Whether ``sums += maxima`` at the end.
    """
    held = maxima[: rows.shape[1]]
    found = (scores[:count, None] + rows[:count]).max(0)
    held[:] = found if fresh else np.maximum(held, found)
    if finish:
        sums[: rows.shape[1]] += held


@Vectorised
def max_rows_of_two(maxima, scores, sums, others, other_scores, other_sums, rows, count, fresh, finish):
    """:func:`max_rows` for two rows of scores with the same ``rows``, which are read once for both."""
    max_rows(maxima, scores, rows, count, fresh, sums, finish)
    max_rows(others, other_scores, rows, count, fresh, other_sums, finish)


@Vectorised
def first_equal(scores, rows, column, count, value):
    """The smallest j below ``count`` with ``scores[j] + rows[j, column] == value``; 0 if there is none.

    Args:
        scores: ``[at least count]``.
        rows: ``[at least count, more than column]``; None is 0.
        column: Integer.
        count: Integer.
        value: A number.
    """
    found = scores[:count] if rows is None else scores[:count] + rows[:count, column]
    return int(np.argmax(found == value)) if count else 0


@Vectorised
def largest_sum(a, b):
    """The largest ``a[k] + b[k]``, exactly; each array is taken as one row, and ``b`` is at least as long as ``a``.

    No numbers have -inf.
    """
    return (a.reshape(-1) + b.reshape(-1)[: a.size]).max(initial=-np.inf)


@Vectorised
def dot(a, b):
    """``<a, b>`` in their dtype; each array is taken as one row, and ``b`` is at least as long as ``a``."""
    return np.dot(a.reshape(-1), b.reshape(-1)[: a.size])


@Vectorised
def exact_dot(a, b):
    """:func:`dot` in float64; each array may have its own dtype."""
    return np.dot(a.reshape(-1).astype(np.float64), b.reshape(-1)[: a.size].astype(np.float64))


@Vectorised
def exact_sums(a, b, count, sums):
    """:func:`exact_dot`, the sum of ``a`` and the sum of its absolute values, for the first ``count`` rows.

    Args:
        a, b: Matrices; the shorter of the two widths counts.
        count: Integer.
        sums: ``[at least count, 3]`` float64, to be filled.
    """
    width = min(a.shape[1], b.shape[1])
    for t in range(count):
        row = a[t, :width]
        sums[t] = exact_dot(row, b[t]), row.sum(dtype=np.float64), np.abs(row).sum(dtype=np.float64)


@Vectorised
def set_rows(out, rows, chosen, count, factor, shifts):
    """``out[t] = factor rows[t] + shifts[t]`` for some t, over the shorter of the two widths.

    Args:
        out: ``[*, *]``.
        rows: ``[*, *]``, and may be ``out``; None is 0.
        chosen: Integers, of which the first ``count`` are the t; None takes 0 to ``count - 1``.
        count: Integer.
        factor: A number; None is 1.
        shifts: ``[*]``; None is 0.
    """
    width = out.shape[1] if rows is None else min(out.shape[1], rows.shape[1])
    for t in range(count) if chosen is None else chosen[:count]:
        row = 0 if rows is None else rows[t, :width] * (1 if factor is None else out.dtype.type(factor))
        out[t, :width] = row if shifts is None else row + shifts[t]


@Vectorised
def add_each(out, rows, chosen, count, factor):
    """``out[t] += factor rows[t]`` for some t; see :func:`set_rows`."""
    width = min(out.shape[1], rows.shape[1])
    for t in range(count) if chosen is None else chosen[:count]:
        out[t, :width] += out.dtype.type(factor) * rows[t, :width]


@Vectorised
def sum_listed(out, initial, rows, chosen, weights, starts, count):
    """``out[t] = initial + sum_p weights[p] rows[chosen[p]]`` over the places p of list t, for the first lists.

    Args:
        out: ``[at least count, K]``.
        initial: ``[at least K]``.
        rows: ``[*, at least K]``.
        chosen: Integers.
        weights: Numbers; None is 1.
        starts: ``[at least count + 1]`` integers, where each list begins.
        count: Integer.
    """
    for t in range(count):
        out[t] = initial[: out.shape[1]]
        add_rows(out[t], rows, chosen, weights, starts[t], starts[t + 1])


@Vectorised
def add_to_listed(rows, chosen, weights, starts, added, used, count, factor):
    """``rows[chosen[p]] += weights[p] factor added[t]`` for the places p of list t, for the first lists.

    Args:
        rows, chosen, weights, starts, count: See :func:`sum_listed`.
        added: ``[at least count, K]``.
        used: ``[at least count]``; lists for which it is 0 are left out.
        factor: A number.
    """
    for t in range(count):
        if used[t] != 0.0:
            add_to_rows(rows, chosen, weights, starts[t], starts[t + 1], added[t], factor)


@Vectorised
def exact_dots(a, b, chosen, count):
    """The sum of ``<a[t], b[t]>`` in float64 for some t, over the shorter of the two widths; see :func:`set_rows`."""
    width = min(a.shape[1], b.shape[1])
    places = np.arange(count) if chosen is None else chosen[:count]
    return exact_dot(a[places, :width].copy(), b[places, :width].copy())


@Vectorised
def quadratic(rows, count, products, squares):
    """``sum_tu products[t, u] <rows[t], rows[u]>`` over the first ``count`` rows.

    Args:
        rows: ``[at least count, K]``.
        count: Integer.
        products: The lower triangle of a symmetric matrix, row after row.
        squares: ``[at least count]`` float64, gets ``|rows[t]|^2``.
    """
    matrix = np.zeros((count, count))
    matrix[np.tril_indices(count)] = products[: count * (count + 1) // 2]
    exact = rows[:count].astype(np.float64)
    squares[:count] = (exact**2).sum(1)
    gram = exact @ exact.T
    return 2.0 * (np.tril(matrix, -1) * gram).sum() + (np.diag(matrix) * np.diag(gram)).sum()


_RUN = 12  # numbers that are sorted by insertion


@njit
def sort_falling(keys, order, count, room):
    """Sort ``order[:count]`` by falling ``keys[order]``; of equal keys the first stays first. NaN may stand anywhere.

    Args:
        keys: Numbers.
        order: ``[at least count]`` integers, places in ``keys``.
        count: Integer.
        room: ``[at least count]`` integers.
    """
    for begin in range(0, count, _RUN):
        for p in range(begin + 1, min(begin + _RUN, count)):
            own, q = order[p], p
            while q > begin and keys[order[q - 1]] < keys[own]:
                order[q] = order[q - 1]
                q -= 1
            order[q] = own
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
