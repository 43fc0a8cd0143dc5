"""A tolerance is a number or a share of the primal, wherever one is taken."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator

import numpy as np
import pytest

import torchssvm
from torchssvm import Corrective, Relative
from torchssvm.solvers.solver import Tolerance, check_tolerance, is_within, largest_gap, times

OWN = {Corrective}
"""Its ``tolerance`` is a share already, of a block's gap."""


def verbs() -> Iterator[tuple[str, inspect.Signature, str]]:
    """Every public function, constructor and method that takes a tolerance, with its documentation."""
    others = ("torchssvm.path", "torchssvm.solvers", "torchssvm.solvers.kernel")
    rooms = [torchssvm, *map(importlib.import_module, others)]
    with contextlib.suppress(ImportError):
        rooms.append(importlib.import_module("torchssvm.lightning"))
    public = {name: getattr(room, name) for room in rooms for name in room.__all__}
    for name, value in public.items():
        if inspect.isclass(value) and value not in OWN:
            methods = [(f"{name}.{own}", method) for own, method in inspect.getmembers(value, inspect.isfunction)]
            found = [
                (full, method, method.__doc__ or "") for full, method in methods if not full.endswith((".due", ".next"))
            ]
            found = [(full, method, value.__doc__ if "__init__" in full else doc) for full, method, doc in found]
        else:
            found = [(name, value, value.__doc__ or "")] if inspect.isfunction(value) else []
        for full, function, doc in found:
            own = inspect.signature(function)
            if {"tolerance", "epsilon"} & own.parameters.keys():
                yield full, own, doc or ""


VERBS = list(verbs())


def test_all_are_looked_at():
    names = {name for name, *_ in VERBS}
    trainers = ("CompiledBCFW", "TorchLoop", "GDMM", "KernelSSVM", "Trainer")
    assert {f"{name}.solve" for name in trainers} <= names
    assert {"solve", "choose_lam", "regularization_path", "PathRun.__init__"} <= names


@pytest.mark.parametrize(("name", "signature", "doc"), VERBS, ids=[name for name, *_ in VERBS])
def test_a_share_is_taken_and_documented(name, signature, doc):
    parameter = next(signature.parameters[own] for own in ("tolerance", "epsilon") if own in signature.parameters)
    assert parameter.annotation in ("Tolerance", "Tolerance | None")
    assert "Relative(" in doc


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
        with pytest.raises(ValueError, match=r"epsilon=(-0.1|nan|inf) must be"):
            check_tolerance(number, "epsilon")
    for wrong in ("1 %", None, True, Relative, [0.1]):
        with pytest.raises(TypeError, match=r"epsilon=.* must be a number"):
            check_tolerance(wrong, "epsilon")
    assert check_tolerance(0) == 0.0
    with pytest.raises(ValueError, match="epsilon=0"):  # where it is never reached
        check_tolerance(0, "epsilon", above=0.0)


def test_a_share_of_numpy_is_kept_as_a_plain_number():
    assert type(Relative(np.float64(0.05)).share) is float  # a saved path holds it
