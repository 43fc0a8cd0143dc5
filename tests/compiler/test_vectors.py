"""Vector operations against their plain loops in Python, for rows of any length, at any place in memory."""

import os
import subprocess
import sys

import numpy as np
import pytest

from torchssvm.compiler import vectors
from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import (
    add_row,
    add_rows,
    add_to_rows,
    dot,
    exact_dot,
    exact_dots,
    exact_sums,
    first_equal,
    largest_sum,
    max_rows,
    quadratic,
    set_row,
    set_rows,
)

LENGTHS = [*range(1, 10), 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 97]


run_add = njit(lambda *arrays: vectors.add_rows(*arrays))
run_add_to = njit(lambda *arrays: vectors.add_to_rows(*arrays))
run_set = njit(lambda *arrays: vectors.set_row(*arrays))
run_add_row = njit(lambda *arrays: vectors.add_row(*arrays))
run_max = njit(lambda *arrays: vectors.max_rows(*arrays))
run_max_of_two = njit(lambda *arrays: vectors.max_rows_of_two(*arrays))
run_first = njit(lambda *arrays: vectors.first_equal(*arrays))
run_largest = njit(lambda *arrays: vectors.largest_sum(*arrays))


@njit
def run_sums(a, b, out):
    out[0], out[1] = vectors.dot(a, b), vectors.exact_dot(a, b)
    out[2] = vectors.exact_dots(a.reshape(1, -1), b.reshape(1, -1), None, 1)


run_exact = njit(lambda *arrays: vectors.exact_dot(*arrays))
run_set_rows = njit(lambda *arrays: vectors.set_rows(*arrays))
run_exact_sums = njit(lambda *arrays: vectors.exact_sums(*arrays))
run_exact_dots = njit(lambda *arrays: vectors.exact_dots(*arrays))
run_quadratic = njit(lambda *arrays: vectors.quadratic(*arrays))
run_prefetch = njit(lambda array: vectors.prefetch(array))


@pytest.fixture(params=[np.float32, np.float64])
def draw(request):
    chance = np.random.default_rng(0)

    def make(*shape):
        numbers = chance.standard_normal(int(np.prod(shape)) + 3).astype(request.param)
        return numbers[chance.integers(4) :][: int(np.prod(shape))].reshape(shape)  # not aligned to a vector

    return make


def close(result, wanted):
    assert np.allclose(result, wanted, rtol=0.0, atol=200 * np.finfo(result.dtype).eps)


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
@pytest.mark.parametrize("finish", [True, False])
def test_largest_sums_are_exact(draw, fresh, finish):
    for length in LENGTHS:
        rows = draw(6, length)
        rows[1, : length // 2] = -np.inf
        for count in (0, 1, 2, 5, 6) if not fresh else (1, 2, 5, 6):
            sides = [(draw(length + 2), draw(6), draw(length + 1)) for _ in range(2)]
            wanted = [tuple(array.copy() for array in side) for side in sides]
            for maxima, scores, sums in wanted:
                if count:
                    max_rows(maxima, scores, rows, count, fresh, sums, finish)
                elif finish:
                    sums[:length] += maxima[:length]
            for both in (True, False):
                results = [tuple(array.copy() for array in side) for side in sides]
                if both:
                    run_max_of_two(*results[0][:2], results[0][2], *results[1], rows, count, fresh, finish)
                else:
                    for maxima, scores, sums in results:
                        run_max(maxima, scores, rows, count, fresh, sums, finish)
                for side, other in zip(results, wanted, strict=True):
                    assert all(map(np.array_equal, side, other))


def test_not_a_number_is_never_the_largest():
    for length in LENGTHS:
        rows, scores, maxima = np.zeros((2, length)), np.array([1.0, 2.0]), np.zeros(length)
        rows[1, ::2] = np.nan
        run_max(maxima, scores, rows, 2, True, maxima, False)
        assert maxima[::2].tolist() == [1.0] * len(maxima[::2])
        assert maxima[1::2].tolist() == [2.0] * len(maxima[1::2])


def test_the_first_that_is_equal(draw):
    for count in LENGTHS:
        rows, scores = draw(count + 1, 5), draw(count + 2)
        for table, column in ((rows, 3), (None, 0)):
            for place in range(count):
                value = scores[place] if table is None else scores[place] + table[place, column]
                assert run_first(scores, table, column, count, value) == place
                again = scores.copy(), rows.copy()  # a tie with an earlier place
                again[0][place // 2], again[1][place // 2] = scores[place], rows[place]
                ties = again[0], None if table is None else again[1]
                assert run_first(*ties, column, count, value) == first_equal(*ties, column, count, value) == place // 2
            scores[count // 2] = -np.inf
            assert run_first(scores, table, column, count, scores.dtype.type(-np.inf)) == count // 2
            for value in (np.nan, np.inf):  # nowhere, and not in what lies behind
                scores[count:] = value
                assert run_first(scores, table, column, count, scores.dtype.type(value)) == 0
        assert run_first(scores, rows, 0, 0, scores[0]) == 0


def test_largest_sum_of_two_rows_is_exact(draw):
    for shape in [(length,) for length in [0, *LENGTHS, 884]] + [(26, 34)]:
        for _ in range(3):
            a, b = draw(*shape), draw(*shape)
            a[..., shape[-1] // 2 :] = -np.inf
            for one, other in ((a, b), (b, a), (b, b)):
                assert run_largest(one, other) == largest_sum(one, other)
        if len(shape) == 1:
            assert run_largest(a[shape[0] // 2 :], b) == -np.inf  # none, or none that is finite


@pytest.mark.parametrize("factor", [None, 0.3])
def test_one_row(draw, factor):
    for shape in [(length,) for length in [0, *LENGTHS, 884]] + [(26, 34)]:
        for longer in (0, 3) if len(shape) == 1 else (0,):
            for shift in (None, -1.5):
                row, out = draw(*shape), draw(shape[0] + longer, *shape[1:])
                for source in (row, out, None):
                    wanted, result = out.copy(), out.copy()
                    set_row(wanted, wanted if source is out else source, factor, shift)
                    run_set(result, result if source is out else source, factor, shift)
                    close(result, wanted)
            for kind in {row.dtype, np.dtype(np.float64)}:
                for source, target in ((row, out), (out, row)):
                    wanted, result = target.astype(kind), target.astype(kind)
                    add_row(wanted, source, factor)
                    run_add_row(result, source, factor)
                    close(result, wanted)


@pytest.mark.parametrize("listed", [True, False])
def test_some_rows(draw, listed):
    chosen = np.array([4, 0, 3]) if listed else None
    for length in LENGTHS:
        for longer in (0, 5):
            rows, out, shifts = draw(6, length), draw(6, length + longer), draw(6)
            for count in (0, 1, 3):
                for source, factor, shift in ((rows, 0.3, None), (out, -2.0, None), (rows, None, shifts), (None,) * 3):
                    wanted, result = out.copy(), out.copy()
                    set_rows(wanted, wanted if source is out else source, chosen, count, factor, shift)
                    run_set_rows(result, result if source is out else source, chosen, count, factor, shift)
                    close(result, wanted)
                exact = exact_dots(rows, out, chosen, count)
                assert np.isclose(run_exact_dots(rows, out, chosen, count), exact, rtol=1e-12, atol=1e-12)


def test_sums_of_each_row(draw):
    for length in LENGTHS:
        a, b = draw(5, length), draw(5, length + length % 3)
        for one, other in ((a, b), (b, a)):
            wanted, result = np.zeros((6, 3)), np.full((6, 3), np.nan)
            exact_sums(one, other, 5, wanted)
            run_exact_sums(one, other, 5, result)
            assert np.allclose(result[:5], wanted[:5], rtol=1e-12, atol=1e-12)
            assert np.isnan(result[5]).all()


def test_quadratic_forms(draw):
    for length in LENGTHS:
        rows, products = draw(6, length), draw(21)
        rows[[0, 3]] = 0.0
        for count in (1, 4, 6):
            wanted, result = np.zeros(6), np.full(6, np.nan)
            value = quadratic(rows, count, products, wanted)
            tolerance = 1e3 * np.finfo(rows.dtype).eps
            assert abs(run_quadratic(rows, count, products, result) - value) <= tolerance * max(abs(value), 1.0)
            assert np.allclose(result[:count], wanted[:count], rtol=tolerance, atol=0.0)
            assert np.isnan(result[count:]).all()


def test_products_and_sums(draw):
    for shape in [(length,) for length in [0, *LENGTHS, 884]] + [(26, 34)]:
        a, b, result = draw(*shape), draw(*shape), np.zeros(3)
        run_sums(a, b, result)
        wanted = [function(*pair) for function, pair in ((dot, (a, b)), (exact_dot, (a, b)))]
        assert abs(result[0] - wanted[0]) <= 1e3 * np.finfo(a.dtype).eps
        assert np.allclose(result[1:], wanted[1], rtol=1e-12, atol=1e-12)


def test_exact_products_of_two_dtypes():
    for length in LENGTHS:
        a, b = np.linspace(-1.0, 2.0, length, dtype=np.float32), np.linspace(0.0, 1.0, length)
        assert np.isclose(run_exact(a, b), exact_dot(a, b), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_on_a_machine_without_vectors_of_avx():
    """All other tests here, compiled for any x86-64 machine: LLVM splits the vectors."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "-k",
        "not machine and not stock",
        __file__,
    ]
    environment = {**os.environ, "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout


@pytest.mark.slow
def test_in_stock_numba():
    """All other tests here but refusals, with the plain loops compiled."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    command += ["-k", "not machine and not stock and not refused", __file__]
    environment = {**os.environ, "TORCHSSVM_STOCK_NUMBA": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_])
@pytest.mark.parametrize("shape", [(0,), (1,), (7, 5), (2000,)])
def test_prefetch_reads_any_array_and_changes_nothing(dtype, shape):
    array = np.ones(shape, dtype)
    run_prefetch(array)
    assert (array == 1).all()
