"""Max-sum on trees of grid places: against all outputs, and the same bits from every implementation."""

import itertools

import pytest
import torch
from cases.problems import examples, rng
from cases.random_potentials import draw, random_parents
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.structures.pose.oracle import max_sum_grid, max_sum_grid_torch

SEEDS = st.integers(0, 10**6)
DTYPES = st.sampled_from([torch.float32, torch.float64])


def problem(seed, batch=2, parts=3, height=2, width=3, types=2, integers=False, dtype=torch.float64, shared=False):
    """Costs of any form and sign; with ``integers`` ties are common and sums exact."""
    random = rng(seed)
    parent = random_parents(random, parts)
    edges = int((parent >= 0).sum())
    costs = [(1 if shared else batch, edges, 2, types, 2 * size - 1) for size in (width, height)]
    shapes = (batch, parts, height, width), (batch, edges, 2, types, height, width), *costs
    node, kinds, *costs = (draw(random, shape, integers, dtype) for shape in shapes)
    return node, kinds, *(cost.expand(batch, -1, -1, -1, -1) for cost in costs), parent


def score(arguments, b, place, kind):
    """Of one output, by its definition."""
    node, kinds, cost_x, cost_y, parent = arguments
    height, width = node.shape[2:]
    lower = [v for v in range(len(parent)) if parent[v] >= 0]
    total = sum(float(node[b, v, p // width, p % width]) for v, p in enumerate(place))
    for e, v in enumerate(lower):
        (s, t), q, p = kind[e], place[v], place[int(parent[v])]
        total += float(kinds[b, e, 0, s, q // width, q % width] + kinds[b, e, 1, t, p // width, p % width])
        dx, dy = q % width - p % width + width - 1, q // width - p // width + height - 1
        for arc, one in ((0, s), (1, t)):
            total -= float(cost_x[b, e, arc, one, dx] + cost_y[b, e, arc, one, dy])
    return total


@pytest.mark.parametrize("decode", [max_sum_grid, max_sum_grid_torch])
@examples(8)
@given(
    seed=SEEDS,
    shape=st.sampled_from([(3, 2, 2, 2), (3, 1, 3, 2), (3, 3, 1, 1), (2, 2, 3, 3), (1, 3, 2, 2), (3, 1, 1, 2)]),
    shared=st.booleans(),
    integers=st.booleans(),
)
def test_the_best_of_all_outputs(decode, seed, shape, shared, integers):
    parts, height, width, types = shape
    arguments = problem(seed, 2, *shape, shared=shared, integers=integers)
    place, kind, value = decode(*arguments)
    edges = kind.shape[1]
    for b in range(2):
        best = max(
            score(arguments, b, places, list(zip(kinds[::2], kinds[1::2], strict=True)))
            for places in itertools.product(range(height * width), repeat=parts)
            for kinds in itertools.product(range(types), repeat=2 * edges)
        )
        assert float(value[b]) == pytest.approx(best, abs=1e-11)
        assert score(arguments, b, place[b].tolist(), kind[b].tolist()) == pytest.approx(best, abs=1e-11)


@examples(40)
@given(
    seed=SEEDS,
    batch=st.integers(1, 3),
    parts=st.integers(1, 6),
    height=st.integers(1, 9),
    width=st.integers(1, 10),
    types=st.integers(1, 3),
    integers=st.booleans(),
    dtype=DTYPES,
    shared=st.booleans(),
)
def test_the_operator_equals_torch(seed, batch, parts, height, width, types, integers, dtype, shared):
    arguments = problem(seed, batch, parts, height, width, types, integers, dtype, shared)
    for result, expected in zip(max_sum_grid(*arguments), max_sum_grid_torch(*arguments), strict=True):
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)


def test_ties_go_to_the_first():
    """Everything is equal: the first places and kinds; and with one node, the first place in rows."""
    shapes = (2, 3, 4, 5), (2, 2, 2, 3, 4, 5), (2, 2, 2, 3, 9), (2, 2, 2, 3, 7)
    zeros = [torch.zeros(shape) for shape in shapes]
    for way in (max_sum_grid, max_sum_grid_torch):
        place, kind, value = way(*zeros, torch.tensor([1, -1, 1]))
        assert not place.any()
        assert not kind.any()
        assert value.tolist() == [0.0, 0.0]
