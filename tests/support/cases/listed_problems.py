"""Tiny random training problems of every kind of output, with all outputs listed: NumPy, and nothing of the package.

What is listed follows from the definitions of score, loss and target. The package's head, structure and batches of
the same problem are beside it, for the code that is checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cases.arborescences import outputs as all_arborescences
from cases.graphs import pad_edges
from cases.problems import Reference, is_allowed
from torchssvm import (
    Arborescence,
    Batch,
    Chain,
    Graphs,
    HiddenStates,
    LinearArcs,
    LinearChain,
    LinearMulticlass,
    LinearMultilabel,
    LinearPairwiseGraph,
    LinearSegments,
    LinearTree,
    Segments,
    SlackRescaling,
    SparseFeatures,
    SparseLinearChain,
    Tree,
)
from torchssvm.structures.arborescence import NonProjective, Projective
from torchssvm.structures.chain import Transitions

Features = dict[str, np.ndarray]
"""phi of an output by the names of the head's parameters."""


@dataclass
class Listed:
    """A problem; it is a map-style dataset too.

    Attributes:
        head: The package's head, with weights of zero.
        take: The batch of some rows, as the head takes it.
        truth: All outputs: losses and feature differences.
        structure: What is trained, if not ``head.structure``.
        observed: Of hidden states: for each example the outputs that show its labels.
    """

    head: torch.nn.Module
    take: Callable[[list[int]], Batch]
    truth: Reference
    structure: Any = None
    observed: list[np.ndarray] = field(default_factory=list)

    def __len__(self) -> int:
        return self.truth.n

    def __getitem__(self, i: int) -> int:
        return i

    def collate(self, rows: list[int]) -> Batch:
        return self.take(list(rows))

    def weights(self) -> np.ndarray:
        return np.concatenate([p.detach().double().numpy().ravel() for p in self.head.parameters()])


class Maker:
    """Lists one problem, example by example, in the order of the head's parameters."""

    def __init__(self, head: torch.nn.Module, lam: float) -> None:
        self.head, self.truth = head, Reference([], [], [], lam)

    def vector(self, phi: Features) -> np.ndarray:
        pieces = []
        for name, parameter in self.head.named_parameters():
            assert phi[name].shape == tuple(parameter.shape), name
            pieces.append(phi[name].ravel())
        return np.concatenate(pieces)

    def add(self, losses: Sequence[float], outputs: list[Features], target: Features | np.ndarray) -> None:
        correct = target if isinstance(target, np.ndarray) else self.vector(target)
        self.truth.losses.append(np.array(losses, dtype=np.float64))
        self.truth.changes.append(np.stack([self.vector(phi) for phi in outputs]) - correct)


def draw(random: np.random.Generator, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers of this dtype; sometimes of another scale, and sometimes whole, where scores tie."""
    result = torch.from_numpy(random.normal(size=shape) * float(random.choice([1.0, 1.0, 1.0, 1e-3, 30.0])))
    return (result.round() if random.random() < 0.15 else result).to(dtype)


def rescaled(random: np.random.Generator, made: Listed) -> Listed:
    """The same problem with slack rescaling: the loss multiplies the change of the features."""
    truth = made.truth
    truth.changes = [losses[:, None] * changes for losses, changes in zip(truth.losses, truth.changes, strict=True)]
    made.structure = SlackRescaling(made.head.structure)
    return made


def hidden(made: Listed, shows: np.ndarray, every: list[list[tuple[int, ...]]], labels: list[list[int]]) -> Listed:
    """States are hidden: losses are those of the labels that they show, and features are no differences."""
    for row, (outputs, label) in enumerate(zip(every, labels, strict=True)):
        made.truth.losses[row] = np.array([float(np.mean(shows[list(o)] != label)) for o in outputs])
        made.observed.append(np.flatnonzero(made.truth.losses[row] == 0.0))
    made.structure = HiddenStates(made.head.structure, shows)
    return made


def classes(random: np.random.Generator, lam: float, dtype: torch.dtype, *, shows: np.ndarray | None = None) -> Listed:
    n, width, bias = int(random.integers(1, 6)), 2, bool(random.random() < 0.5)
    states = int(random.integers(2, 5)) if shows is None else len(shows)
    x, y = draw(random, n, width, dtype=dtype), torch.from_numpy(random.integers(0, states, n))
    head = LinearMulticlass(width, states, bias=bias).to(dtype)
    made, eye = Maker(head, lam), np.eye(states)
    for tokens, label in zip(x.double().numpy(), y.tolist(), strict=True):
        outputs = [{"weight": np.outer(row, tokens), "bias": row} for row in eye]
        target = outputs[label] if shows is None else np.zeros(1)
        made.add([float(k != label) for k in range(states)], outputs, target)
    if shows is None:
        return Listed(head, lambda rows: Batch(x[rows], y[rows], torch.tensor(rows)), made.truth)
    labels = torch.from_numpy(shows)[y]
    result = Listed(head, lambda rows: Batch(x[rows], labels[rows], torch.tensor(rows)), made.truth)
    return hidden(result, shows, [[(k,) for k in range(states)]] * n, labels[:, None].tolist())


def chains(
    random: np.random.Generator,
    lam: float,
    dtype: torch.dtype,
    *,
    shows: np.ndarray | None = None,
    forbidding: float = 0.6,
) -> Listed:
    """Chains, dense or with sparse features, a share of them with forbidden states and pairs."""
    n, width = int(random.integers(1, 5)), 3
    states = int(random.integers(2, 4)) if shows is None else len(shows)
    sparse, bias, boundary, forbids = (bool(random.random() < share) for share in (0.4, 0.5, 0.5, forbidding))
    lengths = random.integers(1, 5, n)
    rules = None
    if forbids:
        pairs, first, last = (torch.from_numpy(random.random(s) < 0.6) for s in ((states, states), states, states))
        pairs[tuple(random.permutation(states)[:2])] = False
        pairs.fill_diagonal_(True)
        first[0] = last[0] = True  # state 0 all along is an output
        rules = Transitions(pairs, first=first, last=last)
    structure = Chain(states, transitions=rules)
    make = SparseLinearChain if sparse else LinearChain
    head = make(width, states, bias=bias, boundary=boundary, structure=structure).to(dtype)
    x = draw(random, n, int(lengths.max()), width, dtype=dtype) * torch.from_numpy(random.random((n, 1, width)) < 0.7)
    every = [
        [o for o in itertools.product(range(states), repeat=size) if rules is None or is_allowed(rules, o)]
        for size in lengths.tolist()
    ]
    labels = [outputs[int(random.integers(len(outputs)))] for outputs in every]
    made, eye = Maker(head, lam), np.eye(states)

    def features(word: np.ndarray, output: tuple[int, ...]) -> Features:
        one = eye[list(output)]
        emission = word.T @ one
        return {
            "emission": emission if sparse else emission.T,
            "transition": one[:-1].T @ one[1:],
            "bias": one.sum(0),
            "start_transitions": one[0],
            "end_transitions": one[-1],
        }

    for row, (outputs, label) in enumerate(zip(every, labels, strict=True)):
        word = x[row, : lengths[row]].double().numpy()
        losses = [sum(a != b for a, b in zip(o, label, strict=True)) / len(o) for o in outputs]
        made.add(losses, [features(word, o) for o in outputs], features(word, label) if shows is None else np.zeros(1))
    shown = [list(label) if shows is None else shows[list(label)].tolist() for label in labels]

    def take(rows: list[int]) -> Batch:
        sizes = torch.from_numpy(lengths[rows])
        y = torch.full((len(rows), int(sizes.max())), -1)
        for place, row in enumerate(rows):
            y[place, : len(shown[row])] = torch.tensor(shown[row])
        given: Any = x[rows, : y.shape[1]]
        if sparse:
            columns = torch.arange(width).expand(given.shape)
            given = SparseFeatures(columns, given)
        return Batch(given, y, torch.tensor(rows), sizes)

    result = Listed(head, take, made.truth)
    return result if shows is None else hidden(result, shows, every, shown)


def label_sets(random: np.random.Generator, lam: float, dtype: torch.dtype) -> Listed:
    n, labels, width, bias = int(random.integers(1, 5)), int(random.integers(2, 5)), 2, bool(random.random() < 0.5)
    x, y = draw(random, n, width, dtype=dtype), torch.from_numpy(random.integers(0, 2, (n, labels)))
    head = LinearMultilabel(width, labels, bias=bias).to(dtype)
    made, pairs = Maker(head, lam), list(itertools.combinations(range(labels), 2))
    every = [np.array(bits) for bits in itertools.product((0.0, 1.0), repeat=labels)]
    for tokens, label in zip(x.double().numpy(), y.double().numpy(), strict=True):
        outputs, target = (
            [
                {"unary": np.outer(o, tokens), "bias": o, "pairwise": np.array([o[k] * o[j] for k, j in pairs])}
                for o in these
            ]
            for these in (every, [label])
        )
        made.add([float(np.mean(o != label)) for o in every], outputs, target[0])
    return Listed(head, lambda rows: Batch(x[rows], y[rows], torch.tensor(rows)), made.truth)


def graphs(random: np.random.Generator, lam: float, dtype: torch.dtype) -> Listed:
    """Graphs with labels and features of edges; some have cycles, some no edge."""
    n, states, width, links = int(random.integers(1, 4)), int(random.integers(2, 4)), 2, 2
    lengths = random.integers(1, 5, n)
    share = float(random.choice([0.0, 0.4, 0.9]))
    edges = [
        torch.tensor([pair for pair in itertools.combinations(range(size), 2) if random.random() < share]).view(-1, 2)
        for size in lengths.tolist()
    ]
    x = draw(random, n, int(lengths.max()), width, dtype=dtype)
    z = [draw(random, len(pairs), links, dtype=dtype) for pairs in edges]
    y = torch.from_numpy(random.integers(0, states, (n, int(lengths.max()))))
    head = LinearPairwiseGraph(width, links, states).to(dtype)
    made, eye = Maker(head, lam), np.eye(states)

    def features(row: int, labels: tuple[int, ...]) -> Features:
        one = eye[list(labels)]
        node, edge = one.T @ x[row, : len(labels)].double().numpy(), np.zeros((links, states, states))
        for features_of_edge, (a, b) in zip(z[row].double().numpy(), edges[row].tolist(), strict=True):
            edge[:, labels[a], labels[b]] += features_of_edge
        return {"node": node, "edge": edge}

    for row, size in enumerate(lengths.tolist()):
        label = tuple(y[row, :size].tolist())
        outputs = list(itertools.product(range(states), repeat=size))
        losses = [sum(a != b for a, b in zip(o, label, strict=True)) / size for o in outputs]
        made.add(losses, [features(row, o) for o in outputs], features(row, label))

    def take(rows: list[int]) -> Batch:
        sizes = torch.from_numpy(lengths[rows])
        padded = pad_edges([edges[row] for row in rows])
        edge_features = torch.ones(*padded.shape[:2], links, dtype=dtype)
        for place, row in enumerate(rows):
            edge_features[place, : len(z[row])] = z[row]
        most = int(sizes.max())
        return Batch(Graphs(x[rows, :most], edge_features, padded), y[rows, :most], torch.tensor(rows), sizes)

    return Listed(head, take, made.truth)


Spans = tuple[tuple[int, int, int], ...]


def all_segmentations(length: int, states: int, least: list[int], most: int) -> Iterator[Spans]:
    """All ways to cut ``length`` frames into spans (start, end, label)."""
    for cuts in itertools.product((False, True), repeat=length - 1):
        at = [0, *(t + 1 for t, cut in enumerate(cuts) if cut), length]
        pieces = list(itertools.pairwise(at))
        for labels in itertools.product(range(states), repeat=len(pieces)):
            if all(least[k] <= e - s <= most for (s, e), k in zip(pieces, labels, strict=True)):
                yield tuple((s, e, k) for (s, e), k in zip(pieces, labels, strict=True))


def segments(random: np.random.Generator, lam: float, dtype: torch.dtype) -> Listed:
    """Segments, a share of them with boundaries, with least durations, and with the loss of spans."""
    n, states, most, width = int(random.integers(1, 5)), int(random.integers(1, 4)), int(random.integers(1, 4)), 2
    boundary, spans = (bool(random.random() < 0.5) for _ in range(2))
    least = [int(random.integers(1, most + 1)) if random.random() < 0.4 else 1 for _ in range(states)]
    least[0] = 1
    structure = Segments(states, most, min_duration=least, boundary=boundary, span_loss=spans)
    head = LinearSegments(width, states, most, structure=structure).to(dtype)
    lengths = random.integers(1, 5, n)
    x = draw(random, n, int(lengths.max()), width, dtype=dtype)
    made, targets = Maker(head, lam), []

    def features(frames: np.ndarray, output: Spans) -> Features:
        emission, bias = np.zeros((states * (1 + boundary), width)), np.zeros(states * (1 + boundary))
        table = np.zeros((states + most, states))
        for place, (start, end, label) in enumerate(output):
            emission[label] += frames[start:end].sum(0)
            bias[label] += end - start
            table[states + end - start - 1, label] += 1
            if place:
                table[output[place - 1][2], label] += 1
            if boundary:
                emission[states + label] += frames[start]
                bias[states + label] += 1
        return {"emission": emission, "segment": table, "bias": bias}

    def loss(output: Spans, target: Spans) -> float:
        if spans:
            return float(len(set(output) ^ set(target)))
        shown, true = ([k for s, e, k in these for _ in range(s, e)] for these in (output, target))
        return float(sum(a != b for a, b in zip(shown, true, strict=True)))

    for row, length in enumerate(lengths.tolist()):
        outputs = list(all_segmentations(length, states, least, most))
        target = outputs[int(random.integers(len(outputs)))]
        frames = x[row, :length].double().numpy()
        made.add([loss(o, target) for o in outputs], [features(frames, o) for o in outputs], features(frames, target))
        targets.append(target)

    def take(rows: list[int]) -> Batch:
        sizes = torch.from_numpy(lengths[rows])
        y = torch.full((len(rows), int(sizes.max())), -1)
        for place, row in enumerate(rows):
            for start, end, label in targets[row]:
                y[place, start:end] = label
                y[place, start] += states
        return Batch(x[rows, : y.shape[1]], y, torch.tensor(rows), sizes)

    return Listed(head, take, made.truth)


def trees(random: np.random.Generator, lam: float, dtype: torch.dtype) -> Listed:
    """Trees and forests of up to four nodes; edges share a matrix, or have their own."""
    n, states, nodes, width = *(int(k) for k in random.integers((1, 2, 1), (5, 4, 5))), 2
    shared, bias, normalize = (bool(flag) for flag in random.random(3) < 0.5)
    parent = [-1, *(int(random.integers(-1, v)) for v in range(1, nodes))]
    structure = Tree(states, parent, shared=shared, normalize=normalize)
    head = LinearTree(width, states, parent, bias=bias, shared=shared, structure=structure).to(dtype)
    lengths, y = random.integers(1, nodes + 1, n), random.integers(0, states, (n, nodes))
    x = draw(random, n, nodes, width, dtype=dtype)
    made, eye = Maker(head, lam), np.eye(states)

    def features(tokens: np.ndarray, labels: tuple[int, ...]) -> Features:
        one, edge = eye[list(labels)], np.zeros((nodes, states, states))
        for v, label in enumerate(labels):
            if parent[v] >= 0:
                edge[v, labels[parent[v]], label] += 1
        return {"node": one.T @ tokens, "edge": edge.sum(0) if shared else edge, "bias": one.sum(0)}

    for row, size in enumerate(lengths.tolist()):
        tokens, label = x[row, :size].double().numpy(), tuple(y[row, :size].tolist())
        every = list(itertools.product(range(states), repeat=size))
        losses = (np.array(every) != label).sum(1) / (size if normalize else 1)
        made.add(losses, [features(tokens, o) for o in every], features(tokens, label))

    def take(rows: list[int]) -> Batch:
        most = int(lengths[rows].max())
        labels, sizes = torch.from_numpy(y[rows, :most]), torch.from_numpy(lengths[rows])
        return Batch(x[rows, :most], labels, torch.tensor(rows), sizes)

    return Listed(head, take, made.truth)


def arcs(random: np.random.Generator, lam: float, dtype: torch.dtype) -> Listed:
    """Arborescences of up to four tokens, projective or not, with one root or several; arcs list their features."""
    return _arcs(random, lam, dtype, None)


def labelled_arcs(random: np.random.Generator, lam: float, dtype: torch.dtype) -> Listed:
    """Arborescences of up to three tokens, whose arcs have one or two labels."""
    return _arcs(random, lam, dtype, int(random.integers(1, 3)))


def _arcs(random: np.random.Generator, lam: float, dtype: torch.dtype, labels: int | None) -> Listed:
    n, width, valued, normalize, projective, single = int(random.integers(1, 5)), 5, *(random.random(4) < 0.5).tolist()
    among, several = (Projective if projective else NonProjective)(single_root=single), labels or 1
    share = None if labels is None else float(random.integers(0, 5)) / 4
    structure = Arborescence(among, normalize=normalize, num_labels=labels, label_cost=share)
    head = LinearArcs(width, num_labels=labels, structure=structure).to(dtype)
    lengths = random.integers(1, 5 if labels is None else 4, n)
    longest = int(lengths.max())
    columns = torch.from_numpy(random.integers(-1, width, (n, longest, longest + 1, 2)))
    values = draw(random, *columns.shape, dtype=dtype) if valued else None
    worth = ((columns >= 0) * (1.0 if values is None else values.double())).numpy()
    made, y = Maker(head, lam), torch.full((n, longest), -1)
    for row, size in enumerate(lengths.tolist()):
        trees, tags = all_arborescences(size, projective, single), list(itertools.product(range(several), repeat=size))
        every = [(heads, each) for heads in trees for each in tags]
        target = every[int(random.integers(len(every)))]
        y[row, :size] = torch.tensor(target[0]) * several + torch.tensor(target[1])

        def features(output: Any, row: int = row) -> Features:
            heads, tags = output
            arc, result = (row, np.arange(len(heads)), list(heads)), np.zeros((width, several))
            places = columns[arc].numpy(), np.array(tags)[:, None]
            np.add.at(result, places, worth[arc])  # no feature, -1, is worth nothing
            return {"weight": result if labels else result[:, 0]}

        heads, tags = (np.array([output[place] for output in every]) for place in range(2))
        wrong = np.where(heads != target[0], 1.0, (share or 0.0) * (tags != target[1]))
        made.add(wrong.sum(1) / (size if normalize else 1), [features(o) for o in every], features(target))

    def take(rows: list[int]) -> Batch:
        most = int(lengths[rows].max())
        listed = (each if each is None else each[rows, :most, : most + 1] for each in (columns, values))
        return Batch(SparseFeatures(*listed), y[rows, :most], torch.tensor(rows), torch.from_numpy(lengths[rows]))

    return Listed(head, take, made.truth)
