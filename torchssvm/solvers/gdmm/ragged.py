"""Many short lists in a few long arrays.

No list grows beyond its room during a pass: before the pass :func:`repacked` makes room for what the pass can add.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit


class Ragged(NamedTuple):
    """Lists of keys with numbers for each key."""

    start: Any  # [lists + 1] int64, where the room of each list begins
    size: Any  # [lists] int64, length of each list
    key: Any  # [total] int64
    mass: Any  # [total, ...] float64, of a configuration; of a side: its excess
    multiplier: Any  # [total, ...] float64; empty where keys have none


def offsets(sizes: np.ndarray) -> np.ndarray:
    """Where runs of these sizes begin, and the end of the last one, int64."""
    return np.append(0, np.cumsum(sizes))


def single(keys: np.ndarray) -> Ragged:
    """A list for each key, which has the mass 1."""
    lists = len(keys)
    return Ragged(np.arange(lists + 1), np.ones(lists, np.int64), keys.astype(np.int64), np.ones(lists), np.zeros(0))


def empty(lists: int, mass: tuple[int, ...] = (), multiplier: tuple[int, ...] = ()) -> Ragged:
    """Empty lists, with the shapes of the numbers of a key."""
    numbers = np.zeros((0, *mass)), np.zeros((0, *multiplier))
    return Ragged(np.zeros(lists + 1, np.int64), np.zeros(lists, np.int64), np.zeros(0, np.int64), *numbers)


def repacked(lists: Ragged, extra: np.ndarray | int) -> Ragged:
    """The same lists, each with room for ``extra`` more: ``[lists]``, or one number for all."""
    start, wide = offsets(lists.size + extra), []
    for array in lists[2:]:
        wide.append(np.zeros((start[-1] if len(array) == len(lists.key) else 0, *array.shape[1:]), array.dtype))
        if len(array) and start[-1]:
            _copy(lists.start, lists.size, start, array.reshape(len(array), -1), wide[-1].reshape(len(wide[-1]), -1))
    return Ragged(start, lists.size.copy(), *wide)


@njit
def _copy(start, size, begin, narrow, wide):
    for i in range(len(size)):
        for c in range(size[i]):
            for s in range(narrow.shape[1]):
                wide[begin[i] + c, s] = narrow[start[i] + c, s]


@njit
def place_of(lists, i, key):
    """The position of this key in list ``i``, or -1."""
    for p in range(lists.start[i], lists.start[i] + lists.size[i]):
        if lists.key[p] == key:
            return p
    return -1


@njit
def insert(lists, i, key):
    """The position of this key in list ``i``; a missing key is added with zeros."""
    p = place_of(lists, i, key)
    if p < 0:
        p = lists.start[i] + lists.size[i]
        lists.key[p] = key
        lists.mass[p] = 0.0
        if len(lists.multiplier):
            lists.multiplier[p] = 0.0
        lists.size[i] += 1
    return p


@njit
def drop(lists, i, p):
    """Remove the entry at ``p`` from list ``i``; the last one takes its place."""
    last = lists.start[i] + lists.size[i] - 1
    lists.key[p] = lists.key[last]
    lists.mass[p] = lists.mass[last]
    if len(lists.multiplier):
        lists.multiplier[p] = lists.multiplier[last]
    lists.size[i] -= 1


def as_tensors(lists: Ragged) -> dict[str, Tensor]:
    """The lists for a checkpoint, with the size of their room, but not its content."""
    arrays = {"room": np.diff(lists.start), **repacked(lists, 0)._asdict()}
    return {name: torch.from_numpy(array) for name, array in arrays.items() if name != "start"}


def from_tensors(state: dict[str, Tensor]) -> Ragged:
    """The lists of a state, with the same room."""
    room, size, *arrays = (state[name].numpy() for name in ("room", *Ragged._fields[1:]))
    return repacked(Ragged(offsets(size), size, *arrays), room - size)
