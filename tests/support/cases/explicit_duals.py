"""A dual with one number for every output of every example, which makes the moves that a storage was told to make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor

from cases.problems import Reference
from torchssvm.core.batch import tree_tensors


class ExplicitDuals:
    """The rest of every block as a distribution over its outputs, and the slots beside it.

    Args:
        truth: The problem.
        capacity: Slots of a block; 0 for storages that keep no labelings: everything is in the rest.
    """

    def __init__(self, truth: Reference, capacity: int) -> None:
        self.truth = truth
        self.capacity = capacity
        self.rest = [np.zeros(len(losses)) for losses in truth.losses]
        for rest, parts in zip(self.rest, truth.parts, strict=True):
            rest[abs(parts).sum(1).argmin()] = 1.0  # the target
        self.rest_mass = [1.0 for _ in self.rest]
        self.outputs: list[list[int]] = [[] for _ in self.rest]
        self.mass: list[list[float]] = [[] for _ in self.rest]
        self.used: list[list[int]] = [[] for _ in self.rest]
        self.clock = 0
        self.evictions = 0

    def columns(self, i: int) -> np.ndarray:
        """What the atoms of block i stand for, ``[A, Y_i]``: the rest as a distribution, and every slot's output."""
        return np.stack([self.rest[i], *np.eye(len(self.rest[i]))[self.outputs[i]]])

    def masses(self, i: int) -> np.ndarray:
        return np.array([self.rest_mass[i], *self.mass[i]])

    def alphas(self) -> list[np.ndarray]:
        return [self.masses(i) @ self.columns(i) for i in range(self.truth.n)]

    def losses(self) -> list[float]:
        pairs = zip(self.alphas(), self.truth.losses, strict=True)
        return [float(alpha @ losses) / self.truth.n for alpha, losses in pairs]

    def weights(self) -> np.ndarray:
        return self.truth.weights(self.alphas())

    def output(self, i: int, labeling: Any) -> int:
        """The number of an output in the list of all, padding aside."""
        (labels,) = tree_tensors(labeling)
        return self.truth.outputs[i].index(tuple(k for k in labels.flatten().tolist() if k >= 0))

    def move(self, i: int, moved: list[float], corner: int) -> None:
        """Add ``moved`` to the masses of rest, slots and corner (the last); the corner is output number ``corner``."""
        self.clock += 1
        self.rest_mass[i] = max(self.rest_mass[i] + moved[0], 0.0)
        self.mass[i] = [max(mass + change, 0.0) for mass, change in zip(self.mass[i], moved[1:], strict=False)]
        if corner in self.outputs[i]:
            self.used[i][self.outputs[i].index(corner)] = self.clock
        else:
            self._insert(i, corner, max(moved[-1], 0.0))

    def _insert(self, i: int, output: int, mass: float) -> None:
        if not self.capacity:
            self._merge(i, output, mass)
            return
        new = output, mass, self.clock
        if len(self.outputs[i]) < self.capacity:
            place = len(self.outputs[i])
            for values in (self.outputs[i], self.mass[i], self.used[i]):
                values.append(0)
        elif idle := [place for place in range(self.capacity) if self.mass[i][place] == 0.0]:
            place = min(idle, key=lambda p: self.used[i][p])
        elif mass == 0.0:
            return
        else:
            place = int(np.argmin(self.mass[i]))
            self._merge(i, self.outputs[i][place], self.mass[i][place])
            self.evictions += 1
        self.outputs[i][place], self.mass[i][place], self.used[i][place] = new

    def _merge(self, i: int, output: int, mass: float) -> None:
        if mass > 0.0:
            total = self.rest_mass[i] + mass
            self.rest[i] = (self.rest_mass[i] * self.rest[i] + mass * np.eye(len(self.rest[i]))[output]) / total
            self.rest_mass[i] = total

    def slots(self, storage: Any, i: int) -> tuple[list[int], list[float]]:
        """Outputs and masses of the slots of a ``Labelings`` storage."""
        count = int(storage.sets.count[i])
        (stored,) = storage.sets.labelings or [storage.sets.mass[:, :0]]
        return [self.output(i, stored[i, c]) for c in range(count)], storage.sets.mass[i, :count].tolist()

    def adopt_idle_slots(self, storage: Any) -> None:
        """After an exact pass: no mass has moved, and slots without mass may hold outputs of the pass."""
        for i in range(self.truth.n):
            outputs, mass = self.slots(storage, i)
            here = {o: m for o, m in zip(self.outputs[i], self.mass[i], strict=True) if m > 0.0}
            there = {o: m for o, m in zip(outputs, mass, strict=True) if m > 0.0}
            assert here.keys() == there.keys()
            assert all(abs(here[o] - there[o]) < 1e-12 for o in here)
            assert len(set(outputs)) == len(outputs)
            self.outputs[i], self.mass[i] = outputs, mass
            self.used[i] = [int(storage.sets.used[i, c]) - 10**6 for c in range(len(outputs))]


@contextmanager
def recorded_moves(stored_class: type) -> Iterator[list[tuple[Any, Tensor, Tensor, Tensor]]]:
    """The moves that steps make: ``(stored, coefficients, rows, change)`` each."""
    moves: list[tuple[Any, Tensor, Tensor, Tensor]] = []
    original = stored_class.move

    def move(self: Any, coefficients: Tensor, rows: Tensor, change: Tensor, *rest: Any) -> None:
        moves.append((self, coefficients.clone(), rows.clone(), change.clone()))
        original(self, coefficients, rows, change, *rest)

    with mock.patch.object(stored_class, "move", move):
        yield moves
