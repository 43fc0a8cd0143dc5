"""What this machine can do at most, on one thread: multiply-adds, adds with maxima, bytes a second.

The loops are compiled by Numba and work on arrays that stay in registers or in one level of the memory. A ceiling is
the best of several runs, and of several ways to get there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import torch

from .measuring import best_of

SIZES = {"L1": 2**11, "L2": 2**16, "memory": 2**26}  # float32 numbers in each of the three arrays of the triad


class Ceilings(NamedTuple):
    """Operations and bytes a second of one thread; a multiply-add counts as two, and so does an add with a maximum."""

    multiply_add: float
    max_plus: float
    triad: dict[str, float]

    def seconds(self, operations: float, max_plus: float, traffic: float, level: str, threads: int = 1) -> float:
        """The least time for so much work: arithmetic and memory may overlap, the two kinds of arithmetic may not."""
        arithmetic = operations / self.multiply_add + max_plus / self.max_plus
        return max(arithmetic, traffic / self.triad[level]) / threads


@nb.njit(fastmath=True)
def _multiply_add(repeats: Any, start: Any, factor: Any, term: Any) -> Any:
    x = start.copy()
    for _ in range(repeats):
        for k in range(128):
            x[k] = x[k] * factor + term
    return x


@nb.njit
def _max_plus(repeats: Any, start: Any, term: Any, least: Any) -> Any:
    x = start.copy()
    for _ in range(repeats):
        for k in range(128):
            value = x[k] + term
            x[k] = value if value > least else least
    return x


@nb.njit
def _max_plus_rows(repeats: Any, before: Any, pairs: Any, after: Any) -> Any:
    for _ in range(repeats):
        for j in range(0, 32, 4):
            for k in range(32):
                best = after[k]
                for i in range(4):
                    value = before[j + i] + pairs[j + i, k]
                    best = value if value > best else best
                after[k] = best
    return after


@nb.njit
def _triad(repeats: Any, a: Any, b: Any, c: Any, factor: Any) -> None:
    for _ in range(repeats):
        for k in range(len(a)):
            a[k] = b[k] + factor * c[k]


def measure_ceilings(quick: bool = False) -> Ceilings:
    """The ceilings of one thread, now."""
    seconds, repeats = (0.05, 2000) if quick else (0.5, 200_000)
    numbers = np.linspace(0.0, 1.0, 128, dtype=np.float32)
    half, small = np.float32(0.5), np.float32(0.001)
    pairs = np.linspace(0.0, 1.0, 32 * 32, dtype=np.float32).reshape(32, 32)
    row = np.zeros(32, np.float32)

    def rate(work: float, call: Any) -> float:
        call()  # compiles
        return work / best_of(call, seconds)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    multiply_add = max(
        rate(2.0 * 128 * repeats, lambda: _multiply_add(repeats, numbers, half, small)),
        rate(2.0 * 1024**3, lambda: a @ b),
    )
    torch.set_num_threads(threads)
    max_plus = max(
        rate(2.0 * 128 * repeats, lambda: _max_plus(repeats, numbers, small, half)),
        rate(2.0 * 1024 * repeats / 10, lambda: _max_plus_rows(repeats // 10, numbers[:32], pairs, row)),
    )
    triad = {}
    for level, size in SIZES.items():
        size = min(size, 2**20) if quick else size
        x, y, z = (np.ones(size, np.float32) for _ in range(3))
        times = max(1, 2**22 // size)
        triad[level] = rate(12.0 * size * times, lambda x=x, y=y, z=z, times=times: _triad(times, x, y, z, half))
    return Ceilings(multiply_add, max_plus, triad)
