"""Problems of trees of states and of arborescences, with all outputs listed; see :mod:`listed_problems`."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from cases.arborescences import outputs
from cases.listed_problems import Features, Listed, Maker, draw
from torchssvm import Arborescence, Batch, LinearArcs, LinearTree, SparseFeatures, Tree
from torchssvm.structures.arborescence import NonProjective, Projective


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

    def features(own: np.ndarray, labels: tuple[int, ...]) -> Features:
        one, edge = eye[list(labels)], np.zeros((nodes, states, states))
        for v, label in enumerate(labels):
            if parent[v] >= 0:
                edge[v, labels[parent[v]], label] += 1
        return {"node": one.T @ own, "edge": edge.sum(0) if shared else edge, "bias": one.sum(0)}

    for row, size in enumerate(lengths.tolist()):
        own, label = x[row, :size].double().numpy(), tuple(y[row, :size].tolist())
        every = list(itertools.product(range(states), repeat=size))
        losses = (np.array(every) != label).sum(1) / (size if normalize else 1)
        made.add(losses, [features(own, o) for o in every], features(own, label))

    def take(rows: list[int]) -> Batch:
        most = int(lengths[rows].max())
        labels, sizes = torch.from_numpy(y[rows, :most]), torch.from_numpy(lengths[rows])
        return Batch(x[rows, :most], labels, torch.tensor(rows), sizes)

    return Listed(head, take, made.truth)


def arcs(random: np.random.Generator, lam: float, dtype: torch.dtype) -> Listed:
    """Arborescences of up to four tokens, projective or not, with one root or several; arcs list their features."""
    n, width, valued, normalize, projective, single = int(random.integers(1, 5)), 5, *(random.random(4) < 0.5).tolist()
    among = (Projective if projective else NonProjective)(single_root=single)
    head = LinearArcs(width, structure=Arborescence(among, normalize=normalize)).to(dtype)
    lengths = random.integers(1, 5, n)
    longest = int(lengths.max())
    columns = torch.from_numpy(random.integers(-1, width, (n, longest, longest + 1, 2)))
    values = draw(random, *columns.shape, dtype=dtype) if valued else None
    worth = ((columns >= 0) * (1.0 if values is None else values.double())).numpy()
    made, y = Maker(head, lam), torch.full((n, longest), -1)
    for row, size in enumerate(lengths.tolist()):
        every = outputs(size, projective, single)
        target = every[int(random.integers(len(every)))]
        y[row, :size] = torch.tensor(target)

        def features(heads: tuple[int, ...], row: int = row) -> Features:
            arc, found = (row, np.arange(len(heads)), list(heads)), np.zeros(width)
            np.add.at(found, columns[arc].numpy(), worth[arc])  # no feature, -1, is worth nothing
            return {"weight": found}

        losses = (np.array(every) != target).sum(1) / (size if normalize else 1)
        made.add(losses, [features(heads) for heads in every], features(target))

    def take(rows: list[int]) -> Batch:
        most = int(lengths[rows].max())
        own = (each if each is None else each[rows, :most, : most + 1] for each in (columns, values))
        return Batch(SparseFeatures(*own), y[rows, :most], torch.tensor(rows), torch.from_numpy(lengths[rows]))

    return Listed(head, take, made.truth)
