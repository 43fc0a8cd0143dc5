"""The NumPy arrays that the compiled passes over label sets read and write."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.jit import njit
from torchssvm.core.schema import Entry, check, damaged


class LabelSets(NamedTuple):
    """The training set; the bias is a feature that is always 1.

    Attributes:
        column: ``[M]`` int32.
        value: ``[M]`` of the weights' dtype.
        row: ``[n + 1]`` int64, where each example's features begin.
        y: ``[n, K]`` bool.
        cost: ``[K]`` float64, the cost of a wrong label.
        square: ``[n]`` float64, |x_i|^2.
    """

    column: Any
    value: Any
    row: Any
    y: Any
    cost: Any
    square: Any


class Interactions(NamedTuple):
    """The factors of label pairs that were made, a list for each example.

    All other factors have the mass of their target and agree with their labels: see ``label_set_pass``.

    Attributes:
        start: ``[n + 1]`` int64, where the room of each list begins.
        size: ``[n]`` int64, length of each list.
        key: ``[total]`` int64, ``i K + j`` for i < j.
        mass: ``[total, 3]`` float64: both on, the first alone, the second alone.
        multiplier: ``[total, 2]`` float64, of the first and the second being on.
    """

    start: Any
    size: Any
    key: Any
    mass: Any
    multiplier: Any


class PairTable(NamedTuple):
    """Weights of pairs of labels.

    Attributes:
        value: ``[K, K]`` float64, symmetric, its diagonal 0.
        gain: ``[K]`` float64, ``sum_j max(0, value[k, j])``.
    """

    value: Any
    gain: Any


class Room(NamedTuple):
    """Scratch arrays for one example."""

    scores: Any  # [K], label on less label off, features alone
    change: Any  # [K]
    force: Any  # [K]
    count: Any  # [K] int64, factors of the label
    likely: Any  # [K] int64
    labels: Any  # [K] int64, for the sorted oracle
    offset: Any  # [K]
    excluded: Any  # [E] int64
    marked: Any  # [K] int64
    point: Any  # [4]
    mass: Any  # [4]
    new: Any  # [4]
    order: Any  # [4] int64
    totals: Any  # [3], as in ``chain_state``
    stamp: Any  # [1] int64


def make_room(num_labels: int, excluded: int) -> Room:
    """Scratch arrays for examples with at most ``excluded`` factors."""
    return Room(
        scores=np.zeros(num_labels),
        change=np.zeros(num_labels),
        force=np.zeros(num_labels),
        count=np.zeros(num_labels, np.int64),
        likely=np.zeros(num_labels, np.int64),
        labels=np.zeros(num_labels, np.int64),
        offset=np.zeros(num_labels),
        excluded=np.zeros(excluded, np.int64),
        marked=np.zeros(num_labels, np.int64),
        point=np.zeros(4),
        mass=np.zeros(4),
        new=np.zeros(4),
        order=np.zeros(4, np.int64),
        totals=np.zeros(3),
        stamp=np.zeros(1, np.int64),
    )


def no_interactions(num_examples: int) -> Interactions:
    """Empty lists."""
    nothing = np.zeros(0, np.int64)
    start, size = np.zeros(num_examples + 1, np.int64), np.zeros(num_examples, np.int64)
    return Interactions(start, size, nothing, np.zeros((0, 3)), np.zeros((0, 2)))


def with_room(held: Interactions, extra: np.ndarray | int) -> Interactions:
    """The same factors, with room for ``extra`` more in every example."""
    start = np.zeros(len(held.start), np.int64)
    np.cumsum(held.size + extra, out=start[1:])
    total = int(start[-1])
    wide = Interactions(start, held.size.copy(), np.zeros(total, np.int64), np.zeros((total, 3)), np.zeros((total, 2)))
    _copy(held, wide)
    return wide


@njit
def _copy(held, wide):
    for i in range(len(held.size)):
        p, q = held.start[i], wide.start[i]
        for c in range(held.size[i]):
            wide.key[q + c] = held.key[p + c]
            for s in range(3):
                wide.mass[q + c, s] = held.mass[p + c, s]
            for s in range(2):
                wide.multiplier[q + c, s] = held.multiplier[p + c, s]


def as_tensors(held: Interactions) -> dict[str, Tensor]:
    """The factors for a checkpoint, with the size of their unused room, but not its content."""
    tight = with_room(held, 0)
    arrays = {"room": np.diff(held.start), **{name: getattr(tight, name) for name in Interactions._fields[1:]}}
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def check_factors(state: Any, where: str, *, num_examples: int, num_labels: int) -> None:
    """Raise ValueError if these are not factors of :func:`as_tensors`; messages call the state ``where``."""
    pairs = num_labels * num_labels
    schema = {
        "room": Entry(torch.int64, (num_examples,), low=0, high=64 + 2 * pairs),
        "size": Entry(torch.int64, (num_examples,), low=0),
        "key": Entry(torch.int64, ("total",), low=0, high=pairs - 1),
        "mass": Entry(torch.float64, ("total", 3), low=0.0),
        "multiplier": Entry(torch.float64, ("total", 2)),
    }
    check(state, schema, where)
    room, size, key = (state[name].numpy() for name in ("room", "size", "key"))
    if (size > room).any() or size.sum() != len(key):
        raise damaged(f"{where} holds invalid sizes")
    twice = len(np.unique(np.repeat(np.arange(num_examples), size) * pairs + key)) < len(key)
    if twice or (key // num_labels >= key % num_labels).any() or bool((state["mass"].sum(1) > 1.0 + 1e-6).any()):
        raise damaged(f"{where} holds invalid pairs or masses")


def from_tensors(state: dict[str, Tensor]) -> Interactions:
    """Factors of a state that :func:`check_factors` accepted."""
    room, size, key, mass, multiplier = (state[name].numpy() for name in ("room", "size", "key", "mass", "multiplier"))
    start = np.concatenate([[0], np.cumsum(size)])
    return with_room(Interactions(start, size, key, mass, multiplier), room - size)
