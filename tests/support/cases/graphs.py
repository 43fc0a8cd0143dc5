"""Small random graphs, and the definition of a graph cut's score, loss and training problem by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from cases.problems import Reference, rng
from torchssvm import Batch, GraphCut, Graphs, LinearGraph, WeightedLabels
from torchssvm.structures.graph_cut import GraphPotentials


def random_edges(nodes, random, share=0.6):
    """Some pairs of nodes, in random order and direction; one pair now and then twice."""
    pairs = [(p, q) for p in range(nodes) for q in range(p)]
    chosen = [pair for pair in pairs if torch.rand((), generator=random) < share]
    if chosen and torch.rand((), generator=random) < 0.2:
        chosen.append(chosen[0][::-1])
    order = torch.randperm(len(chosen), generator=random).tolist()
    return torch.tensor([chosen[k] for k in order], dtype=torch.int64).view(-1, 2)


def pad_edges(edges, width=None):
    """Lists of edges as ``[B, E, 2]``, -1 where an example has fewer."""
    width = max(map(len, edges)) if width is None else width
    result = torch.full((len(edges), width, 2), -1)
    for row, pairs in enumerate(edges):
        result[row, : len(pairs)] = pairs
    return result


def random_potentials(random, batch, *, most=4, integers=False, attractive=True, lengths=True, dtype=torch.float64):
    """Garbage in the padding."""
    sizes = torch.randint(1, most + 1, (batch,), generator=random) if lengths else torch.full((batch,), most)
    edges = pad_edges([random_edges(size, random) for size in sizes.tolist()])
    shapes = (batch, int(sizes.max())), edges.shape[:2]
    if integers:
        node, edge = (torch.randint(-3, 4, shape, generator=random).to(dtype) for shape in shapes)
    else:
        node, edge = (torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes)
    if attractive:
        edge = torch.where(edges[..., 0] >= 0, edge.abs(), edge)
    return GraphPotentials(node, edge, edges, sizes if lengths else None)


def best_scores(potentials):
    """For each example the maximum over all labelings and all maximisers, from the definition."""
    results = []
    for row in range(potentials.batch_size):
        size = potentials["node"].shape[1] if potentials.lengths is None else int(potentials.lengths[row])
        node = potentials["node"][row, :size].double().numpy()
        real = potentials.edges[row, :, 0] >= 0
        ends, edge = potentials.edges[row][real].numpy(), potentials["edge"][row][real].double().numpy()
        y = np.array(list(itertools.product((0, 1), repeat=size)))
        scores = (2 * y - 1) @ node - (y[:, ends[:, 0]] != y[:, ends[:, 1]]) @ edge
        results.append((scores.max(), y[scores >= scores.max() - 1e-12]))
    return results


class GraphProblem:
    """Random graphs of different sizes, with features of edges that are not negative; the loss is balanced."""

    def __init__(self, seed, n=5, features=2, links=2, lam=0.1, structure=None, dtype=torch.float64, most=3):
        random = self.drawn(seed, n, features, lam, most, 2)
        self.nodes = self.nodes.to(dtype)
        self.links = [
            torch.rand(len(pairs), links, generator=random, dtype=torch.float64).to(dtype) for pairs in self.edges
        ]
        self.head = LinearGraph(features, links, structure=structure or GraphCut(balanced=True)).to(dtype)
        self.structure = self.head.structure

    def drawn(self, seed, n, features, lam, most, states):
        """Draws all but the features of edges; the generator."""
        random = rng(seed)
        self.n, self.lam, self.states = n, lam, states
        self.lengths = torch.randint(1, most + 1, (n,), generator=random)
        self.lengths[0] = most
        self.edges = [random_edges(size, random, share=0.8) for size in self.lengths.tolist()]
        self.nodes = torch.randn(n, most, features, generator=random, dtype=torch.float64)
        self.y = torch.randint(0, states, (n, most), generator=random)
        self.weights = 0.5 + torch.rand(n, most, generator=random, dtype=torch.float64)
        return random

    def batch(self, rows):
        index = torch.as_tensor(rows)
        size = int(self.lengths[index].max())
        edges = pad_edges([self.edges[i] for i in index.tolist()])
        links = torch.full((*edges.shape[:2], self.links[0].shape[1]), 9.0, dtype=self.nodes.dtype)
        for row, i in enumerate(index.tolist()):
            links[row, : len(self.links[i])] = self.links[i]
        y = WeightedLabels(self.y[index, :size], self.weights[index, :size])
        return Batch(Graphs(self.nodes[index, :size], links, edges), y, index, self.lengths[index])

    def everything(self, batch_size=2):
        return [self.batch(rows) for rows in torch.arange(self.n).split(batch_size)]

    def reference(self):
        """All labelings of all examples, from the definitions of score and loss."""
        truth = Reference([], [], [], self.lam)
        for i, size in enumerate(self.lengths.tolist()):
            y, weight = self.y[i, :size].numpy(), self.weights[i, :size].numpy()
            x, z, ends = self.nodes[i, :size].double().numpy(), self.links[i].double().numpy(), self.edges[i].numpy()
            share = {k: weight[y == k].sum() for k in set(y.tolist())}
            costs = np.array([w / share[k] / len(share) for w, k in zip(weight, y.tolist(), strict=True)])
            losses, features = [], []
            for labels in itertools.product((0, 1), repeat=size):
                labels = np.array(labels)
                cut = labels[ends[:, 0]] != labels[ends[:, 1]]
                losses.append(costs[labels != y].sum())
                features.append(np.concatenate([(2 * labels - 1) @ x, -cut.astype(float) @ z]))
            cuts = (y[ends[:, 0]] != y[ends[:, 1]]).astype(float)
            truth.losses.append(np.array(losses))
            truth.changes.append(np.array(features) - np.concatenate([(2 * y - 1) @ x, -cuts @ z]))
        return truth
