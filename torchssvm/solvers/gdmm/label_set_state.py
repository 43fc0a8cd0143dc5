"""The NumPy arrays that the compiled passes over label sets read and write."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.schema import Entry, Schema, damaged
from torchssvm.solvers.gdmm import ragged
from torchssvm.solvers.gdmm.ragged import Interactions


class LabelSets(NamedTuple):
    """The training set; the bias is a feature that is always 1."""

    column: Any  # [M] int32
    value: Any  # [M] of the weights' dtype
    row: Any  # [n + 1] int64, where each example's features begin
    y: Any  # [n, K] bool
    cost: Any  # [K] float64, the cost of a wrong label
    square: Any  # [n] float64, |x_i|^2


class PairTable(NamedTuple):
    """Weights of pairs of labels."""

    value: Any  # [K, K] float64, symmetric, its diagonal 0
    gain: Any  # [K] float64, ``sum_j max(0, value[k, j])``


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
    scores, change, force, offset = np.zeros((4, num_labels))
    count, likely, labels, marked = np.zeros((4, num_labels), np.int64)
    point, mass, new = np.zeros((3, 4))
    skipped, order, totals, stamp = (
        np.zeros(excluded, np.int64),
        np.zeros(4, np.int64),
        np.zeros(3),
        np.zeros(1, np.int64),
    )
    vectors = scores, change, force, count, likely, labels, offset, skipped, marked
    return Room(*vectors, point, mass, new, order, totals, stamp)


def as_tensors(held: Interactions) -> dict[str, Tensor]:
    """The factors for a checkpoint, with the size of their unused room, but not its content."""
    return {"room": torch.from_numpy(np.diff(held.start)), **ragged.as_tensors(held)}


def check_factors(state: Any, where: str, *, num_examples: int, num_labels: int) -> None:
    """Raise ValueError if these are not factors of :func:`as_tensors`; messages call the state ``where``."""
    pairs = num_labels * num_labels
    numbers: Schema = {
        "room": Entry(torch.int64, (num_examples,), low=0, high=64 + 2 * pairs),
        "mass": Entry(torch.float64, ("total", 3), low=0.0),
        "multiplier": Entry(torch.float64, ("total", 2)),
    }
    ragged.check_lists(state, where, lists=num_examples, num_keys=pairs, numbers=numbers)
    if bool((state["size"] > state["room"]).any()):
        raise damaged(f"{where} holds invalid sizes")
    key = state["key"]
    if bool((key // num_labels >= key % num_labels).any() or (state["mass"].sum(1) > 1.0 + 1e-6).any()):
        raise damaged(f"{where} holds invalid pairs or masses")


def from_tensors(state: dict[str, Tensor]) -> Interactions:
    """Factors of a state that :func:`check_factors` accepted."""
    factors: Interactions = ragged.from_tensors(state, Interactions, (state["room"] - state["size"]).numpy())
    return factors
