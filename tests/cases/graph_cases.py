"""What structures on graphs share: targets, padding, what stands where no edge is."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import examples
from structure_cases import SEEDS, StructureTestCase

from torchssvm import Potentials, WeightedLabels


class GraphStructureCase(StructureTestCase):
    """Graphs that differ in nodes and edges; nodes that differ in weight."""

    labels = 2
    weighted = padded = True
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
        (size, edges), own = self.widths(potentials, row), slice(row, row + 1)
        tensors = potentials["node"][own, :size], potentials["edge"][own, :edges]
        lengths = torch.tensor([size]) if self.padded else None
        return type(potentials)(*tensors, potentials.edges[own, :edges], lengths)

    def on(self, potentials, device):
        lengths = None if potentials.lengths is None else potentials.lengths.to(device)
        own = (t.to(device) for t in (potentials["node"], potentials["edge"], potentials.edges))
        return type(potentials)(*own, lengths)

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
            yield wrong, f"target has label {number} at position 0 of row 1"
        yield labels[:, 1:], "target must be int64"
        yield labels[:2], "target must be int64"
        yield labels.double(), "float64"
        yield WeightedLabels(labels.to(torch.int8), target.costs), "int8"
        yield WeightedLabels(labels, target.costs[:, 1:]), "has weights"
        for number in (-1.0, math.nan, math.inf):
            wrong = target.costs.index_fill(1, torch.tensor([0]), number)
            yield WeightedLabels(labels, wrong), "negative or not finite"
        yield (labels, target.costs), "tuple"

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
