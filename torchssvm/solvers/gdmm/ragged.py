"""Many short lists in a few long arrays.

No list grows beyond its room during a pass: before the pass :func:`repacked` makes room for what the pass can add.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.jit import njit
from torchssvm.core.schema import Entry, check, damaged


class Ragged(NamedTuple):
    """Lists of keys with two numbers each.

    Attributes:
        start: ``[lists + 1]`` int64, where the room of each list begins.
        size: ``[lists]`` int64, length of each list.
        key: ``[total]`` int64.
        x: ``[total]`` float64.
        y: ``[total]`` float64; empty where the lists have one number a key.
    """

    start: Any
    size: Any
    key: Any
    x: Any
    y: Any


def make_ragged(keys: np.ndarray, values: np.ndarray, *, second: bool = False) -> Ragged:
    """Lists of one key and value each.

    Args:
        keys: ``[lists]`` int64.
        values: ``[lists]`` float64.
        second: Whether keys have a second number.
    """
    lists = len(keys)
    y = np.zeros(lists if second else 0)
    start = np.arange(lists + 1, dtype=np.int64)
    return Ragged(start, np.ones(lists, np.int64), keys.astype(np.int64), values.astype(np.float64), y)


def empty_ragged(lists: int) -> Ragged:
    """Empty lists with two numbers a key."""
    start = np.zeros(lists + 1, np.int64)
    return Ragged(start, np.zeros(lists, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def repacked(lists: Ragged, extra: np.ndarray | int) -> Ragged:
    """The same lists, each with room for ``extra`` more.

    Args:
        lists: What to copy.
        extra: ``[lists]``, or one number for all.
    """
    start = np.zeros(len(lists.size) + 1, np.int64)
    np.cumsum(lists.size + extra, out=start[1:])
    total = int(start[-1])
    second = np.zeros(total if len(lists.y) or not len(lists.x) else 0)
    wide = Ragged(start, lists.size.copy(), np.zeros(total, np.int64), np.zeros(total), second)
    _copy(lists, wide)
    return wide


@njit
def _copy(lists, wide):
    both = len(lists.y) > 0
    for i in range(len(lists.size)):
        p, q = lists.start[i], wide.start[i]
        for c in range(lists.size[i]):
            wide.key[q + c] = lists.key[p + c]
            wide.x[q + c] = lists.x[p + c]
            if both:
                wide.y[q + c] = lists.y[p + c]


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
        lists.x[p] = 0.0
        if len(lists.y):
            lists.y[p] = 0.0
        lists.size[i] += 1
    return p


@njit
def drop(lists, i, p):
    """Remove the entry at ``p`` from list ``i``; the last one takes its place."""
    last = lists.start[i] + lists.size[i] - 1
    lists.key[p] = lists.key[last]
    lists.x[p] = lists.x[last]
    if len(lists.y):
        lists.y[p] = lists.y[last]
    lists.size[i] -= 1


def as_tensors(lists: Ragged) -> dict[str, Tensor]:
    """The lists without the room between them, for a checkpoint."""
    tight = repacked(lists, 0)
    return {name: torch.from_numpy(getattr(tight, name)) for name in ("size", "key", "x", "y")}


def check_lists(state: Any, where: str, *, lists: int, num_keys: int) -> None:
    """Check lists of :func:`as_tensors`.

    Args:
        state: The lists.
        where: Name of the state in messages.
        lists: The required number of lists.
        num_keys: Keys are 0 to ``num_keys - 1``.

    Raises:
        ValueError: The state does not fit, or is damaged.
    """
    schema = {
        "size": Entry(torch.int64, (lists,), low=0),
        "key": Entry(torch.int64, ("total",), low=0, high=num_keys - 1),
        "x": Entry(torch.float64, ("total",)),
        "y": Entry(torch.float64, (None,)),
    }
    check(state, schema, where)
    size, key = (state[name].numpy() for name in ("size", "key"))
    total = int(size.sum())
    if len(key) != total or len(state["y"]) not in (0, total):
        raise damaged(f"{where} holds {len(key)} keys, and its sizes add up to {total}")
    if len(np.unique(np.repeat(np.arange(lists), size) * num_keys + key)) < total:
        raise damaged(f"{where} holds a key twice in one list")


def from_tensors(state: dict[str, Tensor]) -> Ragged:
    """Lists of a state that :func:`check_lists` accepted."""
    size, key, x, y = (state[name].numpy().copy() for name in ("size", "key", "x", "y"))
    start = np.zeros(len(size) + 1, np.int64)
    np.cumsum(size, out=start[1:])
    return Ragged(start, size, key, x, y)


def check_masses(state: dict[str, Tensor], wanted: np.ndarray, where: str) -> None:
    """Raise ValueError unless the lists ``wanted``, ``[lists]`` bool, are distributions, and the others empty."""
    size, x = state["size"].numpy(), state["x"].numpy()
    sums = np.bincount(np.repeat(np.arange(len(size)), size), weights=x, minlength=len(size))
    if (x < 0.0).any() or (np.abs(sums - wanted) > 1e-6).any() or len(state["y"]) or size[~wanted].any():
        raise damaged(f"{where} should hold distributions, with masses that sum to 1")
