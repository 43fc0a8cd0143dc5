"""Vector operations against the Python functions that define them, for rows of any length, at any place in memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from torchssvm.core import vectors
from torchssvm.core.jit import njit
from torchssvm.core.vectors import add_row, add_rows, add_to_rows, dot, exact_dot, exact_sums, max_rows, set_row

LENGTHS = [*range(1, 36), 47, 48, 49, 63, 64, 65, 95, 97]


@njit
def run_add(total, rows, chosen, weights, begin, end):
    add_rows(total, rows, chosen, weights, begin, end)


@njit
def run_add_to(rows, chosen, weights, begin, end, row, factor):
    add_to_rows(rows, chosen, weights, begin, end, row, factor)


@njit
def run_set(out, row, factor, shift):
    set_row(out, row, factor, shift)


@njit
def run_add_row(out, row, factor):
    add_row(out, row, factor)


@njit
def run_max(maxima, scores, rows, count, fresh):
    max_rows(maxima, scores, rows, count, fresh)


@njit
def run_sums(a, b, out):
    out[0], out[1] = dot(a, b), exact_dot(a, b)
    out[2], out[3], out[4] = exact_sums(a, b)


@njit
def run_exact(a, b):
    return exact_dot(a, b)


@pytest.fixture(params=[np.float32, np.float64])
def draw(request):
    chance = np.random.default_rng(0)

    def make(*shape):
        numbers = chance.standard_normal(int(np.prod(shape)) + 3).astype(request.param)
        return numbers[chance.integers(4) :][: int(np.prod(shape))].reshape(shape)  # not aligned to a vector

    return make


def close(found, wanted):
    assert np.allclose(found, wanted, rtol=0.0, atol=200 * np.finfo(found.dtype).eps)


@pytest.mark.parametrize("listed", [True, False])
def test_sums_of_rows_and_sums_into_rows(draw, listed):
    chance = np.random.default_rng(1)
    for length in LENGTHS:
        for count in (0, 1, 2, 5):
            rows, total, row = draw(7, length + length % 3), draw(length), draw(length)
            chosen = chance.integers(7, size=count).astype(np.int32) if listed else None
            weights = draw(count) if listed else None
            wanted = total.copy()
            add_rows(wanted, rows, chosen, weights, 0, count)
            run_add(total, rows, chosen, weights, 0, count)
            close(total, wanted)
            others = rows.copy()
            add_to_rows(others, chosen, weights, 0, count, row, -0.7)
            run_add_to(rows, chosen, weights, 0, count, row, -0.7)
            close(rows, others)


@pytest.mark.parametrize("fresh", [True, False])
def test_largest_sums_are_exact(draw, fresh):
    for length in LENGTHS:
        rows, scores, maxima = draw(6, length), draw(6), draw(length + 2)
        rows[1, : length // 2] = -np.inf
        for count in (1, 2, 5, 6):
            wanted, found = maxima.copy(), maxima.copy()
            max_rows(wanted, scores, rows, count, fresh)
            run_max(found, scores, rows, count, fresh)
            assert np.array_equal(found, wanted)


@pytest.mark.parametrize("factor", [None, 0.3])
def test_one_row(draw, factor):
    for shape in [(length,) for length in [0, *LENGTHS, 884]] + [(26, 34)]:
        for longer in (0, 3) if len(shape) == 1 else (0,):
            for shift in (None, -1.5):
                row, out = draw(*shape), draw(shape[0] + longer, *shape[1:])
                for source in (row, out, None):
                    wanted, found = out.copy(), out.copy()
                    set_row(wanted, wanted if source is out else source, factor, shift)
                    run_set(found, found if source is out else source, factor, shift)
                    close(found, wanted)
            for kind in {row.dtype, np.dtype(np.float64)}:
                for source, target in ((row, out), (out, row)):
                    wanted, found = target.astype(kind), target.astype(kind)
                    add_row(wanted, source, factor)
                    run_add_row(found, source, factor)
                    close(found, wanted)


def test_products_and_sums(draw):
    for shape in [(length,) for length in [0, *LENGTHS, 884]] + [(26, 34)]:
        a, b, found = draw(*shape), draw(*shape), np.zeros(5)
        run_sums(a, b, found)
        wanted = [function(*pair) for function, pair in ((dot, (a, b)), (exact_dot, (a, b)))]
        assert abs(found[0] - wanted[0]) <= 1e3 * np.finfo(a.dtype).eps
        assert np.allclose(found[1:], [wanted[1], *exact_sums(a, b)], rtol=1e-12, atol=1e-12)


def test_exact_products_of_two_dtypes():
    for length in LENGTHS:
        a, b = np.linspace(-1.0, 2.0, length, dtype=np.float32), np.linspace(0.0, 1.0, length)
        assert np.isclose(run_exact(a, b), exact_dot(a, b), rtol=1e-12, atol=1e-12)


def test_other_arrays_are_refused_when_a_kernel_is_compiled(draw):
    single, double = np.zeros(4, np.float32), np.zeros(4)
    with pytest.raises(Exception, match="contiguous arrays of one dtype"):
        run_sums(single, double, double)
    with pytest.raises(Exception, match="contiguous arrays of one dtype"):
        run_sums(double[::2], double[::2], double)


def test_each_operation_has_code():
    from torchssvm.core import vector_code
    from torchssvm.core.jit import Vectorised

    names = {name for name, value in vars(vectors).items() if isinstance(value, Vectorised)}
    assert names
    assert names <= vars(vector_code).keys()


def test_on_a_machine_without_vectors_of_avx():
    """All other tests here, compiled for any x86-64 machine: LLVM splits the vectors."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-k", "not machine", __file__]
    environment = {**os.environ, "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout
