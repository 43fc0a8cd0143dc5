import copy

import pytest
import torch
from cases.graph_cases import GraphStructureCase
from cases.graphs import random_potentials
from cases.problems import rng

from torchssvm import GraphCut
from torchssvm.structures.graph_cut import GraphPotentials, RoofDual

pytest.importorskip("maxflow")


class GraphCutCase(GraphStructureCase):
    positive = ("edge",)
    options: dict = {"balanced": True}  # noqa: RUF012

    def make_structure(self):
        return GraphCut(**self.options)

    def make_potentials(self, random, batch, integers, dtype):
        return random_potentials(random, batch, integers=integers, lengths=self.padded, dtype=dtype)

    def several(self, structure, potentials, seed, count):
        """Of random potentials, whose edges have any sign."""
        return super().several(GraphCut(RoofDual()), potentials, seed, count)

    def reference_score(self, potentials, labeling):
        labels, cut = labeling.split([len(potentials["node"]), len(potentials["edge"])])
        gained = sum(float(t if y else -t) for t, y in zip(potentials["node"], labels.tolist(), strict=True))
        return gained - sum(float(c) for c, parted in zip(potentials["edge"], cut.tolist(), strict=True) if parted)


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
            with pytest.raises(ValueError, match="edges"):
                GraphPotentials(node, edge, wrong, lengths)
        for wrong, argument in [
            ({"edges": good[:, :1]}, "edges"),
            ({"edges": good.int()}, "edges"),
            ({"node": node[0]}, "node"),
            ({"edge": edge.unsqueeze(2)}, "edge"),
            ({"lengths": torch.tensor([4, 2])}, "lengths"),
        ]:
            with pytest.raises(ValueError, match=argument):
                GraphPotentials(**{"node": node, "edge": edge, "edges": good, "lengths": lengths} | wrong)

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
