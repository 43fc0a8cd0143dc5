"""The averaged perceptron over arcs, on the packed features and with the decoders of the compiled loop.

Collins (2002), "Discriminative training methods for hidden Markov models"; the average by the sums of updates and of
updates times their moment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.kinds.examples import Examples
from torchssvm.structures.arborescence.kind import ArcsAdapter, arc_potentials, features_of
from torchssvm.structures.arborescence.oracle import best_projective


class Work(NamedTuple):
    """Scores of arcs, and what the decoder needs."""

    emission: Any
    room: Any


@njit
def epoch(order, examples, arcs, model, summed, work, labels, moment):
    """Visit sentences; ``summed`` gets every update times its moment. Returns the number of wrong heads."""
    wrong, emission, room = 0, work.emission, work.room
    for i in order:
        length = examples.length[i]
        arc_potentials(arcs, examples, model, i, work)
        best_projective(emission, length, arcs.single_root, room.charts, room.places, labels)
        start = examples.start[i]
        for t in range(length):
            new, old = labels[t], examples.y[start + t]
            if new == old:
                continue
            wrong += 1
            line = examples.line[i] + t * (length + 1)
            for head, amount in ((old, 1.0), (new, -1.0)):
                for p in range(examples.row[line + head], examples.row[line + head + 1]):
                    begin, end = features_of(examples, i, examples.column[p])
                    for column in examples.distinct[begin:end]:
                        model.emission[column, 0] += amount
                        summed[column] += moment * amount
        moment += 1.0
    return wrong


class Perceptron:
    """Its weights and their average.

    Args:
        adapter: The adapter that packed the sentences.
        examples: Projective sentences.
        seed: Of the order of visits.
    """

    def __init__(self, adapter: ArcsAdapter, examples: Examples, seed: int) -> None:
        size, longest = len(adapter.head.weight), adapter.longest
        self.examples = examples
        self.model = adapter.weights.model()._replace(emission=np.zeros((size, 1), np.float32))
        self.summed = np.zeros(size)
        work = Work(np.zeros((longest, longest + 1), np.float32), adapter.room_of(examples)())
        self.scratch: tuple[Any, ...] = work, np.zeros(longest, int)
        self.generator = torch.Generator().manual_seed(seed)
        self.visits = 0

    def epoch(self) -> int:
        """Visit every sentence once, in random order; the number of wrong heads."""
        n = len(self.examples.start) - 1
        order = torch.randperm(n, generator=self.generator).numpy()
        moment = float(1 + self.visits)
        wrong = epoch(order, self.examples, self.examples.kind, self.model, self.summed, *self.scratch, moment)
        self.visits += n
        return wrong

    def average(self) -> Tensor:
        """The average of the weights after every visit."""
        mean = self.model.emission[:, 0] - self.summed / (1 + self.visits)
        return torch.from_numpy(mean).to(torch.float32)
