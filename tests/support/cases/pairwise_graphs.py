"""Small random graphs with K labels, and the definitions of score, loss and training problem by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from cases.graphs import GraphProblem, pad_edges, random_edges
from cases.problems import Reference
from torchssvm import LinearPairwiseGraph
from torchssvm.structures.pairwise_graph import PairwisePotentials


def random_potentials(random, batch, *, states=3, most=4, integers=False, lengths=True, dtype=torch.float64, share=0.8):
    """Garbage in the padding."""
    sizes = torch.randint(1, most + 1, (batch,), generator=random) if lengths else torch.full((batch,), most)
    edges = pad_edges([random_edges(size, random, share) for size in sizes.tolist()])
    shapes = (batch, int(sizes.max()), states), (*edges.shape[:2], states, states)
    if integers:
        node, edge = (torch.randint(-3, 4, shape, generator=random).to(dtype) for shape in shapes)
    else:
        node, edge = (torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes)
    return PairwisePotentials(node, edge, edges, sizes if lengths else None)


def best_scores(potentials):
    """For each example the maximum over all labelings, from the definition."""
    results = []
    for row in range(potentials.batch_size):
        size = potentials["node"].shape[1] if potentials.lengths is None else int(potentials.lengths[row])
        node = potentials["node"][row, :size].double().numpy()
        real = potentials.edges[row, :, 0] >= 0
        ends, edge = potentials.edges[row][real].numpy(), potentials["edge"][row][real].double().numpy()
        y = np.array(list(itertools.product(range(node.shape[1]), repeat=size)))
        scores = node[np.arange(size), y].sum(1)
        results.append((scores + edge[np.arange(len(ends)), y[:, ends[:, 0]], y[:, ends[:, 1]]].sum(1)).max())
    return torch.tensor(results, dtype=torch.float64)


class PairwiseProblem(GraphProblem):
    """Random graphs of different sizes; some have cycles."""

    def __init__(self, seed, n=5, features=2, links=2, states=3, lam=0.1, structure=None, most=4):
        random = self.drawn(seed, n, features, lam, most, states)
        self.links = [torch.randn(len(edges), links, generator=random, dtype=torch.float64) for edges in self.edges]
        self.head = LinearPairwiseGraph(features, links, states, structure=structure).double()
        self.structure = self.head.structure

    def reference(self):
        """All labelings of all examples, from the definitions of score and loss."""
        truth = Reference([], [], [], self.lam)
        eye = np.eye(self.states)
        for i, size in enumerate(self.lengths.tolist()):
            y, costs = self.y[i, :size].numpy(), self.weights[i, :size].numpy()
            costs = costs / costs.sum()
            x, z, ends = self.nodes[i, :size].numpy(), self.links[i].numpy(), self.edges[i].numpy()

            def features(labels, x=x, z=z, ends=ends):
                first, second = eye[labels[ends[:, 0]]], eye[labels[ends[:, 1]]]
                pairs = np.einsum("eg,ek,el->gkl", z, first, second)
                return np.concatenate([(eye[labels].T @ x).ravel(), pairs.ravel()])

            every = [np.array(labels) for labels in itertools.product(range(self.states), repeat=size)]
            truth.losses.append(np.array([costs[labels != y].sum() for labels in every]))
            truth.changes.append(np.array([features(labels) for labels in every]) - features(y))
        return truth
