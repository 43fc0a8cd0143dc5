"""Kernels of a kind by address, and named tuples in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numba.core.errors import TypingError

from torchssvm.compiler.by_address import Types
from torchssvm.compiler.hidden_fields import with_hidden
from torchssvm.compiler.jit import Addresses, ByAddress, njit
from torchssvm.compiler.placed import Placed, type_of


class Inner(NamedTuple):
    number: int
    row: np.ndarray


class Outer(NamedTuple):
    flag: bool
    half: float
    nothing: None
    inner: Inner
    pair: tuple[int, float]
    same: tuple[int, int]
    table: np.ndarray
    small: np.float32


OUTER = Outer(True, 0.5, None, Inner(7, np.arange(3)), (2, 0.25), (4, 5), np.ones((2, 3), np.float32), np.float32(1.5))


@njit
def read_all(outer, sums):
    """Every field, by its place in memory."""
    sums[0] = outer.half + outer.inner.number + outer.inner.row[2] + outer.pair[0] + outer.pair[1] + outer.small
    sums[1] = outer.same[0] * 10 + outer.same[1]
    sums[2] = outer.table[1, 2] + len(outer.table) + outer.table.shape[1]
    sums[3] = 1.0 if outer.flag else 0.0


def test_a_kernel_reads_every_kind_of_field():
    sums = np.zeros(4)
    read_all(OUTER, sums)
    assert sums.tolist() == [0.5 + 7 + 2 + 2 + 0.25 + 1.5, 45.0, 6.0, 1.0]


def test_arrays_share_their_memory():
    sums = np.zeros(4)
    placed = Placed(OUTER._replace(table=(table := np.ones((2, 3), np.float32))))
    table[1, 2] = 5.0
    read_all(placed, sums)
    assert sums[2] == 10.0


def test_the_type_follows_the_arrays():
    wide = OUTER._replace(table=OUTER.table.astype(np.float64))
    assert type_of(OUTER) == type_of(OUTER._replace(half=0.25))
    assert type_of(OUTER) != type_of(wide)
    assert type_of(OUTER) != type_of(OUTER._replace(table=np.asfortranarray(OUTER.table)))


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="use numbers, arrays and named tuples"):
        Placed(OUTER._replace(nothing="text"))


@with_hidden("kind", "room")
class Things(NamedTuple):
    """What a caller that knows no kind gets."""

    kind: object
    numbers: np.ndarray
    room: object
    calls: np.ndarray


class Weights(NamedTuple):
    emission: np.ndarray


class Plus(NamedTuple):
    added: float


class Times(NamedTuple):
    factors: np.ndarray


class Wrong(NamedTuple):
    nothing: int


@ByAddress
def change(kind, examples, i: int, number: float) -> float:
    """What a kind makes of a number."""
    raise NotImplementedError


@ByAddress
@njit
def change_twice(kind, examples, i: int, number: float) -> tuple[float, float]:
    once = change(kind, examples, i, number)
    return once, change(kind, examples, i, once)


@change.of(Plus)
@njit
def change_plus(kind, examples, i, number):
    return number + kind.added + examples.room.number


@change.of(Times)
@njit
def change_times(kind, examples, i, number):
    return number * kind.factors[i] + examples.room[0]


@change.of(Wrong)
@njit
def change_wrong(kind, examples, i, number):
    return i


_addresses = Addresses(change, change_twice)


@njit
def fill(calls, types):
    """The addresses of both functions."""
    _addresses(calls, types)


@njit
def call_all(examples, out):
    """Knows no kind."""
    for i in range(len(examples.numbers)):
        out[i, 0] = change(examples.kind, examples, i, examples.numbers[i])
        out[i, 1], out[i, 2] = change_twice(examples.kind, examples, i, examples.numbers[i])


def hidden(things: Things) -> tuple[Placed, list[Placed]]:
    """The arguments of a caller, and what must live as long."""
    kept, calls = [Placed(things.kind), Placed(things.room)], np.zeros(ByAddress.slots, np.int64)
    fill(calls, Types((things, Weights(np.zeros((1, 1))), Weights(np.zeros((1, 1))), Weights(np.zeros((1, 1))))))
    return Placed(things._replace(kind=kept[0].address, room=kept[1].address, calls=calls)), kept


def test_a_caller_is_compiled_once_for_all_kinds():
    numbers, nothing = np.array([1.0, 2.0]), np.zeros(0, np.int64)
    out = np.zeros((2, 3))
    plus, kept = hidden(Things(Plus(0.5), numbers, Inner(3, np.zeros(1)), nothing))
    call_all(plus, out)
    assert out.tolist() == [[4.5, 4.5, 8.0], [5.5, 5.5, 9.0]]
    times, kept_too = hidden(Things(Times(np.array([2.0, 3.0])), numbers, np.array([0.25]), nothing))
    call_all(times, out)
    assert out.tolist() == [[2.25, 2.25, 4.75], [6.25, 6.25, 19.0]]
    assert len(call_all.dispatcher.signatures) == 1
    assert len(kept) == len(kept_too) == 2


def test_a_version_returns_what_is_declared():
    things = Things(Wrong(1), np.zeros(1), np.zeros(1), np.zeros(0, np.int64))
    with pytest.raises(TypingError, match=r"change of .*Wrong.* must return float"):
        hidden(things)
