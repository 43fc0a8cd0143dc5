"""The Triton kernels in Triton's interpreter, on CPU tensors: ``test_triton.py`` runs this file in its own process.

The interpreter must be chosen before Triton is imported, and in the main process something else may have done that.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from cases.problems import examples, rng
from cases.racing_triton import no_races
from cases.random_potentials import assert_same, chains, draw, segments, strided, trees
from torchssvm.core.inner_triton import inner_triton
from torchssvm.core.potentials import Potentials
from torchssvm.dual.mean_parts import RowBuffer
from torchssvm.dual.mean_parts_triton import add_triton, read_triton
from torchssvm.steps import box_qp_triton
from torchssvm.steps.box_qp import ascend_gram
from torchssvm.steps.box_qp_triton import ascend_triton
from torchssvm.structures import EdgePotentials, Matching
from torchssvm.structures.arborescence.chu_liu_edmonds_triton import max_arborescence_triton
from torchssvm.structures.arborescence.oracle import eisner, max_arborescence
from torchssvm.structures.arborescence.triton import eisner_triton
from torchssvm.structures.chain import oracle as kernels
from torchssvm.structures.chain import triton as viterbi_kernels
from torchssvm.structures.chain.biases_triton import add_everywhere_triton, sum_everywhere_triton
from torchssvm.structures.chain.oracle import viterbi_torch
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.chain.sum_product import sum_product
from torchssvm.structures.chain.sum_product_triton import sum_product_triton
from torchssvm.structures.chain.triton import viterbi_triton
from torchssvm.structures.labelled_triton import mean_loss_triton
from torchssvm.structures.matching.oracle import best_matching
from torchssvm.structures.matching.triton import best_matching_triton
from torchssvm.structures.multilabel.oracle import _branch, best_label_sets, symmetric
from torchssvm.structures.multilabel.triton import label_sets_triton
from torchssvm.structures.pose.oracle import best_along_last
from torchssvm.structures.pose.triton import best_along_last_triton
from torchssvm.structures.segments.marginals_triton import marginals_triton
from torchssvm.structures.segments.oracle import semi_markov, semi_markov_marginals, semi_markov_torch
from torchssvm.structures.segments.triton import semi_markov_triton
from torchssvm.structures.tree.oracle import max_sum_tree_torch, node_depths
from torchssvm.structures.tree.triton import max_sum_tree_triton

SEEDS = st.integers(0, 10**6)


@triton.jit
def _shift(x, size: tl.constexpr, early: tl.constexpr):
    """Moves numbers by one place; with a barrier, unless the last store is early."""
    at = tl.arange(0, size)
    old = tl.load(x + at, at < size - 1)
    if not early:
        tl.debug_barrier()
    tl.store(x + 1 + at, old, at < size - 1)


def test_races_are_found():
    x = torch.zeros(64)
    _shift[(1,)](x, 64, early=False, num_warps=2)
    with pytest.raises(AssertionError, match="_shift has a race between barriers"):
        _shift[(1,)](x, 64, early=True, num_warps=2)
    with pytest.raises(AssertionError, match=r"programs of .*_shift race"):
        _shift[(2,)](x, 64, early=False, num_warps=2)


DTYPES = st.sampled_from([torch.float32, torch.float64])


@pytest.fixture(autouse=True, scope="module")
def no_kernel_has_a_race():
    """At the small sizes of these tests."""
    with no_races():
        yield


def test_the_interpreter_is_on():
    assert "Interpreted" in type(viterbi_kernels._decode).__name__


@examples(20)
@given(
    seed=SEEDS,
    batch=st.integers(1, 3),
    longest=st.integers(1, 5),
    states=st.sampled_from([1, 2, 3, 7, 26]),
    axes=st.sampled_from(["shared", "chain", "position", "expanded"]),
    ragged=st.booleans(),
    integers=st.booleans(),
    forbidden=st.booleans(),
    dtype=DTYPES,
)
def test_viterbi_equals_torch(seed, batch, longest, states, axes, ragged, integers, forbidden, dtype):
    emission, transition, lengths = chains(seed, batch, longest, states, axes, ragged, integers, dtype)
    if forbidden:  # each state may follow itself, and most may follow no other
        never = (torch.rand(states, states, generator=rng(seed)) < 0.7) & ~torch.eye(states, dtype=torch.bool)
        transition = transition.masked_fill(never, -torch.inf)
    expected = viterbi_torch(emission, transition, lengths)
    assert_same(viterbi_triton(strided(emission), transition, lengths), expected)
    if axes != "expanded":
        assert_same(viterbi_triton(emission, strided(transition), lengths), expected)


@examples(20)
@given(
    seed=SEEDS,
    longest=st.integers(1, 5),
    states=st.sampled_from([1, 2, 3, 7, 26]),
    axes=st.sampled_from(["shared", "chain", "position", "expanded"]),
    ragged=st.booleans(),
    forbidden=st.booleans(),
    dtype=DTYPES,
)
def test_marginals_of_chains_are_those_of_torch(seed, longest, states, axes, ragged, forbidden, dtype):
    emission, transition, lengths = chains(seed, 2, longest, states, axes, ragged, dtype=dtype)
    if forbidden:
        never = (torch.rand(states, states, generator=rng(seed)) < 0.7) & ~torch.eye(states, dtype=torch.bool)
        transition = transition.masked_fill(never, -torch.inf)
    result = sum_product_triton(strided(emission), transition, lengths)
    close = {"atol": 2e-5 if dtype == torch.float32 else 1e-12, "rtol": 1e-6}
    for mine, other in zip(result, sum_product(emission, transition, lengths), strict=True):
        torch.testing.assert_close(mine, other, **close)


@pytest.mark.parametrize("axes", ["shared", "chain", "position"])
@pytest.mark.parametrize("integers", [True, False])
def test_viterbi_by_tiles_equals_torch(axes, integers):
    for states in (129, 150):
        arguments = chains(states, 2, 3, states, axes, True, integers)
        assert_same(viterbi_triton(*arguments), viterbi_torch(*arguments))


@pytest.mark.parametrize("axes", ["shared", "position"])
def test_viterbi_by_shared_tiles_equals_torch(axes, monkeypatch):
    monkeypatch.setattr(viterbi_kernels, "_IN_REGISTERS", 1)
    monkeypatch.setattr(viterbi_kernels, "_MANY", 2)
    for seed, (batch, longest, states) in enumerate([(1, 1, 3), (3, 4, 7), (17, 2, 5), (2, 2, 66)]):
        arguments = chains(seed, batch, longest, states, axes, seed % 2 == 0, seed % 2 == 1)
        assert_same(viterbi_triton(*arguments), viterbi_torch(*arguments))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_give_labels_all_the_same(value):
    for place, states in ((0, 3), (5, 3), (13, 3), (16, 3), (2, 130)):
        emission, transition, lengths = chains(place, 2, 4, states)
        (emission if place < 12 else transition).flatten()[place % 9] = value
        labels, _ = viterbi_triton(emission, transition, lengths)
        real = torch.arange(4) < lengths.unsqueeze(1)
        assert bool(((labels >= 0) & (labels < states))[real].all())
        assert bool((labels[~real] == -1).all())


@pytest.mark.parametrize("states", [5, 130])
def test_infinite_scores_equal_torch(states):
    """One that is certain; then states and moves that are forbidden, up to all of them."""
    emission, transition, lengths = chains(1, 3, 5, states)
    emission[1, 0, 2] = emission[2, 0, 1] = torch.inf
    assert_same(viterbi_triton(emission, transition, lengths), viterbi_torch(emission, transition, lengths))
    for share in (0.3, 0.9, 1.0):
        emission, transition, lengths = chains(2, 3, 5, states, integers=True)
        for tensor in (emission, transition):
            tensor[torch.rand(tensor.shape) < share] = -torch.inf
        assert_same(viterbi_triton(emission, transition, lengths), viterbi_torch(emission, transition, lengths))


@examples(15)
@given(
    seed=SEEDS,
    batch=st.integers(1, 3),
    longest=st.integers(1, 6),
    states=st.sampled_from([1, 2, 3, 7]),
    axes=st.sampled_from(["shared", "tree", "node", "expanded", "nodes expanded"]),
    ragged=st.booleans(),
    integers=st.booleans(),
    dtype=DTYPES,
)
def test_max_sum_on_trees_equals_torch(seed, batch, longest, states, axes, ragged, integers, dtype):
    node, edge, parent, lengths = trees(seed, batch, longest, states, axes, ragged, integers, dtype)
    result = max_sum_tree_triton(node, edge, parent, node_depths(node, parent, lengths))
    assert_same(result, max_sum_tree_torch(node, edge, parent, lengths))


def test_max_sum_on_trees_by_tiles_equals_torch():
    for seed, integers in ((1, True), (2, False)):
        node, edge, parent, lengths = trees(seed, 2, 4, 70, integers=integers)
        result = max_sum_tree_triton(node, edge, parent, node_depths(node, parent, lengths))
        assert_same(result, max_sum_tree_torch(node, edge, parent, lengths))


@examples(20)
@given(
    seed=SEEDS,
    longest=st.integers(1, 7),
    labels=st.sampled_from([1, 2, 3, 5]),
    most=st.integers(1, 5),
    boundary=st.booleans(),
    spans=st.booleans(),
    integers=st.booleans(),
    forbidden=st.booleans(),
    dtype=DTYPES,
)
def test_segments_are_those_of_the_cpu(seed, longest, labels, most, boundary, spans, integers, forbidden, dtype):
    emission, *others = segments(seed, 2, longest, labels, most, boundary, spans, integers, dtype)
    if forbidden:
        emission = emission.masked_fill(torch.rand(emission.shape, generator=rng(seed)) < 0.2, -torch.inf)
    result = semi_markov_triton(strided(emission), *others)
    expected = semi_markov(emission, *others)
    assert torch.equal(result[1], expected[1])
    real = expected[1] > -torch.inf  # else every segmentation is as good
    assert torch.equal(result[0][real], expected[0][real])


@examples(20)
@given(
    seed=SEEDS,
    longest=st.integers(1, 7),
    labels=st.sampled_from([1, 2, 3, 5]),
    most=st.sampled_from([1, 2, 3, 5]),
    boundary=st.booleans(),
    forbidden=st.booleans(),
)
def test_marginals_of_segments_are_those_of_the_cpu(seed, longest, labels, most, boundary, forbidden):
    emission, segment, least, lengths, _ = segments(seed, 2, longest, labels, most, boundary, dtype=torch.float64)
    if forbidden:
        emission = emission.masked_fill(torch.rand(emission.shape, generator=rng(seed)) < 0.2, -torch.inf)
    result = marginals_triton(strided(emission), segment, least, lengths)
    for mine, other in zip(result, semi_markov_marginals(emission, segment, least, lengths), strict=True):
        other = other.nan_to_num(0.0, neginf=-torch.inf)  # which are written behind the kernels
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=1e-10)


def test_segments_of_many_labels_and_durations_are_those_of_torch():
    for seed, labels, most in ((1, 33, 40), (2, 3, 600)):
        arguments = segments(seed, 2, 45, labels, most, integers=seed == 1)
        assert_same(semi_markov_triton(*arguments), semi_markov_torch(*arguments))


@examples(8)
@given(seed=SEEDS, size=st.sampled_from([0, 1, 9, 33, 40]), rank=st.integers(0, 40), sweeps=st.integers(0, 3))
def test_the_box_qp_is_that_of_the_cpu(seed, size, rank, sweeps):
    """Bit for bit, within a block of coordinates and across blocks."""
    random = np.random.default_rng(seed)
    factors = random.normal(size=(size, rank))
    matrix, values = factors @ factors.T, random.normal(size=size) * 2
    expected = np.zeros(size)
    ascend_gram(matrix, values.copy(), expected, sweeps, 1e-3)
    result = ascend_triton(torch.from_numpy(matrix), torch.from_numpy(values), sweeps, 1e-3)
    assert result.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize(("size", "most", "sweeps"), [(130, 256, 1), (40, 32, 2), (33, 32, 0)])
@pytest.mark.parametrize("converged", [1e-3, 2.0])
def test_the_box_qp_of_several_warps_and_programs_is_that_of_the_cpu(size, most, sweeps, converged, monkeypatch):
    """With fewer coordinates in a block than threads each warp has them all; with more than ``most`` each program."""
    for name, value in (("_ALONE", most), ("_GROUP", 32), ("_SPAN", 32)):
        monkeypatch.setattr(box_qp_triton, name, value)
    random = np.random.default_rng(1)
    factors, values = random.normal(size=(size, 3)), random.normal(size=size) * 2
    factors[7] = 0.0
    matrix, expected = factors @ factors.T, np.zeros(size)
    ascend_gram(matrix, values.copy(), expected, sweeps, converged)
    given = torch.from_numpy(matrix), torch.from_numpy(values.copy())
    result = ascend_triton(*given, sweeps, converged)
    assert result.numpy().tobytes() == expected.tobytes()
    assert given[1].numpy().tobytes() == values.tobytes()


@examples(10)
@given(
    seed=SEEDS,
    left=st.sampled_from([1, 2, 3, 5]),
    right=st.sampled_from([1, 2, 4, 7]),
    ragged=st.booleans(),
    integers=st.booleans(),
    dtype=DTYPES,
)
def test_matchings_are_those_of_scipy(seed, left, right, ragged, integers, dtype):
    random = rng(seed)
    scores = draw(random, (2, left, right), integers, dtype) + 0.5
    sizes = [torch.randint(1, most + 1, (2,), generator=random) if ragged else None for most in (left, right)]
    assert torch.equal(best_matching_triton(strided(scores), *sizes), best_matching(scores, *sizes))


def test_matchings_are_the_best_of_all():
    for seed, (left, right) in enumerate([(3, 3), (4, 2)]):
        scores = draw(rng(seed), (2, left, right), seed == 0, torch.float64)
        potentials = EdgePotentials(scores)
        every = torch.stack([(scores * (labels == 1)).sum((1, 2)) for labels in Matching().enumerate(potentials)])
        result = (scores * best_matching_triton(scores, None, None)).sum((1, 2))
        torch.testing.assert_close(result, every.amax(0))


def test_matchings_of_scores_that_are_not_finite_end():
    scores = torch.tensor([[[torch.nan, 1.0], [torch.inf, torch.inf]], [[-torch.inf, torch.nan], [1.0, 2.0]]])
    assert torch.equal(best_matching_triton(scores, None, None), best_matching(scores))


@examples(8)
@given(
    seed=SEEDS,
    longest=st.sampled_from([1, 2, 3, 6]),
    ragged=st.booleans(),
    single_root=st.booleans(),
    integers=st.booleans(),
    dtype=DTYPES,
)
def test_arborescences_are_those_of_the_cpu(seed, longest, ragged, single_root, integers, dtype):
    random = rng(seed)
    scores = draw(random, (2, longest, longest + 1), integers, dtype)
    lengths = torch.randint(1, longest + 1, (2,), generator=random) if ragged else None
    assert_same(
        max_arborescence_triton(strided(scores), lengths, single_root), max_arborescence(scores, lengths, single_root)
    )
    result = eisner_triton(strided(scores), lengths, single_root)
    assert_same(result, eisner(scores, lengths, single_root))
    assert_same(result, eisner(scores, lengths, single_root))


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize(
    ("shape", "costs"),
    [
        ((2, 3, 5), (2, 1, 5, 5)),
        ((2, 2, 18, 3), (2, 2, 1, 3, 3)),
        ((2, 3, 4), (1, 1, 4, 4)),
        ((2, 3, 4), (2, 3, 4, 4)),
        ((3, 66), (66, 66)),
        ((0, 3, 4), (0, 1, 4, 4)),
    ],
)
def test_max_convolutions_equal_torch(shape, costs, integers):
    random, dtype = rng(1), torch.float64 if integers else torch.float32
    scores, table = draw(random, shape, integers, dtype), draw(random, costs, integers, dtype)
    if scores.ndim > 2 and len(scores):
        scores[0, 0] = -torch.inf
    assert_same(best_along_last_triton(strided(scores), table), best_along_last(scores, table))


@examples(6)
@given(
    seed=SEEDS, size=st.sampled_from([1, 2, 4]), shared=st.booleans(), integers=st.booleans(), rounds=st.integers(1, 4)
)
def test_label_sets_are_those_of_the_cpu_and_branching_makes_them_the_best(seed, size, shared, integers, rounds):
    random, pairs = rng(seed), size * (size - 1) // 2
    unary = draw(random, (2, size), integers, torch.float64)
    pairwise = draw(random, (pairs,) if shared else (2, pairs), integers, torch.float64)
    weights = symmetric(pairwise, size).reshape(-1, size, size)
    result = label_sets_triton(unary, weights, rounds)
    expected = best_label_sets(unary, pairwise, max_rounds=rounds)
    assert_same(result[:2], expected[:2])
    torch.testing.assert_close(result[2], expected[2], rtol=1e-12, atol=1e-12)
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=size)), dtype=torch.float64)
    scores = unary @ every.T + torch.einsum("si,bij,sj->bs", every, weights, every) / 2
    assert bool((result[2] >= scores.amax(1) - 1e-9).all())
    _, value, bound = _branch(unary, weights if len(weights) == 2 else weights[0], rounds, 10**6, *result)
    torch.testing.assert_close(value, scores.amax(1))
    assert torch.equal(value, bound)


def test_label_sets_of_scores_that_are_not_finite_have_no_value():
    unary = torch.tensor([[torch.nan, 1.0], [1.0, -2.0]], dtype=torch.float64)
    _, value, bound = label_sets_triton(unary, torch.zeros(1, 2, 2, dtype=torch.float64), 3)
    assert value.isnan().tolist() == bound.isnan().tolist() == [True, False]


@examples(10)
@given(seed=SEEDS, longest=st.integers(1, 4), width=st.sampled_from([(), (3,), (40, 40)]), dtype=DTYPES)
def test_rows_are_read_and_added_as_on_the_cpu(seed, longest, width, dtype):
    random = rng(seed)
    buffer, index = RowBuffer(5, dtype, torch.device("cpu")), torch.tensor([3, 0, 4])
    rows = torch.randint(1, longest + 1, (3,), generator=random)
    values = torch.randn(3, longest, *width, generator=random, dtype=dtype)
    values[torch.arange(longest) >= rows.unsqueeze(1)] = 0.0
    factors = torch.rand(3, generator=random, dtype=torch.float64)
    buffer.add(index, rows, values, factors)
    before, places = buffer.values.clone(), (buffer.start, buffer.rows)
    for some in (index, torch.tensor([1, 3])):
        result = read_triton(before, *places, some, longest)
        assert torch.equal(result, buffer.read(some, None, longest, width)[0])
    add_triton(before, *places, index, values, factors)
    buffer.add(index, rows, values, factors)
    assert torch.equal(before, buffer.values)


@examples(10)
@given(seed=SEEDS, batch=st.integers(1, 3), size=st.sampled_from([1, 7, 1500]), one=st.booleans(), dtype=DTYPES)
def test_inner_products_are_those_of_torch(seed, batch, size, one, dtype):
    a, b = (torch.randn(rows, size, generator=rng(seed), dtype=dtype) for rows in (batch, 1 if one else batch))
    expected = torch.stack([(a.double() * b).sum(1), (a.double() * b).abs().sum(1)])
    torch.testing.assert_close(inner_triton([(a, b)]), expected, rtol=1e-12, atol=1e-12)
    for pairs in (2, 3, 4):
        result = inner_triton([(a, b)] * pairs, 7) * torch.tensor([[7], [1]])
        torch.testing.assert_close(result, pairs * expected, rtol=1e-12, atol=1e-12)


@examples(10)
@given(seed=SEEDS, longest=st.integers(1, 40), states=st.sampled_from([1, 3, 70]), dtype=DTYPES)
def test_biases_and_mean_losses_of_chains_are_those_of_the_cpu(seed, longest, states, dtype):
    random = rng(seed)
    lengths = torch.randint(1, longest + 1, (3,), generator=random)
    emission, labels = (
        torch.randn(3, longest, states, generator=random, dtype=dtype),
        torch.randint(states, (3, longest), generator=random),
    )
    labels[torch.arange(longest) >= lengths.unsqueeze(1)] = -1
    extra = torch.randn(3, states, generator=random, dtype=dtype).unbind(0)
    sums = torch.empty(3, 3, states, dtype=dtype)
    kernels.sum_everywhere(emission.numpy(), lengths.numpy(), sums.numpy())
    torch.testing.assert_close(sum_everywhere_triton(emission, lengths), sums)
    chain = Chain(states, normalize=True)
    potentials = Potentials({"emission": emission, "transition": emission.new_zeros(3, states, states)}, lengths)
    result = mean_loss_triton(emission, labels, chain.costs(labels))
    expected = torch.stack(chain._mean_loss({"emission": emission}, labels, potentials))
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    with_biases = emission.clone()
    kernels.add_everywhere(with_biases.numpy(), lengths.numpy(), *(tensor.numpy() for tensor in extra))
    add_everywhere_triton(emission, lengths, *extra)
    assert torch.equal(emission, with_biases)
