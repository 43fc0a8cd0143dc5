"""The factorwise maximisation oracle by brute force over all pairs: for small domains, and for tests."""

from __future__ import annotations

import numpy as np

from torchssvm.solvers.gdmm.entry_heaps import COUNT
from torchssvm.solvers.gdmm.sorted_entries import SortedEntries


def dense(entries: SortedEntries) -> np.ndarray:
    """v, ``[rows, cols]`` float64; of a symmetric matrix both halves."""
    count = entries.counters[COUNT]
    row, col, value = entries.row[:count], entries.col[:count], entries.value[:count]
    values = np.zeros((entries.rows, entries.cols))
    values[row, col] = value
    if entries.symmetric:
        values[col, row] = value
    return values


def brute_force_fmo(
    values: np.ndarray, left_force: np.ndarray, right_force: np.ndarray, allowed: np.ndarray | None = None
) -> tuple[float, int, int]:
    """Maximise v[a, b] - F_left(a) - F_right(b): ``(value, a, b)``, the first of equal maxima.

    Args:
        values: ``[A, B]`` float64.
        left_force: ``[A]`` float64.
        right_force: ``[B]`` float64.
        allowed: ``[A, B]`` bool, the pairs to consider; None for all. Without any, returns ``(-inf, -1, -1)``.
    """
    total = values - left_force[:, None] - right_force[None, :]
    if allowed is not None:
        if not allowed.any():
            return -np.inf, -1, -1
        total = np.where(allowed, total, -np.inf)
    a, b = np.unravel_index(total.argmax(), total.shape)
    return float(total[a, b]), int(a), int(b)
