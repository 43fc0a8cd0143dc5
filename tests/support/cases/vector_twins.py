"""What the vector operations of kernels compute, in Python, where arrays have bounds."""

import sys

import numpy as np

from torchssvm.compiler.jit import Kernel, Vectorised


def set_row(out, row, factor, shift):
    for k in range(out.size if row is None else min(out.size, row.size)):
        value = 0 if row is None else row.flat[k]
        out.flat[k] = (value if factor is None else out.dtype.type(factor) * value) + out.dtype.type(shift or 0)


def add_row(out, row, factor):
    for k in range(min(out.size, row.size)):
        out.flat[k] += row.flat[k] if factor is None else out.dtype.type(factor) * row.flat[k]


def add_rows(total, rows, chosen, weights, begin, end):
    for p in range(begin, end):
        row = rows[p if chosen is None else chosen[p]]
        total += row[: len(total)] * (1 if weights is None else weights[p])


def add_to_rows(rows, chosen, weights, begin, end, row, factor):
    row = row.dtype.type(factor) * row
    for p in range(begin, end):
        rows[p if chosen is None else chosen[p], : len(row)] += row * (1 if weights is None else weights[p])


def max_rows(maxima, scores, rows, count, fresh, sums, finish):
    held = maxima[: rows.shape[1]]
    found = (scores[:count, None] + rows[:count]).max(0)
    held[:] = found if fresh else np.maximum(held, found)
    if finish:
        sums[: rows.shape[1]] += held


def max_rows_of_two(maxima, scores, sums, others, other_scores, other_sums, rows, count, fresh, finish):
    max_rows(maxima, scores, rows, count, fresh, sums, finish)
    max_rows(others, other_scores, rows, count, fresh, other_sums, finish)


def first_equal(scores, rows, column, count, value):
    found = scores[:count] if rows is None else scores[:count] + rows[:count, column]
    return int(np.argmax(found == value)) if count else 0


def largest_sum(a, b):
    return (a.reshape(-1) + b.reshape(-1)[: a.size]).max(initial=-np.inf)


def dot(a, b):
    return np.dot(a.reshape(-1), b.reshape(-1)[: a.size])


def exact_dot(a, b):
    return np.dot(a.reshape(-1).astype(np.float64), b.reshape(-1)[: a.size].astype(np.float64))


def exact_sums(a, b, count, sums):
    width = min(a.shape[1], b.shape[1])
    for t in range(count):
        row = a[t, :width]
        sums[t] = exact_dot(row, b[t]), row.sum(dtype=np.float64), np.abs(row).sum(dtype=np.float64)


def set_rows(out, rows, chosen, count, factor, shifts):
    width = out.shape[1] if rows is None else min(out.shape[1], rows.shape[1])
    for t in range(count) if chosen is None else chosen[:count]:
        row = 0 if rows is None else rows[t, :width] * (1 if factor is None else out.dtype.type(factor))
        out[t, :width] = row if shifts is None else row + shifts[t]


def add_each(out, rows, chosen, count, factor):
    width = min(out.shape[1], rows.shape[1])
    for t in range(count) if chosen is None else chosen[:count]:
        out[t, :width] += out.dtype.type(factor) * rows[t, :width]


def sum_listed(out, initial, rows, chosen, weights, starts, count):
    for t in range(count):
        out[t] = initial[: out.shape[1]]
        add_rows(out[t], rows, chosen, weights, starts[t], starts[t + 1])


def add_to_listed(rows, chosen, weights, starts, added, used, count, factor):
    for t in range(count):
        if used[t] != 0.0:
            add_to_rows(rows, chosen, weights, starts[t], starts[t + 1], added[t], factor)


def exact_dots(a, b, chosen, count):
    width = min(a.shape[1], b.shape[1])
    places = np.arange(count) if chosen is None else chosen[:count]
    return exact_dot(a[places, :width].copy(), b[places, :width].copy())


def quadratic(rows, count, products, squares):
    matrix = np.zeros((count, count))
    matrix[np.tril_indices(count)] = products[: count * (count + 1) // 2]
    exact = rows[:count].astype(np.float64)
    squares[:count] = (exact**2).sum(1)
    gram = exact @ exact.T
    return 2.0 * (np.tril(matrix, -1) * gram).sum() + (np.diag(matrix) * np.diag(gram)).sum()


def call_twin(operation, *rows):
    """In place of ``Vectorised.__call__``."""
    return getattr(sys.modules[__name__], operation.name)(*rows)


def run_in_python(monkeypatch):
    """Run all kernels in Python, which checks the bounds of arrays."""
    monkeypatch.setattr(Kernel, "dispatcher", property(lambda kernel: kernel.py_func))
    monkeypatch.setattr(Vectorised, "__call__", call_twin)
