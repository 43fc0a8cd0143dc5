"""Oracles as torch operators: the same bits from every kernel, layout and number of threads; compile, export."""

import importlib
import itertools

import pytest
import torch
from cases.problems import examples, rng
from cases.random_potentials import assert_same, chains, strided, trees
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.core import launch
from torchssvm.structures import (
    best_label_sets,
    best_matching,
    max_sum_grid,
    max_sum_tree,
    min_cut,
    roof_dual,
    semi_markov,
    viterbi,
)
from torchssvm.structures.arborescence.oracle import eisner, max_arborescence
from torchssvm.structures.chain.oracle import viterbi_torch
from torchssvm.structures.chain.sum_product import sum_product
from torchssvm.structures.tree.oracle import max_sum_tree_torch

module = importlib.import_module("torchssvm.structures.chain.oracle")  # the function of the same name hides it

DTYPES = st.sampled_from([torch.float32, torch.float64])
AXES = st.sampled_from(["shared", "chain", "position", "expanded", "positions expanded"])


@pytest.fixture
def two_threads(monkeypatch, set_threads):
    """Several ranges for however little work."""
    monkeypatch.setattr(launch, "GRAIN", 1)
    set_threads(2)


@examples(120)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 6),
    longest=st.integers(1, 7),
    states=st.integers(1, 11),
    axes=AXES,
    ragged=st.booleans(),
    integers=st.booleans(),
    dtype=DTYPES,
    layout=st.sampled_from([lambda tensor: tensor, strided]),
)
def test_the_operator_equals_torch(seed, batch, longest, states, axes, ragged, integers, dtype, layout):
    emission, transition, lengths = chains(seed, batch, longest, states, axes, ragged, integers, dtype)
    expected = viterbi_torch(emission, transition, lengths)
    given_transition = transition if "expanded" in axes else layout(transition)
    given_lengths = None if lengths is None else layout(lengths)
    assert_same(viterbi(layout(emission), given_transition, given_lengths), expected)


WAYS = {chains: (viterbi, viterbi_torch), trees: (max_sum_tree, max_sum_tree_torch)}
KINDS_OF_AXES = {chains: ("shared", "chain", "position", "expanded"), trees: ("shared", "tree", "node", "expanded")}


@pytest.mark.parametrize("draw", WAYS)
@examples(40)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 3), st.booleans(), st.booleans())
def test_blocks_in_lockstep_equal_torch(draw, seed, batch, axes, ragged, integers):
    """The way of large K, at a small one: several blocks and groups, the last of them incomplete."""
    arguments = draw(seed, batch, 6, 13, KINDS_OF_AXES[draw][axes], ragged, integers)
    with pytest.MonkeyPatch.context() as patch:
        for name, setting in (("CACHE", 0), ("GROUP", 5), ("BLOCK", 5 * 13 * 4)):
            patch.setattr(launch, name, setting)
        assert_same(*(decode(*arguments) for decode in WAYS[draw]))


@pytest.mark.parametrize("draw, states", [(chains, 3), (chains, 140), (trees, 3)])
def test_forbidden_states_and_moves_equal_torch(draw, states):
    """Scores of minus infinity, up to where nothing is allowed."""
    for seed, share in itertools.product(range(5), (0.3, 0.9, 1.0)):
        arguments = draw(seed, 4, 5, states, integers=True)
        for tensor in arguments[:2]:
            tensor[torch.rand(tensor.shape, generator=rng(seed)) < share] = -torch.inf
        assert_same(*(decode(*arguments) for decode in WAYS[draw]))


def test_large_state_spaces_equal_torch():
    for states, integers in ((129, True), (150, False), (530, True), (530, False)):
        emission, transition, lengths = chains(states, 5, 4, states, integers=integers)
        assert_same(viterbi(emission, transition, lengths), viterbi_torch(emission, transition, lengths))


@pytest.mark.parametrize("axes", ["shared", "chain", "position"])
def test_threads_do_not_change_the_result(axes, two_threads, monkeypatch):
    emission, transition, lengths = chains(5, 40, 9, 7, axes, integers=True)
    decoded = viterbi(emission, transition, lengths)
    torch.set_num_threads(1)
    assert_same(viterbi(emission, transition, lengths), decoded)
    monkeypatch.setattr(launch, "CACHE", 0)
    monkeypatch.setattr(launch, "BLOCK", 100)
    torch.set_num_threads(2)
    assert_same(viterbi(emission, transition, lengths), decoded)


@pytest.mark.parametrize("draw", WAYS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_give_labels_all_the_same(draw, value):
    for place, decode in itertools.product(range(18), WAYS[draw]):
        arguments = draw(place, 2, 4, 3)
        arguments[place // 12].flatten()[place % 9] = value
        labels, _ = decode(*arguments)
        real = torch.arange(4) < arguments[-1].unsqueeze(1)
        assert bool(((labels >= 0) & (labels < 3))[real].all())
        assert bool((labels[~real] == -1).all())


OPERATORS = {  # shapes of the scores of nine examples, and what else is needed
    "viterbi": (viterbi, [(9, 5, 4), (4, 4)], [None]),
    "max_sum_tree": (max_sum_tree, [(9, 3, 4), (4, 4)], [torch.tensor([-1, 0, 0]), None]),
    "max_sum_grid": (
        max_sum_grid,
        [(9, 2, 3, 4), (9, 1, 2, 2, 3, 4), (9, 1, 2, 2, 7), (9, 1, 2, 2, 5)],
        [torch.tensor([-1, 0])],
    ),
    "eisner": (eisner, [(9, 4, 5)], [None, True]),
    "max_arborescence": (max_arborescence, [(9, 4, 5)], [None, True]),
}
FLOATING = OPERATORS | {"sum_product": (sum_product, [(9, 5, 4), (4, 4)], [None])}
each_operator = pytest.mark.parametrize("name", OPERATORS)


def drawn(name, batch=9):
    decode, shapes, rest = FLOATING[name]
    scores = [torch.rand([batch if size == 9 else size for size in shape], generator=rng(1)) for shape in shapes]
    return decode, scores, rest


@pytest.mark.parametrize("name", FLOATING)
def test_scores_of_any_floating_dtype(name):
    """Half precision and mixed dtypes take the torch operations."""
    decode, scores, rest = drawn(name)
    scores = [tensor.round() for tensor in scores]
    expected = decode(*scores, *rest)
    tolerance = 0.02 if name == "sum_product" else 0.0
    mixed = [scores[0], *(tensor.double() for tensor in scores[1:])]
    for others in ([tensor.half() for tensor in scores], mixed):
        for result, wanted in zip(decode(*others, *rest), expected, strict=True):
            torch.testing.assert_close(result.to(wanted.dtype), wanted, rtol=0, atol=tolerance)


@each_operator
def test_threads_change_no_bit_of_an_operator(name, two_threads):
    decode, scores, rest = drawn(name)
    labels = decode(*scores, *rest)
    torch.set_num_threads(1)
    assert_same(decode(*scores, *rest), labels)


@each_operator
def test_an_operator_takes_a_batch_of_none(name):
    decode, scores, rest = drawn(name, 0)
    assert [len(result) for result in decode(*scores, *rest)] == [0] * len(drawn(name)[0](*scores, *rest))


def zeros(*sizes):
    return torch.zeros(sizes)


def whole(*numbers):
    return torch.tensor(numbers)


DOORS = {  # arguments that fit, by name
    viterbi: {"emission": zeros(2, 4, 3), "transition": zeros(3, 3), "lengths": whole(4, 2)},
    max_sum_tree: {
        "node": zeros(2, 4, 3), "edge": zeros(3, 3), "parent": whole(-1, 0, 0, 1), "lengths": whole(4, 2)
    },
    max_sum_grid: {
        "node": zeros(2, 3, 2, 4), "kinds": zeros(2, 2, 2, 5, 2, 4), "cost_x": zeros(2, 2, 2, 5, 7),
        "cost_y": zeros(2, 2, 2, 5, 3), "parent": whole(-1, 0, 0),
    },
    semi_markov: {
        "emission": zeros(2, 4, 3), "segment": zeros(2, 5, 3), "least": whole(1, 1, 1), "lengths": whole(4, 2),
        "target": torch.zeros(2, 4, dtype=torch.int64),
    },
    best_label_sets: {"unary": zeros(2, 3), "pairwise": zeros(3)},
    best_matching: {"scores": zeros(2, 3, 4), "rows": whole(3, 2), "columns": whole(4, 4)},
    min_cut: {
        "node": zeros(2, 3), "edge": zeros(2, 1), "edges": whole([[0, 1]], [[0, 1]]), "lengths": whole(3, 2)
    },
}  # fmt: skip
DOORS[roof_dual] = DOORS[min_cut]
FITTING = [(door, name, value) for door, arguments in DOORS.items() for name, value in arguments.items()]
WRONG = [
    *((door, {name: value[None]}) for door, name, value in FITTING),
    *((door, {name: value.int()}) for door, name, value in FITTING),
    *((door, {"lengths": whole(4, n)}) for door, good in DOORS.items() if "lengths" in good for n in (0, -1, 5)),
    (viterbi, {"emission": zeros(2, 0, 3), "lengths": None}),
    *((viterbi, {"transition": zeros(*sizes)}) for sizes in ((2, 3), (3, 3, 3), (2, 4, 3, 3))),
    *((max_sum_tree, {"parent": parent}) for parent in (whole(-1, 4, 0, 0), whole(-2, 0, 0, 0), whole(1, 0, 0, 0))),
    *((max_sum_grid, {"parent": parent}) for parent in (whole(-1, -1, 0), whole(1, 0, 0), whole(-1, 3, 0))),
    (semi_markov, {"segment": zeros(2, 3, 3)}),
    *((best_label_sets, {name: -1}) for name in ("max_rounds", "effort")),
]  # fmt: skip


@pytest.mark.parametrize("door, wrong", WRONG)
def test_operators_refuse_what_their_kernels_would_read_beyond(door, wrong):
    door(**DOORS[door])
    with pytest.raises(ValueError):
        door(**DOORS[door] | wrong)


@each_operator
def test_operators_pass_the_checks_of_torch(name):
    decode, scores, rest = drawn(name)
    torch.library.opcheck(getattr(torch.ops.torchssvm, name).default, (*scores, *rest))
    assert not any(result.requires_grad for result in decode(scores[0].requires_grad_(), *scores[1:], *rest))


@pytest.mark.parametrize("name", ["viterbi", "max_sum_tree"])
def test_operators_compile_and_export_in_one_graph(name):
    decode, scores, rest = drawn(name)

    class Decoder(torch.nn.Module):
        def forward(self, first, *others):
            labels, value = decode(2.0 * first, *others)
            return labels + 1, value * 0.5

    arguments = *scores, *(torch.arange(9) % 3 + 1 if a is None else a for a in rest)
    expected = Decoder()(*arguments)
    assert_same(torch.compile(Decoder(), backend="eager", fullgraph=True)(*arguments), expected)
    exported = torch.export.export(Decoder(), arguments)
    assert f"torchssvm.{name}" in str(exported.graph)
    assert_same(exported.module()(*arguments), expected)


def test_gradients_flow_around_the_labels():
    """As in a structured hinge: the labels are constants, the scores are not."""

    def hinge(emission, transition, lengths):
        labels, value = viterbi(emission, transition, lengths)
        indicators = torch.nn.functional.one_hot(labels.clamp(min=0), 3)
        return (indicators * emission).sum() + value.sum()

    emission, transition, lengths = chains(4)
    results = []
    for function in (hinge, torch.compile(hinge, backend="aot_eager", fullgraph=True)):
        leaf = emission.clone().requires_grad_()
        value = function(leaf, transition, lengths)
        value.backward()
        results.append((value.detach(), leaf.grad))
    assert float(results[0][1].sum()) == len(emission) * emission.shape[1]
    assert_same(*results)


@pytest.mark.parametrize("decode", [viterbi, viterbi_torch])
def test_results_are_cut_from_the_graph(decode):
    emission, transition, lengths = chains(1)
    expected = decode(emission, transition, lengths)
    assert_same(decode(emission.requires_grad_(), transition.requires_grad_(), lengths), expected)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("axes", ["shared", "chain", "position", "expanded"])
def test_viterbi_passes_the_checks_of_torch(axes, ragged):
    arguments = chains(2, axes=axes, ragged=ragged)
    torch.library.opcheck(torch.ops.torchssvm.viterbi.default, arguments)
