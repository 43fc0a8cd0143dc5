"""Max-sum on trees: against all labelings, and the same bits from every kernel."""

import itertools

import pytest
import torch
from cases.problems import examples, rng
from cases.random_potentials import assert_same, trees
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.structures.tree.oracle import max_sum_tree, max_sum_tree_torch

SEEDS = st.integers(0, 10**6)
DTYPES = st.sampled_from([torch.float32, torch.float64])
WAYS = pytest.mark.parametrize("decode", [max_sum_tree, max_sum_tree_torch])
AXES = st.sampled_from(["shared", "tree", "node", "expanded", "nodes expanded"])


def edge_of(edge, b, v):
    return edge if edge.ndim == 2 else edge[b] if edge.ndim == 3 else edge[b, v]


@WAYS
@examples(40)
@given(seed=SEEDS, longest=st.integers(1, 5), states=st.integers(1, 3), axes=AXES, ragged=st.booleans())
def test_the_best_of_all_labelings(decode, seed, longest, states, axes, ragged):
    node, edge, parent, lengths = trees(seed, 2, longest, states, axes, ragged, dtype=torch.float64)
    labels, value = decode(node, edge, parent, lengths)
    for b in range(2):
        length = longest if lengths is None else int(lengths[b])
        above = parent.expand(2, longest)[b].tolist()

        def score(states_of, b=b, above=above):
            total = sum(float(node[b, v, y]) for v, y in enumerate(states_of))
            edges = ((v, above[v]) for v in range(len(states_of)) if above[v] >= 0)
            return total + sum(float(edge_of(edge, b, v)[states_of[p], states_of[v]]) for v, p in edges)

        best = max(map(score, itertools.product(range(states), repeat=length)))
        assert float(value[b]) == pytest.approx(best, abs=1e-12)
        assert score(labels[b, :length].tolist()) == pytest.approx(best, abs=1e-12)
        assert labels[b, length:].tolist() == [-1] * (longest - length)


@examples(120)
@given(
    seed=SEEDS,
    batch=st.integers(1, 5),
    longest=st.integers(1, 9),
    states=st.integers(1, 11),
    axes=AXES,
    ragged=st.booleans(),
    integers=st.booleans(),
    dtype=DTYPES,
)
def test_the_operator_equals_torch(seed, batch, longest, states, axes, ragged, integers, dtype):
    arguments = trees(seed, batch, longest, states, axes, ragged, integers, dtype)
    assert_same(max_sum_tree(*arguments), max_sum_tree_torch(*arguments))


def test_wide_and_deep_trees():
    random = rng(0)
    for parent in (torch.arange(-1, 299), torch.cat([torch.tensor([-1]), torch.zeros(299, dtype=torch.int64)])):
        node, edge = torch.randn(2, 300, 5, generator=random), torch.randn(5, 5, generator=random)
        assert_same(max_sum_tree(node, edge, parent), max_sum_tree_torch(node, edge, parent))
    arguments = trees(1, 5, 6, 530, ragged=True)
    assert_same(max_sum_tree(*arguments), max_sum_tree_torch(*arguments))


@WAYS
def test_trees_that_are_none_are_refused(decode):
    node, edge, _, _ = trees(1)
    for parents in ([1, 2, 0, -1, 3], [-1, 1, 0, 0, 0], [-1, 0, 1, 2, 5], [-1, -2, 1, 2, 3]):
        with pytest.raises(ValueError, match="parent"):
            decode(node, edge, torch.tensor(parents))
    with pytest.raises(ValueError, match="parent has 3"):
        decode(node, edge, torch.tensor([3, 0, 1, -1, 3]), torch.tensor([5, 4, 2]))
