from __future__ import annotations

import copy
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from bounded import groups_of, optimum_within
from graphs import GraphProblem, best_scores, random_potentials
from head_cases import HeadTestCase
from hypothesis import given
from hypothesis import strategies as st
from problems import examples, flat, rng
from scipy.optimize import linprog
from structure_cases import StructureTestCase
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import (
    BCFW,
    Away,
    BlockGap,
    CacheOracle,
    Corrective,
    DualState,
    ExactSearch,
    FrankWolfe,
    GraphCut,
    GraphPotentials,
    Graphs,
    Labelings,
    LinearGraph,
    MeanParts,
    MinCut,
    Pairwise,
    Potentials,
    RoofDual,
    Segmentation,
    ShortStep,
    WeightedLabels,
    Weights,
    certify,
    check,
)
from torchssvm.batch import apply_head, tree_map
from torchssvm.oracles import min_cut, roof_dual
from torchssvm.oracles.graph_cut import relax, without_padding
from torchssvm.structures import find_corner
from torchssvm.structures.graph_cut import GraphTarget

SEEDS = st.integers(0, 2**31 - 1)
pytest.importorskip("maxflow")


class GraphCutCase(StructureTestCase):
    options: dict = {}  # noqa: RUF012
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
            yield wrong, f"target has {number} at node 0 in row 1"
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

    @examples(25)
    @given(seed=SEEDS)
    def test_cut_edges_are_those_between_different_labels(self, seed):
        structure, potentials, target = self.setting(seed)
        for labeling in (structure.argmax(potentials).labeling, target, *structure.enumerate(potentials)):
            for row, ends in enumerate(potentials.edges.tolist()):
                y = labeling.labels[row].tolist()
                expected = [-1 if p < 0 else int(y[p] != y[q]) for p, q in ends]
                assert labeling.cut[row].tolist() == expected
            assert torch.equal(labeling.labels >= 0, target.labels >= 0)


class TestGraphCut(GraphCutCase):
    """Graphs that differ in nodes and edges, nodes that differ in weight."""


class TestGraphCutUnpadded(GraphCutCase):
    padded = False
    weighted = False


class TestGraphCutCounts(GraphCutCase):
    options = {"balanced": False, "normalize": False}  # noqa: RUF012


class TestGraphCutByRoofDuality(GraphCutCase):
    """Attractive edges: nothing is approximate."""

    options = {"oracle": RoofDual(), "normalize": False}  # noqa: RUF012


# -- The oracles -------------------------------------------------------------------------------------------


def solved(potentials, oracle):
    return oracle(potentials["node"], potentials["edge"], potentials.edges, potentials.lengths)


@examples(60)
@given(seed=SEEDS, batch=st.integers(1, 3), integers=st.booleans())
def test_minimum_cuts_against_enumeration(seed, batch, integers):
    """Graphs of up to 8 nodes; of several maximisers it is the one with the fewest labels 1."""
    potentials = random_potentials(rng(seed), batch, most=8, integers=integers)
    labels = solved(potentials, min_cut)
    for row, (_, maximisers) in enumerate(best_scores(potentials)):
        size = int(potentials.lengths[row])
        assert labels[row, :size].tolist() in (maximisers == 1).tolist()
        assert labels[row, :size].tolist() == (maximisers == 1).all(0).tolist()
        assert not labels[row, size:].any()


@examples(60)
@given(seed=SEEDS, batch=st.integers(1, 3), integers=st.booleans(), attractive=st.booleans())
def test_roof_duals_against_enumeration(seed, batch, integers, attractive):
    potentials = random_potentials(rng(seed), batch, most=7, integers=integers, attractive=attractive)
    labels, bound = solved(potentials, roof_dual)
    structure = GraphCut(RoofDual())
    found = structure.argmax(potentials)
    for row, (best, _) in enumerate(best_scores(potentials)):
        assert float(bound[row]) >= best - 1e-9
        assert float(found.value[row]) <= best + 1e-9
        if attractive or bool((potentials["edge"][row][potentials.edges[row, :, 0] >= 0] >= 0).all()):
            assert float(bound[row]) == pytest.approx(best, abs=1e-9)
            assert float(found.value[row]) == pytest.approx(best, abs=1e-9)
    if attractive:
        assert torch.equal(labels, solved(potentials, min_cut))
        assert found.exact
        assert found.bound is None


@examples(40)
@given(seed=SEEDS)
def test_the_roof_dual_is_the_value_of_the_local_polytope(seed):
    """max sum_p theta_p (2 y_p - 1) - sum c_pq d_pq, where d_pq may be all that y_p, y_q in [0, 1] let it be."""
    potentials = random_potentials(rng(seed), 1, most=6, attractive=False, lengths=False)
    node, edge = potentials["node"][0].numpy(), potentials["edge"][0].numpy()
    nodes, links = len(node), len(edge)
    rows, limits = [], []
    for e, (p, q) in enumerate(potentials.edges[0].tolist()):
        for a, b, d, limit in ((1, -1, -1, 0), (-1, 1, -1, 0), (-1, -1, 1, 0), (1, 1, 1, 2)):
            row = np.zeros(nodes + links)
            row[p], row[q], row[nodes + e] = a, b, d
            rows.append(row)
            limits.append(limit)
    cost = np.concatenate([-2 * node, edge])
    solution = linprog(cost, np.array(rows).reshape(-1, nodes + links), limits, bounds=(0, 1))
    _, bound = solved(potentials, roof_dual)
    assert float(bound[0]) == pytest.approx(-solution.fun - node.sum(), abs=1e-8)


@examples(60)
@given(seed=SEEDS, batch=st.integers(1, 3), integers=st.booleans())
def test_what_the_relaxation_knows_all_best_labelings_share(seed, batch, integers):
    potentials = random_potentials(rng(seed), batch, most=7, integers=integers, attractive=False)
    label, known, _ = relax(solved(potentials, without_padding))
    begin = 0
    for size, (_, maximisers) in zip(potentials.lengths.tolist(), best_scores(potentials), strict=True):
        own = slice(begin, begin + size)
        assert (maximisers[:, known[own]] == label[own][known[own]]).all()
        begin += size
    assert not label[~known].any()


def test_a_frustrated_triangle():
    """Three nodes that all want to differ: the relaxation puts a half everywhere and parts all three edges."""
    edges = torch.tensor([[[0, 1], [1, 2], [2, 0]]])
    potentials = GraphPotentials(torch.zeros(1, 3), -torch.ones(1, 3), edges)
    found = GraphCut(RoofDual()).argmax(potentials)
    assert found.value.tolist() == [2.0]
    assert found.bound.tolist() == [3.0]
    assert not found.exact
    leaning = GraphPotentials(torch.tensor([[5.0, 0.1, -5.0]]), -torch.ones(1, 3), edges)
    found = GraphCut(RoofDual()).argmax(leaning)
    assert found.labeling.labels.tolist()[0][::2] == [1, 0]
    assert float(found.value) == pytest.approx(12.1, abs=1e-6)


def test_repulsive_trees_are_solved_exactly():
    """No cycle, no frustration: a chain of nodes that all differ from their neighbours, and one that decides."""
    edges = torch.tensor([[[p, p + 1] for p in range(5)]])
    node = torch.tensor([[0.0, 0.0, 0.5, 0.0, 0.0, 0.0]])
    found = GraphCut(RoofDual()).argmax(GraphPotentials(node, -torch.ones(1, 5), edges))
    assert found.labeling.labels.tolist() == [[1, 0, 1, 0, 1, 0]]
    assert found.value.tolist() == found.bound.tolist() == [5.5]


def test_known_cuts():
    node = torch.tensor([[1.0, -0.4, -0.4], [1.0, -2.0, 0.0], [0.0, 3.0, -1.0]])
    edges = torch.tensor([[[0, 1], [1, 2]], [[1, 0], [-1, -1]], [[-1, -1], [-1, -1]]])
    edge = torch.tensor([[2.0, 2.0], [0.75, -9.0], [-9.0, -9.0]])
    found = GraphCut().argmax(GraphPotentials(node, edge, edges, torch.tensor([3, 2, 2])))
    assert found.labeling.labels.tolist() == [[1, 1, 1], [1, 0, -1], [0, 1, -1]]
    assert found.labeling.cut.tolist() == [[0, 0], [1, -1], [-1, -1]]
    assert found.value.tolist() == pytest.approx([0.2, 2.25, 3.0])
    assert found.value.dtype == torch.float64


@pytest.mark.parametrize("oracle", [MinCut(), RoofDual()], ids=repr)
def test_graphs_without_edges(oracle):
    structure = GraphCut(oracle)
    node = torch.tensor([[1.0, -2.0], [0.0, 9.0]])
    potentials = GraphPotentials(node, torch.zeros(2, 0), torch.zeros(2, 0, 2, dtype=torch.int64), torch.tensor([2, 1]))
    found = structure.argmax(potentials)
    assert found.labeling.labels.tolist() == [[1, 0], [0, -1]]
    target = structure.check_target(torch.tensor([[0, 0], [1, 1]]), potentials)
    corner = find_corner(structure, potentials, target)
    assert corner.labeling.labels.tolist() == [[1, 0], [0, -1]]
    assert corner.hinge.tolist() == [2.5, 1.0]
    (one, _) = roof_dual(node[:1, :1], torch.zeros(1, 0), torch.zeros(1, 0, 2, dtype=torch.int64))
    assert one.tolist() == [[True]]


def test_repulsive_edges_are_refused_by_minimum_cuts():
    edges = torch.tensor([[[0, 1]], [[1, 2]]])
    potentials = GraphPotentials(torch.zeros(2, 3), torch.tensor([[0.0], [-0.25]]), edges)
    with pytest.raises(ValueError, match=r"edge 0 \(nodes 1 and 2\) in row 1 .* -0.25.*\"lower\": 0.0.*RoofDual"):
        GraphCut().argmax(potentials)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads, monkeypatch):
    random = rng(3)
    potentials = random_potentials(random, 40, most=30, attractive=False)
    attractive = potentials.replace({**potentials.tensors, "edge": potentials["edge"].abs()})
    monkeypatch.setattr("torchssvm.oracles.graph_cut._GRAIN", 1.0)
    one = solved(attractive, min_cut), *solved(potentials, roof_dual)
    held = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        several = solved(attractive, min_cut), *solved(potentials, roof_dual)
    finally:
        torch.set_num_threads(held)
    assert all(torch.equal(a, b) for a, b in zip(one, several, strict=True))


def test_a_result_worse_than_the_target_is_replaced_by_it():
    """Training must not go down; over many frustrated graphs, whose targets are their best labelings."""
    structure, replaced = GraphCut(RoofDual()), 0
    for seed in range(60):
        potentials = random_potentials(rng(seed), 8, most=9, attractive=False, lengths=False)
        best = torch.tensor(np.array([maximisers[0] for _, maximisers in best_scores(potentials)]))
        target = structure.check_target(best, potentials)
        plain = structure.argmax(potentials)
        found = structure.augmented_argmax(potentials, target)
        own = (structure.parts(target)["node"].double() * potentials["node"]).sum(1)
        own += (structure.parts(target)["edge"].double() * potentials["edge"]).sum(1)
        assert bool((found.value >= own - 1e-9).all())
        assert bool((found.bound >= found.value - 1e-9).all())
        replaced += int((plain.value < own - 1e-9).sum())
        corner = find_corner(structure, potentials, target)
        assert bool((corner.hinge >= 0).all())
        assert bool((corner.bound >= corner.hinge).all())
    assert replaced  # the rounding is not always right


# -- Potentials, targets and losses ------------------------------------------------------------------------


def test_a_known_loss():
    """Each class counts a half, however large it is."""
    potentials = GraphPotentials(torch.zeros(2, 4), torch.zeros(2, 0), torch.zeros(2, 0, 2, dtype=torch.int64))
    target = WeightedLabels(torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]]), torch.tensor([[2.0, 1, 3, 2], [2.0, 1, 3, 2]]))
    costs = {
        (True, True): [[1 / 2, 1 / 12, 3 / 12, 2 / 12], [2 / 8, 1 / 8, 3 / 8, 2 / 8]],
        (True, False): [[4.0, 2 / 3, 2.0, 4 / 3], [2.0, 1.0, 3.0, 2.0]],
        (False, True): [[2 / 8, 1 / 8, 3 / 8, 2 / 8]] * 2,
        (False, False): [[2.0, 1.0, 3.0, 2.0]] * 2,
    }
    for (balanced, normalize), expected in costs.items():
        structure = GraphCut(balanced=balanced, normalize=normalize)
        checked = structure.check_target(target, potentials)
        torch.testing.assert_close(checked.costs, torch.tensor(expected, dtype=torch.float64))
        for p in range(4):
            labels = checked.labels.clone()
            labels[:, p] = 1 - labels[:, p]
            found = structure.loss(Segmentation(labels, checked.cut), checked)
            assert found.tolist() == pytest.approx([row[p] for row in expected])
    plain = GraphCut().check_target(target.labels, potentials)
    assert plain.costs.tolist() == [pytest.approx([float(Fraction(1, k)) for k in (2, 6, 6, 6)]), [0.25] * 4]


def test_nodes_without_any_weight_cost_nothing():
    potentials = GraphPotentials(torch.zeros(1, 2), torch.zeros(1, 0), torch.zeros(1, 0, 2, dtype=torch.int64))
    for balanced in (True, False):
        target = WeightedLabels(torch.tensor([[1, 0]]), torch.zeros(1, 2))
        assert GraphCut(balanced=balanced).check_target(target, potentials).costs.tolist() == [[0.0, 0.0]]


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
        assert chosen.extremes == (int(chosen.lengths.min()), int(chosen.lengths.max()))
        assert chosen.adjoint is None
        assert not chosen.requires_grad
        assert made.replace(made.tensors).edges is made.edges
        masked = made.select(torch.tensor([False, True, False]))
        assert torch.equal(masked.edges, made.edges[1:2])
        assert copy.copy(made).edges is made.edges


# -- The head ----------------------------------------------------------------------------------------------


class Complete(nn.Module):
    """``LinearGraph`` on complete graphs, all of whose features stand in one tensor ``[B, N, F + 3 G]``."""

    features, links = 3, 2

    def __init__(self):
        super().__init__()
        self.head = LinearGraph(self.features, self.links)

    def forward(self, x, lengths=None):
        pairs = [(p, q) for q in range(x.shape[1]) for p in range(q)]
        edges = torch.tensor(pairs, dtype=torch.int64, device=x.device).view(-1, 2).expand(len(x), -1, 2)
        if lengths is not None:
            edges = torch.where((edges < lengths.view(-1, 1, 1)).all(2, keepdim=True), edges, -1)
        links = [x[:, q, self.features + p * self.links :][:, : self.links] for p, q in pairs]
        links = torch.stack(links, 1) if links else x.new_zeros(len(x), 0, self.links)
        return self.head(Graphs(x[..., : self.features], links, edges), lengths)


class TestLinearGraph(HeadTestCase):
    lengths = True

    def make_head(self):
        return Complete()

    def make_input(self, random, batch):
        x = torch.randn(batch, 4, 9, generator=random, dtype=torch.float64)
        return (x, torch.randint(1, 5, (batch,), generator=random)) if self.lengths else (x,)

    def reference(self, head, x):
        node = sum(x[:, f] * head.head.unary[f] for f in range(3))
        pairs = [(p, q) for q in range(len(x)) for p in range(q)]
        edge = [sum(x[q, 3 + 2 * p + g] * head.head.pairwise[g] for g in range(2)) for p, q in pairs]
        return {"node": node, "edge": torch.stack(edge) if edge else x.new_zeros(0)}

    def edges(self, potentials, row):
        size = potentials["node"].shape[1] if potentials.lengths is None else int(potentials.lengths[row])
        return size * (size - 1) // 2

    def own(self, potentials, row):
        found = super().own(potentials, row)
        return {"node": found["node"], "edge": found["edge"][: self.edges(potentials, row)]}

    def random_parts(self, potentials, random):
        parts = super().random_parts(potentials, random)
        for row in range(potentials.batch_size):
            parts["edge"][row, self.edges(potentials, row) :] = 0.0
        return parts

    def bad_inputs(self, inputs):
        x = inputs[0]
        for wrong in (0, -1, 5):
            yield (x, torch.tensor([1, wrong, 1])), "lengths must lie between 1 and"
        yield (x, torch.tensor([1.0, 2.0, 3.0])), "lengths must be int64"

    def test_graphs_that_do_not_fit_are_refused(self):
        head, good = LinearGraph(3, 2), Graphs(torch.zeros(2, 4, 3), torch.zeros(2, 5, 2), torch.full((2, 5, 2), -1))
        head(good)
        for wrong, words in [
            (good._replace(nodes=torch.zeros(2, 4, 2)), r"x.nodes must be \[B, N, 3\]"),
            (good._replace(nodes=torch.zeros(2, 3)), "x.nodes must be"),
            (good._replace(links=torch.zeros(2, 5, 3)), r"x.links must be \[B, E, 2\]"),
            (good._replace(links=torch.zeros(1, 5, 2)), "x.links must be"),
            (good._replace(edges=torch.zeros(2, 5, 2)), "edges must be int64"),
            (good._replace(edges=torch.full((2, 4, 2), -1)), "edges must be int64"),
            (good._replace(edges=torch.zeros(2, 5, 2, dtype=torch.int64)), r"edges has \[0, 0\]"),
        ]:
            with pytest.raises(ValueError, match=words):
                head(wrong)
        for sizes in ((0, 1), (1, 0)):
            with pytest.raises(ValueError, match="must be at least 1"):
                LinearGraph(*sizes)

    def test_the_structure_is_the_one_given(self):
        own = GraphCut(RoofDual())
        assert LinearGraph(2, 2, structure=own).structure is own
        assert repr(own) == "GraphCut(RoofDual(), balanced=True, normalize=True)"
        assert not own.same_as(LinearGraph(2, 2).structure)
        assert own.same_as(GraphCut(RoofDual()))


class TestLinearGraphWithoutLengths(TestLinearGraph):
    lengths = False


# -- Training ----------------------------------------------------------------------------------------------

ATTRACTIVE = {"pairwise": (0.0, None)}


def train(problem, storage, direction=None, oracle=None, *, bounds=ATTRACTIVE, search=None, passes=150, tolerance=1e-6):
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=storage)
    loss = BlockGap(dual, direction, oracle=oracle)
    optim = BCFW(groups_of(problem.head, bounds), dual, line_search=search)
    random = rng(1)
    for _ in range(passes):
        for rows in torch.randperm(problem.n, generator=random).split(2):
            batch = problem.batch(rows)
            optim.zero_grad()
            loss(apply_head(problem.head, batch), batch.y, batch.index).backward()
            optim.step()
        found = certify(problem.head, dual, problem.everything())
        if found.gap <= tolerance:
            break
    return found


@pytest.mark.parametrize(
    ("storage", "direction", "oracle", "search", "tolerance"),
    [
        (Labelings(), Corrective(), None, ExactSearch(), 1e-6),
        (Labelings(capacity=3), Corrective(), CacheOracle(), ExactSearch(), 1e-3),  # labelings are merged
        (Labelings(), Pairwise(), CacheOracle(), ExactSearch(), 1e-4),
        (Labelings(), Away(), None, ShortStep(), 1e-3),
        (MeanParts(), FrankWolfe(), None, ExactSearch(), 1e-2),
        (Weights(), FrankWolfe(), None, ExactSearch(), 1e-2),
    ],
    ids=lambda value: "" if value is None or isinstance(value, float) else type(value).__name__,
)
def test_training_reaches_the_optimum_within_the_bounds(storage, direction, oracle, search, tolerance):
    problem = GraphProblem(2, lam=0.3)
    truth = problem.reference()
    lower = np.array([-np.inf, -np.inf, 0.0, 0.0])
    best, weights = optimum_within(truth, lower, np.full(4, np.inf))
    assert (weights[2:] <= 1e-9).any()  # a bound binds
    assert best > truth.optimum() + 1e-4
    found = train(problem, storage, direction, oracle, search=search, tolerance=tolerance)
    assert found.gap <= tolerance
    assert found.exact
    assert found.dual <= best + 1e-7
    assert found.primal >= best - 1e-7
    held = flat(problem.head.parameters()).numpy()
    assert (held >= lower).all()
    assert problem.lam / 2 * float(((held - weights) ** 2).sum()) <= found.gap + 1e-6  # strong convexity


def test_float32_is_certified_too():
    found = train(GraphProblem(2, lam=0.3, dtype=torch.float32), Labelings(), Corrective(), tolerance=1e-4)
    assert found.gap <= 1e-4


def test_without_bounds_the_error_says_what_to_do():
    problem = GraphProblem(2, lam=0.05)
    with pytest.raises(ValueError, match=r"potential -.*bound their weights at 0"):
        train(problem, MeanParts(), bounds={}, passes=20)


def test_roof_duals_train_without_bounds():
    """The dual is that of the exact problem, and the certificate encloses its optimum."""
    problem = GraphProblem(2, lam=0.3, structure=GraphCut(RoofDual()))
    best = problem.reference().optimum()
    found = train(problem, Labelings(), Corrective(), bounds={}, passes=60)
    assert found.dual <= best + 1e-7
    assert found.primal >= best - 1e-7
    assert found.gap < 0.05
    assert float(problem.head.pairwise.detach().min()) < 0.0


def test_head_and_structure_pass_the_check():
    """With weights of any sign, as the check takes them."""
    structure = GraphCut(RoofDual())
    problem = GraphProblem(5, structure=structure)
    report = check(problem.head, structure, problem.batch(range(5)))
    assert report.ok, str(report)
    assert sum(finding.skipped is not None for finding in report.findings) == 0, str(report)


def test_lightning_trains_within_bounds_and_decodes(tmp_path):
    lightning = pytest.importorskip("lightning")
    from torchssvm.lightning import DualityGap, StructuredSVM

    problem = GraphProblem(2, lam=0.3)
    best, _ = optimum_within(problem.reference(), np.array([-np.inf, -np.inf, 0.0, 0.0]), np.full(4, np.inf))
    model = StructuredSVM(
        problem.head, lam=problem.lam, direction=Corrective(), storage=Labelings(), bounds=ATTRACTIVE
    ).double()
    loader = DataLoader(range(problem.n), batch_size=2, collate_fn=problem.batch)
    gap = DualityGap(tolerance=1e-4, every_n_epochs=5)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(
        max_epochs=200, callbacks=[gap], enable_model_summary=False, default_root_dir=tmp_path, **quiet
    )
    trainer.fit(model, loader)
    assert gap.certificate.gap <= 1e-4
    assert gap.certificate.primal == pytest.approx(best, abs=1e-3)
    assert float(problem.head.pairwise.detach().min()) == 0.0
    batch = problem.batch([1, 4])
    found = model.decode(batch.x, batch.lengths)
    expected = problem.structure.argmax(apply_head(problem.head, batch)).labeling
    assert isinstance(found, Segmentation)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_without_pymaxflow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "maxflow", None)
    with pytest.raises(ImportError, match=r"torchssvm\[graphcut\]"):
        GraphCut().argmax(random_potentials(rng(0), 2))


def test_pymaxflow_is_not_imported_before_it_is_used():
    code = (
        "import sys, torch, torchssvm\n"
        "head = torchssvm.LinearGraph(1, 1)\n"
        "edges = torch.tensor([[[0, 1]]])\n"
        "potentials = head(torchssvm.Graphs(torch.zeros(1, 2, 1), torch.zeros(1, 1, 1), edges))\n"
        "head.structure.check_target(torch.tensor([[0, 1]]), potentials)\n"
        "assert 'maxflow' not in sys.modules\n"
        "head.structure.argmax(potentials)\n"
        "assert 'maxflow' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
