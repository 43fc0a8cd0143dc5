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
from torchssvm.structures.arborescence.kind import ArcsAdapter, arc_decode, arc_potentials, features_of
from torchssvm.structures.arborescence.labels import count_of


class Work(NamedTuple):
    """Scores, and what the decoder needs."""

    emission: Any
    prefixes: Any
    room: Any


@njit
def epoch(order, examples, arcs, model, summed, work, labels, moment):
    """Visit sentences; ``summed`` gets every update times its moment. Returns the number of wrong arcs."""
    wrong, several = 0, count_of(arcs.labels)
    for i in order:
        length = examples.length[i]
        arc_potentials(arcs, examples, model, i, work)
        arc_decode(arcs, examples, i, length, work, work.emission, labels)  # labels cost nothing
        start = examples.start[i]
        for t in range(length):
            new, old = labels[t], examples.y[start + t]
            if new == old:
                continue
            wrong += 1
            line = examples.line[i] + t * (length + 1)
            for part, amount in ((old, 1.0), (new, -1.0)):
                arc, label = line + part // several, part % several
                for p in range(examples.row[arc], examples.row[arc + 1]):
                    begin, end = features_of(examples, i, examples.column[p])
                    for column in examples.distinct[begin:end]:
                        model.emission[column, label] += amount
                        summed[column, label] += moment * amount
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
        shape, longest = adapter.weights.emission.shape, adapter.longest
        self.examples = examples._replace(cost=0.0 * examples.cost, added=0.0 * examples.added)
        self.model = adapter.weights.model()._replace(emission=np.zeros(shape, np.float32))
        self.summed = np.zeros(shape)
        scores = (np.zeros((longest, adapter.num_states), np.float32) for _ in range(2))
        work = Work(*scores, adapter.room_of(examples)())
        self.scratch: tuple[Any, ...] = work, np.zeros(longest, int)
        self.shape = adapter.head.weight.shape
        self.generator = torch.Generator().manual_seed(seed)
        self.visits = 0

    def epoch(self) -> int:
        """Visit every sentence once, in random order; the number of wrong arcs."""
        n = len(self.examples.start) - 1
        order = torch.randperm(n, generator=self.generator).numpy()
        moment = float(1 + self.visits)
        wrong = epoch(order, self.examples, self.examples.kind, self.model, self.summed, *self.scratch, moment)
        self.visits += n
        return wrong

    def average(self) -> Tensor:
        """The average of the weights after every visit, ``[F, L]``, or ``[F]`` without labels."""
        mean = self.model.emission - self.summed / (1 + self.visits)
        return torch.from_numpy(mean).to(torch.float32).view(self.shape)
