from __future__ import annotations

import copy
import math

import pytest
import torch
from graphs import random_potentials
from hypothesis import given
from hypothesis import strategies as st
from problems import examples, rng
from structure_cases import StructureTestCase

from torchssvm import GraphCut, Potentials, WeightedLabels
from torchssvm.core.batch import tree_map
from torchssvm.core.max_oracle import find_corner
from torchssvm.structures.graph_cut import GraphPotentials, RoofDual
from torchssvm.structures.graph_cut.structure import GraphTarget

SEEDS = st.integers(0, 2**31 - 1)
pytest.importorskip("maxflow")


class GraphCutCase(StructureTestCase):
    positive = ("edge",)
    options: dict = {"balanced": True}  # noqa: RUF012
    weighted = True
    padded = True

    def make_structure(self):
        return GraphCut(**self.options)

    def make_potentials(self, random, batch, integers, dtype):
        return random_potentials(random, batch, integers=integers, lengths=self.padded, dtype=dtype)

    def random_target(self, structure, potentials, random):
        shape = potentials["node"].shape
        labels = torch.randint(-3, 7, shape, generator=random)  # garbage in the padding
        real = self.sizes(potentials).unsqueeze(1) > torch.arange(shape[1])
        labels = torch.where(real, labels % 2, labels)
        if not self.weighted:
            return labels
        weights = torch.rand(shape, generator=random, dtype=torch.float64)
        weights[torch.rand(shape, generator=random) < 0.1] = 0.0
        return WeightedLabels(labels, torch.where(real, weights, -7.0))

    def sizes(self, potentials):
        batch, longest = potentials["node"].shape
        return torch.full((batch,), longest) if potentials.lengths is None else potentials.lengths

    def one(self, labeling, potentials, row):
        size, edges = int(self.sizes(potentials)[row]), int((potentials.edges[row, :, 0] >= 0).sum())
        if isinstance(labeling, GraphTarget):
            return labeling.labels[row, :size], labeling.costs[row, :size]
        return torch.cat([labeling.labels[row, :size], labeling.cut[row, :edges]])

    def alone(self, labeling, potentials, row):
        size, edges = int(self.sizes(potentials)[row]), int((potentials.edges[row, :, 0] >= 0).sum())
        widths = (size, edges, size)
        return type(labeling)(*(t[row : row + 1, :width] for t, width in zip(labeling, widths, strict=False)))

    def cropped(self, potentials, row):
        size, edges = self.sizes(potentials)[row : row + 1], int((potentials.edges[row, :, 0] >= 0).sum())
        own = slice(row, row + 1)
        node, edge = potentials["node"][own, : int(size)], potentials["edge"][own, :edges]
        return GraphPotentials(node, edge, potentials.edges[own, :edges], size if self.padded else None)

    def several(self, structure, potentials, seed, count):
        """Of random potentials, whose edges have any sign."""
        return super().several(GraphCut(RoofDual()), potentials, seed, count)

    def reference_score(self, potentials, labeling):
        labels, cut = labeling.split([len(potentials["node"]), len(potentials["edge"])])
        gained = sum(float(t if y else -t) for t, y in zip(potentials["node"], labels.tolist(), strict=True))
        return gained - sum(float(c) for c, parted in zip(potentials["edge"], cut.tolist(), strict=True) if parted)

    def reference_loss(self, structure, labeling, target):
        labels, costs = target
        return sum(float(cost) for y, t, cost in zip(labeling.tolist(), labels.tolist(), costs, strict=False) if y != t)

    def count(self, structure, potentials, row):
        return 2 ** int(self.sizes(potentials)[row])

    def bad_targets(self, potentials, target):
        labels = target.labels
        for number in (2, -1):
            wrong = labels.clone()
            wrong[1, 0] = number
            yield wrong, f"target has label {number} at position 0 of row 1"
        yield labels[:, 1:], "target must be int64"
        yield labels[:2], "target must be int64"
        yield labels.double(), "float64"
        yield WeightedLabels(labels.to(torch.int8), target.costs), "int8"
        yield WeightedLabels(labels, target.costs[:, 1:]), "has weights"
        for number in (-1.0, math.nan, math.inf):
            yield (
                WeightedLabels(labels, target.costs.index_fill(1, torch.tensor([0]), number)),
                "negative or not finite",
            )
        yield (labels, target.costs), "tuple"

    def bad_potentials(self, potentials):
        yield Potentials(potentials["node"])
        yield Potentials(potentials.tensors)

    def test_devices(self, device):
        structure, potentials, target = self.setting(11, 4, integers=True)
        here = find_corner(structure, potentials, target)
        lengths = None if potentials.lengths is None else potentials.lengths.to(device)
        own = [t.to(device) for t in (potentials["node"], potentials["edge"], potentials.edges)]
        there = find_corner(structure, GraphPotentials(*own, lengths), tree_map(lambda t: t.to(device), target))
        assert {t.device.type for t in there.labeling} == {device.type}
        assert self.same(tree_map(lambda t: t.cpu(), there.labeling), here.labeling)
        assert torch.equal(there.hinge.cpu(), here.hinge)

    @examples(25)
    @given(seed=SEEDS, noise=st.sampled_from([1.0, -1e6, math.nan, math.inf]))
    def test_what_stands_where_no_edge_is_does_not_matter_to_the_oracle(self, seed, noise):
        structure, potentials, _ = self.setting(seed)
        other = potentials.replace(
            {**potentials.tensors, "edge": potentials["edge"].masked_fill(potentials.edges[..., 0] < 0, noise)}
        )
        mine, again = structure.argmax(potentials), structure.argmax(other)
        assert self.same(mine.labeling, again.labeling)
        assert torch.equal(mine.value, again.value)


class TestGraphCut(GraphCutCase):
    """Graphs that differ in nodes and edges, nodes that differ in weight."""


@pytest.mark.variant
class TestGraphCutUnpadded(GraphCutCase):
    padded = False
    weighted = False


@pytest.mark.variant
class TestGraphCutCounts(GraphCutCase):
    options = {"normalize": False}  # noqa: RUF012


@pytest.mark.variant
class TestGraphCutByRoofDuality(GraphCutCase):
    """Attractive edges: nothing is approximate."""

    options = {"oracle": RoofDual()}  # noqa: RUF012


class TestGraphPotentials:
    def test_sizes_and_edges_that_do_not_fit_are_refused(self):
        node, edge = torch.zeros(2, 3), torch.zeros(2, 2)
        good = torch.tensor([[[0, 1], [1, 2]], [[1, 0], [-1, -1]]])
        lengths = torch.tensor([3, 2])
        GraphPotentials(node, edge, good, lengths)
        for place in ([0, 2], [1, 1], [-1, 0], [1, -1], [-2, -2], [0, 3]):
            wrong = good.clone()
            wrong[1, 0] = torch.tensor(place)
            with pytest.raises(ValueError, match=r"at place 0 in row 1 .* 0 to 1; -1"):
                GraphPotentials(node, edge, wrong, lengths)
        for args, words in [
            ((node, edge, good[:, :1], lengths), "edges must be int64"),
            ((node, edge, good.int(), lengths), "int32"),
            ((node, edge[:1], good[:1], lengths), "first axis"),
            ((node[0], edge, good, lengths), "potentials must be"),
            ((node, edge.unsqueeze(2), good, lengths), "potentials must be"),
            ((node, edge, good, torch.tensor([4, 2])), "lengths must lie between"),
        ]:
            with pytest.raises(ValueError, match=words):
                GraphPotentials(*args)

    def test_edges_go_with_the_examples(self):
        potentials = random_potentials(rng(2), 3)
        made = GraphPotentials(
            potentials["node"].requires_grad_(),
            potentials["edge"],
            potentials.edges,
            potentials.lengths,
            adjoint=lambda parts: [],
        )
        chosen = made.select(torch.tensor([2, 0])).detach()
        assert isinstance(chosen, GraphPotentials)
        assert torch.equal(chosen.edges, made.edges[[2, 0]])
        assert torch.equal(chosen.lengths, made.lengths[[2, 0]])
        assert (chosen.min_length, chosen.max_length) == (int(chosen.lengths.min()), int(chosen.lengths.max()))
        assert chosen.adjoint is None
        assert not chosen.requires_grad
        assert made.replace(made.tensors).edges is made.edges
        masked = made.select(torch.tensor([False, True, False]))
        assert torch.equal(masked.edges, made.edges[1:2])
        assert copy.copy(made).edges is made.edges
