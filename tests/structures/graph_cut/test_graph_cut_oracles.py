import numpy as np
import pytest
import torch
from cases.graphs import best_scores, random_potentials
from cases.problems import examples, rng
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from torchssvm import GraphCut
from torchssvm.core.max_oracle import find_corner
from torchssvm.structures.graph_cut import GraphPotentials, MinCut, RoofDual
from torchssvm.structures.graph_cut.oracle import min_cut, relax, roof_dual, without_padding

SEEDS = st.integers(0, 2**31 - 1)
pytest.importorskip("maxflow")


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
    decoding = structure.argmax(potentials)
    for row, (best, _) in enumerate(best_scores(potentials)):
        assert float(bound[row]) >= best - 1e-9
        assert float(decoding.value[row]) <= best + 1e-9
        if attractive or bool((potentials["edge"][row][potentials.edges[row, :, 0] >= 0] >= 0).all()):
            assert float(bound[row]) == pytest.approx(best, abs=1e-9)
            assert float(decoding.value[row]) == pytest.approx(best, abs=1e-9)
    if attractive:
        assert torch.equal(labels, solved(potentials, min_cut))
        assert decoding.exact
        assert decoding.bound is None


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
        rows = slice(begin, begin + size)
        assert (maximisers[:, known[rows]] == label[rows][known[rows]]).all()
        begin += size
    assert not label[~known].any()


def test_repulsive_trees_are_solved_exactly():
    """No cycle, no frustration: a chain of nodes that all differ from their neighbours, and one that decides."""
    edges = torch.tensor([[[p, p + 1] for p in range(5)]])
    node = torch.tensor([[0.0, 0.0, 0.5, 0.0, 0.0, 0.0]])
    decoding = GraphCut(RoofDual()).argmax(GraphPotentials(node, -torch.ones(1, 5), edges))
    assert decoding.labeling.labels.tolist() == [[1, 0, 1, 0, 1, 0]]
    assert decoding.value.tolist() == decoding.bound.tolist() == [5.5]


@pytest.mark.parametrize("oracle", [MinCut(), RoofDual()], ids=repr)
def test_graphs_without_edges(oracle):
    structure = GraphCut(oracle)
    node = torch.tensor([[1.0, -2.0], [0.0, 9.0]])
    potentials = GraphPotentials(node, torch.zeros(2, 0), torch.zeros(2, 0, 2, dtype=torch.int64), torch.tensor([2, 1]))
    decoding = structure.argmax(potentials)
    assert decoding.labeling.labels.tolist() == [[1, 0], [0, -1]]
    target = structure.check_target(torch.tensor([[0, 0], [1, 1]]), potentials)
    corner = find_corner(structure, potentials, target)
    assert corner.labeling.labels.tolist() == [[1, 0], [0, -1]]
    assert corner.hinge.tolist() == [2.5, 1.0]
    (one, _) = roof_dual(node[:1, :1], torch.zeros(1, 0), torch.zeros(1, 0, 2, dtype=torch.int64))
    assert one.tolist() == [[True]]


def test_repulsive_edges_are_refused_by_minimum_cuts():
    edges = torch.tensor([[[0, 1]], [[1, 2]]])
    potentials = GraphPotentials(torch.zeros(2, 3), torch.tensor([[0.0], [-0.25]]), edges)
    with pytest.raises(ValueError, match="edge"):
        GraphCut().argmax(potentials)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads, monkeypatch, set_threads):
    random = rng(3)
    potentials = random_potentials(random, 40, most=30, attractive=False)
    attractive = potentials.replace({**potentials.tensors, "edge": potentials["edge"].abs()})
    monkeypatch.setattr("torchssvm.structures.graph_cut.oracle._GRAIN", 1.0)
    one = solved(attractive, min_cut), *solved(potentials, roof_dual)
    set_threads(threads)
    several = solved(attractive, min_cut), *solved(potentials, roof_dual)
    assert all(torch.equal(a, b) for a, b in zip(one, several, strict=True))


def test_a_result_worse_than_the_target_is_replaced_by_it():
    """Training must not go down; over many frustrated graphs, whose targets are their best labelings."""
    structure, replaced = GraphCut(RoofDual()), 0
    for seed in range(60):
        potentials = random_potentials(rng(seed), 8, most=9, attractive=False, lengths=False)
        best = torch.tensor(np.array([maximisers[0] for _, maximisers in best_scores(potentials)]))
        target = structure.check_target(best, potentials)
        plain = structure.argmax(potentials)
        decoding = structure.augmented_argmax(potentials, target)
        true_score = (structure.parts(target)["node"].double() * potentials["node"]).sum(1)
        true_score += (structure.parts(target)["edge"].double() * potentials["edge"]).sum(1)
        assert bool((decoding.value >= true_score - 1e-9).all())
        assert bool((decoding.bound >= decoding.value - 1e-9).all())
        replaced += int((plain.value < true_score - 1e-9).sum())
        corner = find_corner(structure, potentials, target)
        assert bool((corner.hinge >= 0).all())
        assert bool((corner.bound >= corner.hinge).all())
    assert replaced  # the rounding is not always right
