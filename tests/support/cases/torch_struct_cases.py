"""torch-struct's distributions with all their outputs."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch import Tensor

from cases.arborescences import crosses, reaches_root
from torchssvm.core.potentials import Potentials
from torchssvm.structures import TorchStruct

torch_struct = pytest.importorskip("torch_struct")


@functools.cache
def chains(length: int, states: int) -> Tensor:
    """All label sequences as edges, [outputs, N-1, C, C]."""
    events = torch.zeros(states**length, length - 1, states, states)
    for event, labels in zip(events, itertools.product(range(states), repeat=length), strict=True):
        for n in range(length - 1):
            event[n, labels[n + 1], labels[n]] = 1
    return events


@functools.cache
def segmentations(length: int, durations: int, states: int) -> Tensor:
    """All ways from 0 to N-1 in steps of 1 to K-1 with a state at every stop, [outputs, N-1, K, C, C]."""
    events = []
    for cut in itertools.product((False, True), repeat=length - 2):
        stops = [0, *(n for n in range(1, length - 1) if cut[n - 1]), length - 1]
        if any(b - a >= durations for a, b in itertools.pairwise(stops)):
            continue
        for labels in itertools.product(range(states), repeat=len(stops)):
            event = torch.zeros(length - 1, durations, states, states)
            for (a, old), (b, new) in itertools.pairwise(zip(stops, labels, strict=True)):
                event[a, b - a, new, old] = 1
            events.append(event)
    return torch.stack(events)


@functools.cache
def projective_trees(length: int, multiroot: bool, labels: int = 0) -> Tensor:
    """All projective dependency trees, [outputs, N, N] or [outputs, N, N, L], root arcs on the diagonal."""
    events = []
    for heads in itertools.product(range(length + 1), repeat=length):  # 0 is the root, word n is n + 1
        arcs = list(enumerate(heads, start=1))
        if not multiroot and heads.count(0) != 1:
            continue
        if crosses(heads) or not all(reaches_root(heads, child) for child, _ in arcs):
            continue
        for kinds in itertools.product(range(max(labels, 1)), repeat=length):
            event = torch.zeros(length, length, max(labels, 1))
            for (child, head), kind in zip(arcs, kinds, strict=True):
                event[head - 1 if head else child - 1, child - 1, kind] = 1
            events.append(event if labels else event[:, :, 0])
    return torch.stack(events)


@functools.cache
def bracketings(length: int, labels: int) -> Tensor:
    """All binary trees over N tokens, a nonterminal for every span and leaf, [outputs, N, N, NT]."""

    def trees(i: int, j: int) -> list[list[tuple[int, int]]]:
        if i == j:
            return [[(i, i)]]
        return [[(i, j), *left, *right] for k in range(i, j) for left in trees(i, k) for right in trees(k + 1, j)]

    events = []
    for spans in trees(0, length - 1):
        for kinds in itertools.product(range(labels), repeat=len(spans)):
            event = torch.zeros(length, length, labels)
            for (i, j), kind in zip(spans, kinds, strict=True):
                event[i, j, kind] = 1
            events.append(event)
    return torch.stack(events)


class Case:
    """One distribution: the adapter, the shape of its potentials, and all outputs of a length."""

    def __init__(self, name, structure, shape, outputs, shortest, longest):
        self.name, self.structure, self.shape, self.outputs = name, structure, shape, outputs
        self.shortest, self.longest = shortest, longest

    def __repr__(self):
        return self.name

    def draw(self, seed: int, kind: str = "normal", batch: int = 3, dtype=torch.float64) -> Potentials:
        """Random potentials of a padded batch, sometimes with more padding than its longest example needs."""
        generator = torch.Generator().manual_seed(seed)
        spare = int(torch.randint(0, 2, (), generator=generator))
        lengths = torch.randint(self.shortest, self.longest + 1, (batch,), generator=generator)
        shape = (batch, *self.shape(self.longest + spare))
        if kind == "ties":  # so few values that most examples have several maximisers
            scores = torch.randint(-1, 2, shape, generator=generator).to(dtype)
        else:
            scores = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        return Potentials(scores, lengths)

    def embed(self, outputs: Tensor, like: Tensor) -> Tensor:
        """Outputs of one length, padded to the shape of one example of ``like``."""
        events = like.new_zeros(len(outputs), *like.shape[1:])
        events[tuple(slice(n) for n in outputs.shape)] = outputs.to(like.dtype)
        return events

    def all_outputs(self, potentials: Potentials, row: int) -> Tensor:
        return self.embed(self.outputs(int(potentials.lengths[row])), potentials.single)


SEMI_MARKOV = TorchStruct(torch_struct.SemiMarkovCRF)
TREES, ONE_ROOT = TorchStruct(torch_struct.DependencyCRF), TorchStruct(torch_struct.DependencyCRF, multiroot=False)


def semi_markov(name: str, durations: int, longest: int) -> Case:
    def outputs(n: int) -> Tensor:
        return segmentations(n, durations, 2)

    return Case(name, SEMI_MARKOV, lambda n: (n - 1, durations, 2, 2), outputs, 2, longest)


CASES = [
    Case("chain", TorchStruct(torch_struct.LinearChainCRF), lambda n: (n - 1, 3, 3), lambda n: chains(n, 3), 2, 5),
    semi_markov("semi-markov", 4, 7),
    semi_markov("semi-markov-short", 2, 4),
    semi_markov("semi-markov-long", 7, 4),
    Case("dependency", TREES, lambda n: (n, n), lambda n: projective_trees(n, True), 1, 4),
    Case("dependency-single-root", ONE_ROOT, lambda n: (n, n), lambda n: projective_trees(n, False), 1, 4),
    Case("dependency-labeled", ONE_ROOT, lambda n: (n, n, 2), lambda n: projective_trees(n, False, 2), 1, 3),
    Case("tree", TorchStruct(torch_struct.TreeCRF), lambda n: (n, n, 2), lambda n: bracketings(n, 2), 1, 4),
]
