"""Graphs with K labels: the structure, what its oracle finds, its head, and training."""

from __future__ import annotations

import pytest
import torch
from cases.bounded import Bounded
from cases.graph_cases import GraphHeadCase, GraphStructureCase
from cases.pairwise_graphs import PairwiseProblem, best_scores, random_potentials
from cases.problems import examples, flat, rng
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchssvm import (
    Batch,
    Corrective,
    Graphs,
    Labelings,
    LinearPairwiseGraph,
    PairwiseGraph,
    Relative,
    Solver,
    grid_edges,
    make_trainer,
    solve,
)
from torchssvm.core.batch import tree_map
from torchssvm.core.max_oracle import find_corner
from torchssvm.structures.pairwise_graph import PairwisePotentials, TreeReweighted
from torchssvm.structures.tree.oracle import max_sum_tree

SEEDS = st.integers(0, 2**31 - 1)
MESSAGES = TreeReweighted(max_rounds=2, cycle_rounds=0, branches=0)


class TestPairwiseGraph(GraphStructureCase):
    labels = 3

    def make_structure(self):
        return PairwiseGraph(self.labels, **self.options)

    def make_potentials(self, random, batch, integers, dtype):
        options = {"states": self.labels, "integers": integers, "lengths": self.padded}
        return random_potentials(random, batch, dtype=dtype, most=3, **options)

    def reference_score(self, potentials, labeling):
        labels, pairs = labeling.split([len(potentials["node"]), len(potentials["edge"])])
        score = sum(float(one[y]) for one, y in zip(potentials["node"], labels.tolist(), strict=True))
        tables = zip(potentials["edge"], pairs.tolist(), strict=True)
        return score + sum(float(table[pair // self.labels, pair % self.labels]) for table, pair in tables)


@pytest.mark.variant
class TestPairwiseGraphUnpadded(TestPairwiseGraph):
    padded = False
    weighted = False
    labels = 2
    options = {"normalize": False}  # noqa: RUF012


# -- The oracle --------------------------------------------------------------------------------------------

ORACLES = [MESSAGES, TreeReweighted(5, 5, 0), TreeReweighted(2, 0, 3), TreeReweighted(2, 2, 1), TreeReweighted()]


@examples(40)
@given(seed=SEEDS, integers=st.booleans(), place=st.integers(0, len(ORACLES) - 1))
def test_bounds_enclose_the_best_score(seed, integers, place):
    """Dense graphs of 5 nodes and 3 labels, with frustrated cycles; after two rounds many gaps are open."""
    potentials = random_potentials(rng(seed), 3, most=5, integers=integers, lengths=bool(seed % 2))
    structure = PairwiseGraph(3, ORACLES[place])
    decoding, best = structure.argmax(potentials), best_scores(potentials)
    bound = decoding.value if decoding.bound is None else decoding.bound
    assert bool((bound >= best - 1e-8).all())
    assert bool((decoding.value <= best + 1e-9).all())
    scores = structure.relative_scores(
        tree_map(lambda t: t.unsqueeze(1), decoding.labeling),
        structure.check_target(torch.zeros(potentials["node"].shape[:2], dtype=torch.int64), potentials),
        potentials,
    )
    assert scores.shape == (3, 1)
    if structure.oracle == TreeReweighted():
        assert decoding.exact
        torch.testing.assert_close(decoding.value, best)


@examples(20)
@given(SEEDS, st.sampled_from([-40, -30, 30]))
def test_the_size_of_potentials_changes_neither_labels_nor_proofs(seed, exponent):
    potentials = random_potentials(rng(seed), 3, most=6, share=0.9)
    parts = potentials["node"], potentials["edge"]
    oracle = TreeReweighted(3, 2, 0)
    labels, value, bound = oracle.solve(*parts, potentials.edges, potentials.lengths)
    factor = 2.0**exponent  # exact
    scaled = oracle.solve(*(factor * t for t in parts), potentials.edges, potentials.lengths)
    assert torch.equal(scaled[0], labels)
    assert torch.equal(scaled[1], factor * value)
    assert torch.equal(scaled[2], factor * bound)


@examples(25)
@given(seed=SEEDS, size=st.integers(1, 9))
def test_trees_are_exact_after_one_round(seed, size):
    """Nodes in any order, edges in any direction, some of them twice; as max-sum on the tree finds it."""
    random = rng(seed)
    order = torch.randperm(size, generator=random)
    parent = torch.full((size,), -1)
    for v in range(1, size):
        if torch.rand((), generator=random) < 0.9:
            parent[order[v]] = order[int(torch.randint(0, v, (), generator=random))]
    child = (parent >= 0).nonzero().flatten()
    node = torch.randn(1, size, 3, generator=random, dtype=torch.float64)
    tables = torch.randn(1, size, 3, 3, generator=random, dtype=torch.float64)
    _, value = max_sum_tree(node, tables, parent)
    edges, edge = torch.stack([parent[child], child], 1), tables[0, child]
    turned = torch.rand(len(child), generator=random) < 0.5
    edges = torch.where(turned.unsqueeze(1), edges.flip(1), edges)
    edge = torch.where(turned[:, None, None], edge.mT, edge)
    edges, edge = torch.cat([edges, edges[:1]]), torch.cat([edge / 2, edge[:1] / 2])
    edge[1 : len(child)] *= 2
    decoding = PairwiseGraph(3, MESSAGES).argmax(PairwisePotentials(node, edge.unsqueeze(0), edges.unsqueeze(0)))
    assert decoding.exact
    torch.testing.assert_close(decoding.value, value)


def test_tightened_cycles_close_gaps_that_messages_leave():
    """Nodes of a triangle that must differ, and two labels: messages find no better bound than for three edges."""
    edges = torch.tensor([[[0, 1], [1, 2], [2, 0]]])
    potentials = PairwisePotentials(torch.zeros(1, 3, 2), -torch.eye(2).expand(1, 3, 2, 2), edges)
    loose = PairwiseGraph(2, TreeReweighted(50, 0, 0)).argmax(potentials)
    assert (loose.value.tolist(), loose.bound.tolist()) == ([-1.0], [0.0])
    tight = PairwiseGraph(2, TreeReweighted(50, 50, 0)).argmax(potentials)
    assert float(tight.bound if tight.bound is not None else tight.value) == pytest.approx(-1.0, abs=1e-3)
    assert PairwiseGraph(2, TreeReweighted(50, 0, 10)).argmax(potentials).exact


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads, set_threads):
    potentials = random_potentials(rng(3), 12, most=8)
    one = PairwiseGraph(3, MESSAGES).argmax(potentials)
    set_threads(threads)
    several = PairwiseGraph(3, MESSAGES).argmax(potentials)
    assert torch.equal(one.labeling.labels, several.labeling.labels)
    assert torch.equal(one.bound, several.bound)


def test_a_result_worse_than_the_target_is_replaced_by_it():
    replaced = 0
    for seed in range(20):
        potentials = random_potentials(rng(seed), 8, most=8, lengths=False)
        structure = PairwiseGraph(3, MESSAGES)
        best = PairwiseGraph(3).argmax(potentials)
        target = structure.check_target(best.labeling.labels, potentials)
        decoding = structure.augmented_argmax(potentials, target)
        assert bool((decoding.value >= best.value - 1e-9).all())
        replaced += int((structure.argmax(potentials).value < best.value - 1e-9).sum())
        corner = find_corner(structure, potentials, target)
        assert bool((corner.hinge >= 0).all())
        assert bool((corner.bound >= corner.hinge).all())
    assert replaced


NODE, EDGE, EDGES = torch.zeros(1, 2, 3), torch.zeros(1, 1, 3, 3), torch.tensor([[[0, 1]]])


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda: PairwiseGraph(0), "num_labels"),
        (lambda: TreeReweighted(max_rounds=0), "max_rounds"),
        (lambda: LinearPairwiseGraph(0, 1, 2), "node_features"),
        (lambda: LinearPairwiseGraph(1, 1, 2, structure=PairwiseGraph(3)), "structure"),
        (lambda: grid_edges(0, 2), "rows"),
        (lambda: grid_edges(2, 2, neighbours=6), "neighbours"),
        (lambda: PairwisePotentials(NODE, EDGE, 2 * EDGES), "edges"),
        (lambda: PairwisePotentials(NODE, EDGE[..., 1:], EDGES), "edge"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(build, argument):
    with pytest.raises(ValueError, match=argument):
        build()


# -- The head ----------------------------------------------------------------------------------------------


class TestLinearPairwiseGraph(GraphHeadCase):
    directed = True

    def make_graph_head(self):
        return LinearPairwiseGraph(3, self.links, 2, directed=self.directed)

    def reference(self, head, x):
        tables, pairs = head.head.edge, [(p, q) for q in range(len(x)) for p in range(q)]
        if not self.directed:
            tables = (tables + tables.mT) / 2
        edge = [
            sum(x[q, 3 + self.links * p + g] * tables[g] for g in range(self.links)) if self.links else tables[0]
            for p, q in pairs
        ]
        return {"node": x[:, :3] @ head.head.node.T, "edge": torch.stack(edge) if edge else x.new_zeros(0, 2, 2)}


@pytest.mark.variant
class TestLinearPairwiseGraphSharedTable(TestLinearPairwiseGraph):
    """One symmetric table for all edges."""

    links = 0
    directed = False


# -- Training ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_potts_model_of_ten_by_ten_is_certified():
    random, size, labels = rng(0), 100, 5
    edges = grid_edges(10, 10)
    joined = torch.zeros(size, size, dtype=torch.float64)
    joined[edges[:, 0], edges[:, 1]] = joined[edges[:, 1], edges[:, 0]] = 1.0
    colour = (torch.arange(size) // 10 + torch.arange(size)) % 2 == 0
    y = torch.randint(labels, (4, size), generator=random)
    for sweep in range(40):  # Gibbs sampling of one colour of the chequerboard, then of the other
        near = (1.2 * joined @ nn.functional.one_hot(y, labels).double()).softmax(2)
        drawn = torch.multinomial(near.flatten(0, 1), 1, generator=random).view(4, size)
        y = torch.where(colour == (sweep % 2 == 0), drawn, y)
    x = nn.functional.one_hot(y, labels) + torch.randn(4, size, labels, generator=random)

    class Images:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return i

        def collate(self, items):
            index = torch.tensor(items)
            return Batch(
                Graphs(x[index], x.new_zeros(len(items), 180, 0), edges.expand(len(items), -1, -1)), y[index], index
            )

    head = LinearPairwiseGraph(labels, 0, labels, directed=False).double()
    certificate = solve(head, Images(), lam=300.0, tolerance=Relative(0.002), progress=False)
    assert certificate.relative_gap <= 0.002
    table = head.edge[0].detach()
    assert float(table.diag().mean()) > float(table.mean())


def test_bounds_certify_training_by_messages_alone():
    problem = PairwiseProblem(1, lam=0.3, most=3, structure=PairwiseGraph(3, TreeReweighted(1, 0, 0)))
    best = problem.reference().optimum()
    certificate = Bounded(problem, {}, storage=Labelings(), direction=Corrective()).until(1e-6, passes=15)
    assert certificate.dual <= best + 1e-7
    assert certificate.primal >= best - 1e-7
    assert not certificate.relaxed


@pytest.mark.parametrize("loop", [True, False])
def test_a_run_goes_on_to_the_same_bits(loop):
    class Data:
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return i

    def trainer():
        problem = PairwiseProblem(3)
        Data.collate = staticmethod(problem.batch)
        return make_trainer(problem.head, Data(), lam=0.1, solver=Solver(compiled=loop), progress=False)

    whole, first, second = trainer(), trainer(), trainer()
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    second.dual.load_state_dict(first.dual.state_dict())
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        second.step()
    assert torch.equal(flat(second.head.parameters()), flat(whole.head.parameters()))
    assert second.certify().gap == whole.certify().gap


def test_the_best_of_near_ties_is_found():
    for seed in range(60):
        ties, noise = (random_potentials(rng(seed), 4, integers=integers, share=1.0) for integers in (True, False))
        near = ties.replace({name: t + 1e-12 * noise[name] for name, t in ties.tensors.items()})
        decoding = PairwiseGraph(3).argmax(near)
        assert decoding.exact
        torch.testing.assert_close(decoding.value, best_scores(near), rtol=0.0, atol=5e-14)


@pytest.mark.parametrize("usual", ["costs", "penalties", "symmetric"])
@pytest.mark.parametrize("mask", [-1e6, -1e12, -1e30])
def test_scores_that_forbid_hide_no_others(usual, mask):
    """Of a complete graph, where labels without a forbidden pair are many, few or none."""
    edges = torch.combinations(torch.arange(5)).unsqueeze(0)
    labels = torch.cartesian_prod(*[torch.arange(3)] * 5)
    for seed in range(20):
        random = rng(seed)
        node = torch.rand(1, 5, 3, generator=random, dtype=torch.float64)
        edge = torch.rand(1, 10, 3, 3, generator=random, dtype=torch.float64)
        if usual == "costs":  # the best score of each node and edge is 0
            node, edge = (scores.flatten(2) - scores.flatten(2).amax(2, keepdim=True) for scores in (node, edge))
        elif usual == "penalties":
            node, edge = 1e-6 * node, (-100.0 - 100.0 * edge).flatten(2)
            edge[..., 0] = 1e-6
        else:
            node, edge = 2.0 * node - 1.0, (2.0 * edge - 1.0).flatten(2)
        for scores in (node, edge):
            scores[torch.rand(scores.shape, generator=random) < (0.2, 0.6)[seed % 2]] = mask
        edge = edge.view(1, 10, 3, 3)
        decoding = PairwiseGraph(3).argmax(PairwisePotentials(node, edge, edges))
        pairs = edge[0, torch.arange(10), labels[:, edges[0, :, 0]], labels[:, edges[0, :, 1]]].sum(1)
        best = (node[0, torch.arange(5), labels].sum(1) + pairs).max()
        upper = decoding.value if decoding.exact else decoding.bound
        rounding = 1e-9 * max(1.0, abs(float(best)))
        assert float(upper - best) >= -rounding
        if decoding.exact:
            assert float(best - decoding.value) <= rounding


def test_weights_as_small_as_areas_are_decoded_exactly():
    for seed in range(20):
        potentials = random_potentials(rng(seed), 4)
        small = potentials.replace({name: 1e-9 * tensor for name, tensor in potentials.tensors.items()})
        decoding = PairwiseGraph(3).argmax(small)
        assert decoding.exact
        torch.testing.assert_close(decoding.value.double(), best_scores(small), rtol=1e-6, atol=0.0)
