"""What structures and heads on graphs share: targets, padding, what stands where no edge is."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cases.head_cases import HeadTestCase
from cases.problems import examples
from cases.structure_cases import SEEDS, StructureTestCase
from torchssvm import Graphs, Potentials, WeightedLabels


class GraphStructureCase(StructureTestCase):
    """Graphs that differ in nodes and edges; nodes that differ in weight."""

    labels = 2
    weighted = padded = True
    rechecked = False
    options: dict = {}  # noqa: RUF012

    def random_target(self, structure, potentials, random):
        shape = potentials["node"].shape[:2]
        labels = torch.randint(-3, 9, shape, generator=random)  # garbage in the padding
        real = self.sizes(potentials).unsqueeze(1) > torch.arange(shape[1])
        labels = torch.where(real, labels % self.labels, labels)
        if not self.weighted:
            return labels
        weights = torch.rand(shape, generator=random, dtype=torch.float64)
        weights[torch.rand(shape, generator=random) < 0.1] = 0.0
        return WeightedLabels(labels, torch.where(real, weights, -7.0))

    def sizes(self, potentials):
        batch, longest = potentials["node"].shape[:2]
        return torch.full((batch,), longest) if potentials.lengths is None else potentials.lengths

    def widths(self, potentials, row):
        return int(self.sizes(potentials)[row]), int((potentials.edges[row, :, 0] >= 0).sum())

    def one(self, labeling, potentials, row):
        size, edges = self.widths(potentials, row)
        if hasattr(labeling, "costs"):
            return labeling.labels[row, :size], labeling.costs[row, :size]
        labels, of_edges = labeling
        return torch.cat([labels[row, :size], of_edges[row, :edges]])

    def alone(self, labeling, potentials, row):
        size, edges = self.widths(potentials, row)
        pairs = zip(labeling, (size, edges, size), strict=False)
        return type(labeling)(*(t[row : row + 1, :width] for t, width in pairs))

    def cropped(self, potentials, row):
        (size, edges), here = self.widths(potentials, row), slice(row, row + 1)
        tensors = potentials["node"][here, :size], potentials["edge"][here, :edges]
        lengths = torch.tensor([size]) if self.padded else None
        return type(potentials)(*tensors, potentials.edges[here, :edges], lengths)

    def on(self, potentials, device):
        lengths = None if potentials.lengths is None else potentials.lengths.to(device)
        moved = (t.to(device) for t in (potentials["node"], potentials["edge"], potentials.edges))
        return type(potentials)(*moved, lengths)

    def reference_loss(self, structure, labeling, target):
        labels, costs = target
        return sum(float(cost) for y, t, cost in zip(labeling.tolist(), labels.tolist(), costs, strict=False) if y != t)

    def count(self, structure, potentials, row):
        return self.labels ** int(self.sizes(potentials)[row])

    def bad_targets(self, potentials, target):
        labels = target.labels
        for number in (self.labels, -1):
            wrong = labels.clone()
            wrong[1, 0] = number
            yield wrong, "target"
        yield labels[:, 1:], "target"
        yield labels[:2], "target"
        yield labels.double(), "target"
        yield WeightedLabels(labels.to(torch.int8), target.costs), "target"
        yield WeightedLabels(labels, target.costs[:, 1:]), "target"
        for number in (-1.0, math.nan, math.inf):
            wrong = target.costs.index_fill(1, torch.tensor([0]), number)
            yield WeightedLabels(labels, wrong), "target"
        yield (labels, target.costs), "target"

    def bad_potentials(self, potentials):
        yield Potentials(potentials["node"])
        yield Potentials(potentials.tensors)

    @examples(25)
    @given(seed=SEEDS, noise=st.sampled_from([1.0, -1e6, math.nan, math.inf]))
    def test_what_stands_where_no_edge_is_does_not_matter_to_the_oracle(self, seed, noise):
        structure, potentials, _ = self.setting(seed)
        edge = potentials["edge"].clone()
        edge[potentials.edges[..., 0] < 0] = noise
        mine = structure.argmax(potentials)
        again = structure.argmax(potentials.replace({**potentials.tensors, "edge": edge}))
        assert self.same(mine.labeling, again.labeling)
        assert torch.equal(mine.value, again.value)


class Complete(nn.Module):
    """A head on complete graphs, all of whose features stand in one tensor ``[B, N, 3 + 3 G]``."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, x, lengths=None):
        pairs = [(p, q) for q in range(x.shape[1]) for p in range(q)]
        edges = torch.tensor(pairs, dtype=torch.int64, device=x.device).view(-1, 2).expand(len(x), -1, 2)
        if lengths is not None:
            edges = edges.masked_fill((edges >= lengths.view(-1, 1, 1)).any(2, keepdim=True), -1)
        size = self.head.edge_features
        links = [x[:, q, 3 + size * p : 3 + size * (p + 1)] for p, q in pairs]
        links = torch.stack(links, 1) if links else x.new_zeros(len(x), 0, size)
        return self.head(Graphs(x[..., :3], links, edges), lengths)


class GraphHeadCase(HeadTestCase):
    """Heads with three features of nodes, on graphs of up to four."""

    links = 2
    lengths = True

    @abstractmethod
    def make_graph_head(self): ...

    def make_head(self):
        return Complete(self.make_graph_head())

    def make_input(self, random, batch):
        x = torch.randn(batch, 4, 9, generator=random, dtype=torch.float64)
        return (x, torch.randint(1, 5, (batch,), generator=random)) if self.lengths else (x,)

    def edges(self, potentials, row):
        size = potentials["node"].shape[1] if potentials.lengths is None else int(potentials.lengths[row])
        return size * (size - 1) // 2

    def single(self, potentials, row):
        result = super().single(potentials, row)
        return {"node": result["node"], "edge": result["edge"][: self.edges(potentials, row)]}

    def random_parts(self, potentials, random):
        parts = super().random_parts(potentials, random)
        for row in range(potentials.batch_size):
            parts["edge"][row, self.edges(potentials, row) :] = 0.0
        return parts

    def bad_inputs(self, inputs):
        x = inputs[0]
        for wrong in (0, -1, 5):
            yield (x, torch.tensor([1, wrong, 1])), "lengths"
        yield (x, torch.tensor([1.0, 2.0, 3.0])), "lengths"
