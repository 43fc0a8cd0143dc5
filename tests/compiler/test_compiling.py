"""Compilation is announced once for an installation, and clocks do not count it."""

import time

import numba
from cases.python_process import fresh_python

from torchssvm.compiler import jit
from torchssvm.compiler.jit import njit

PROGRAM = """
import os, sys, time
os.environ["NUMBA_CACHE_DIR"], sys.stderr = {folder!r}, sys.stdout
import numba
import numpy as np
from torchssvm.compiler.jit import clock
from torchssvm.structures.chain.oracle import sum_scores
labels, pairs, total = np.zeros((2, 1, 3), np.int64), np.zeros((1, 1, 4, 4)), np.zeros((2, 1))
began, counted = time.perf_counter(), clock()
sum_scores(labels, np.zeros((2, 3, 4)), pairs, total)
print(time.perf_counter() - began, clock() - counted)
"""


def test_the_first_process_says_so_and_no_clock_counts_it(tmp_path):
    said = []
    for _ in range(2):
        *words, figures = fresh_python(PROGRAM.format(folder=str(tmp_path))).splitlines()
        said.append(("\n".join(words), *map(float, figures.split())))
    (first, spent, counted), (second, spent_then, counted_then) = said
    assert first.count("compiles kernels") == 1
    assert f"kept in {tmp_path}" in first
    assert "compiles" not in second
    assert counted < 0.9 * spent
    assert counted_then > 0.9 * spent_then


@njit
def half(x):
    return x / 2


def test_the_clock_stands_still_within_compilations():
    assert half(3.0) == 1.5  # Numba is imported, and watched
    inner = numba.njit(lambda x: x + 1)  # kept nowhere
    outer = numba.njit(lambda x: 2 * inner(x))
    before, began = jit.clock(), time.perf_counter()
    assert outer(3) == 8  # one compilation within another
    assert jit.clock() - before < 0.5 * (time.perf_counter() - began)
