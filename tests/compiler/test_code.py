"""Compiled kernels compute what Python does: slices, loops over range, variables of several blocks."""

import gc
import itertools

import numpy as np
import pytest

from torchssvm.compiler.jit import njit

BOUNDS = (-9, -5, -2, 0, 1, 3, 5, 8)


@njit
def copy_slice(rows, begin, end, out):
    part = rows[begin:end]
    for t in range(len(part)):
        out[t] = part[t, 0] + 10 * part[t, 1]
    return len(part), part.size, part.shape[1]


@njit
def copy_open_slices(row, bound, out):
    head, tail, every = row[:bound], row[bound:], row[:]
    for t in range(len(head)):
        out[t] += head[t]
    for t in range(len(tail)):
        out[t] += 10 * tail[t]
    for t in range(len(every)):
        out[t] += 100 * every[t]
    return len(head), len(tail), len(every)


@pytest.mark.parametrize(("begin", "end"), [*itertools.product(BOUNDS, BOUNDS)])
def test_a_slice_of_rows(begin, end):
    rows, out, wanted = np.arange(10.0).reshape(5, 2), np.zeros(5), np.zeros(5)
    assert copy_slice(rows, begin, end, out) == copy_slice.py_func(rows, begin, end, wanted)
    assert (out == wanted).all()


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_slice_with_one_bound(bound):
    row, out, wanted = np.arange(1.0, 6.0), np.zeros(5), np.zeros(5)
    assert copy_open_slices(row, bound, out) == copy_open_slices.py_func(row, bound, wanted)
    assert (out == wanted).all()


@njit
def list_ranges(begin, end, step, out):
    count = 0
    for t in range(end):
        out[count] = t
        count += 1
    for t in range(begin, end):
        for u in range(t, end):
            out[count] = 10 * t + u
            count += 1
    for t in range(begin, end, step):
        out[count] = 100 * t
        count += 1
    return count


@pytest.mark.parametrize(("begin", "end", "step"), [(0, 4, 1), (1, 6, 2), (5, 0, -2), (3, 3, 1), (4, 2, 1), (-2, 3, 4)])
def test_loops_over_range(begin, end, step):
    out, wanted = np.zeros(60), np.zeros(60)
    assert list_ranges(begin, end, step, out) == list_ranges.py_func(begin, end, step, wanted)
    assert (out == wanted).all()


@njit
def read_elsewhere(numbers, limit):
    first, total = numbers[0], 0.0
    for t in range(len(numbers)):
        if numbers[t] > limit:
            last = numbers[t]  # its one assignment does not come before every use
        if t > 2:
            twice = 2.0 * last + first
            for _ in range(2):
                total += twice
    return total


def test_a_variable_that_other_blocks_read():
    numbers = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0])
    assert read_elsewhere(numbers, 2.0) == read_elsewhere.py_func(numbers, 2.0)


@njit
def add_one(x):
    return x + 1


def test_the_garbage_collector_is_as_before_a_compilation():
    assert gc.isenabled()
    assert add_one(np.int16(1)) == 2
    assert gc.isenabled()
    gc.disable()
    try:
        assert add_one(np.int8(1)) == 2
        assert not gc.isenabled()
    finally:
        gc.enable()
