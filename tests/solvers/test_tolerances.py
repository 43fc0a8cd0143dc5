"""A tolerance is a number or a share of the primal, wherever one is taken."""

from __future__ import annotations

import numpy as np
import pytest

from torchssvm import Relative
from torchssvm.solvers.solver import Tolerance, check_tolerance, is_within, largest_gap, times


def test_one_place_says_what_a_tolerance_allows():
    share: Tolerance = Relative(0.1)
    assert largest_gap(share, 3.0) == pytest.approx(0.3)
    assert largest_gap(0.2, 3.0) == 0.2
    assert is_within(0.3, share, 3.01)
    assert not is_within(0.3, share, 2.99)
    assert is_within(0.0, share, 0.0)
    assert times(share, 0.5) == Relative(0.05)
    assert times(0.2, 0.5) == 0.1


def test_what_is_out_of_range_or_no_tolerance():
    for number in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"epsilon=(-0.1|nan|inf)"):
            check_tolerance(number, "epsilon")
    for wrong in ("1 %", None, True, Relative, [0.1]):
        with pytest.raises(TypeError, match="epsilon="):
            check_tolerance(wrong, "epsilon")
    assert check_tolerance(0) == 0.0
    with pytest.raises(ValueError, match="epsilon=0"):  # where it is never reached
        check_tolerance(0, "epsilon", above=0.0)


def test_a_share_of_numpy_is_kept_as_a_plain_number():
    assert type(Relative(np.float64(0.05)).share) is float  # a saved path holds it
