"""Operations on rows of numbers, for kernels: what they compute, in Python; :mod:`.vector_code` is what Numba runs.

All arrays are contiguous, and those of numbers have one dtype, float32 or float64, where nothing else is said; sums
may be taken in another order.
"""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import Vectorised


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
def max_rows(maxima, scores, rows, count, fresh):
    """``maxima[k] = max(maxima[k], scores[j] + rows[j, k])`` over the first ``count`` rows, exactly.

    Args:
        maxima: ``[at least K]``.
        scores: ``[at least count]``.
        rows: ``[at least count, K]``.
        count: Integer.
        fresh: Whether the old ``maxima`` are ignored.
    """
    held = maxima[: rows.shape[1]]
    found = (scores[:count, None] + rows[:count]).max(0)
    held[:] = found if fresh else np.maximum(held, found)


@Vectorised
def dot(a, b):
    """``<a, b>`` in their dtype; each array is taken as one row, and ``b`` is at least as long as ``a``."""
    return np.dot(a.reshape(-1), b.reshape(-1)[: a.size])


@Vectorised
def exact_dot(a, b):
    """:func:`dot` in float64; each array may have its own dtype."""
    return np.dot(a.reshape(-1).astype(np.float64), b.reshape(-1)[: a.size].astype(np.float64))


@Vectorised
def exact_sums(a, b):
    """:func:`exact_dot`, the sum of ``a`` and the sum of its absolute values, in float64."""
    return exact_dot(a, b), a.sum(dtype=np.float64), np.abs(a).sum(dtype=np.float64)
