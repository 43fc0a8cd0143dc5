"""The stable sort of kernels."""

import numpy as np
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.compiler.vectors import sort_falling


@examples(100)
@given(st.integers(0, 2**32 - 1), st.integers(0, 100), st.sampled_from([2, 1000]))
def test_equal_keys_stay_in_their_order(seed, count, levels):
    """Few levels make many ties; more than a dozen numbers are merged."""
    random = np.random.default_rng(seed)
    keys, order = random.integers(0, levels, count + 3).astype(np.float64), random.permutation(count + 3)
    expected = order[:count][np.argsort(-keys[order[:count]], kind="stable")]
    rest = order[count:].copy()
    sort_falling(keys, order, count, np.empty(count + 3, np.int64))
    assert np.array_equal(order[:count], expected)
    assert np.array_equal(order[count:], rest)


def test_numbers_that_are_not_finite_are_kept():
    keys, order = np.array([1.0, np.nan, np.inf, np.nan, -np.inf] * 9), np.arange(45)
    sort_falling(keys, order, 45, np.empty(45, np.int64))
    assert np.array_equal(np.sort(order), np.arange(45))
