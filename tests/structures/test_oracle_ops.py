"""Oracles as torch operators: the same bits from every kernel, layout and number of threads; compile, export."""

from __future__ import annotations

import importlib
import itertools
import os
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import examples, rng
from random_potentials import assert_same, chains, strided
from tables import each_row

from torchssvm.core import launch
from torchssvm.structures.arborescence.chu_liu_edmonds import max_arborescence
from torchssvm.structures.arborescence.eisner import eisner
from torchssvm.structures.chain.oracle import viterbi, viterbi_torch
from torchssvm.structures.chain.sum_product import sum_product
from torchssvm.structures.pose.distance_transform import distance_transform
from torchssvm.structures.pose.oracle import max_sum_grid
from torchssvm.structures.tree.oracle import max_sum_tree

module = importlib.import_module("torchssvm.structures.chain.oracle")  # the function of the same name hides it

DTYPES = st.sampled_from([torch.float32, torch.float64])
AXES = st.sampled_from(["shared", "chain", "position", "expanded", "positions expanded"])


@pytest.fixture
def two_threads(monkeypatch):
    """Several ranges for however little work."""
    monkeypatch.setattr(launch, "GRAIN", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


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


@examples(40)
@given(seed=st.integers(0, 10**6), batch=st.integers(1, 9), axes=AXES, ragged=st.booleans(), integers=st.booleans())
def test_blocks_in_lockstep_equal_torch(seed, batch, axes, ragged, integers):
    """The way of large K, at a small one: several blocks and groups, the last of them incomplete."""
    emission, transition, lengths = chains(seed, batch, 6, 13, axes, ragged, integers)
    with pytest.MonkeyPatch.context() as patch:
        for name, setting in (("CACHE", 0), ("GROUP", 5), ("BLOCK", 5 * 13 * 4)):
            patch.setattr(launch, name, setting)
        assert_same(viterbi(emission, transition, lengths), viterbi_torch(emission, transition, lengths))


@pytest.mark.parametrize("states", [3, 140])
def test_forbidden_states_and_moves_equal_torch(states):
    """Scores of minus infinity, up to where nothing is allowed."""
    for seed, share in itertools.product(range(5), (0.3, 0.9, 1.0)):
        emission, transition, lengths = chains(seed, 4, 5, states, integers=True)
        for tensor in (emission, transition):
            tensor[torch.rand(tensor.shape, generator=rng(seed)) < share] = -torch.inf
        assert_same(viterbi(emission, transition, lengths), viterbi_torch(emission, transition, lengths))


def test_large_state_spaces_equal_torch():
    for states, integers in ((129, True), (150, False), (530, True), (530, False)):
        emission, transition, lengths = chains(states, 5, 4, states, integers=integers)
        assert_same(viterbi(emission, transition, lengths), viterbi_torch(emission, transition, lengths))


@pytest.mark.parametrize("axes", ["shared", "chain", "position"])
def test_threads_do_not_change_the_result(axes, two_threads, monkeypatch):
    emission, transition, lengths = chains(5, 40, 9, 7, axes, integers=True)
    found = viterbi(emission, transition, lengths)
    torch.set_num_threads(1)
    assert_same(viterbi(emission, transition, lengths), found)
    monkeypatch.setattr(launch, "CACHE", 0)
    monkeypatch.setattr(launch, "BLOCK", 100)
    torch.set_num_threads(2)
    assert_same(viterbi(emission, transition, lengths), found)


def test_python_threads_may_call_at_once(two_threads):
    problems = [chains(seed, 16, 8, 5) for seed in range(4)]
    expected = [viterbi_torch(*problem) for problem in problems]
    failures = []

    def caller(k):
        for _ in range(60):
            try:
                assert_same(viterbi(*problems[k]), expected[k])
            except AssertionError as error:
                failures.append(error)

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in callers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_decodes(two_threads):
    problem = chains(3, 16, 8, 5)
    expected = viterbi(*problem)
    child = os.fork()
    if child == 0:
        try:
            assert_same(viterbi(*problem), expected)
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("decode", [viterbi, viterbi_torch])
def test_results_are_cut_from_the_graph(decode):
    emission, transition, lengths = chains(1)
    expected = decode(emission, transition, lengths)
    assert_same(decode(emission.requires_grad_(), transition.requires_grad_(), lengths), expected)


@pytest.mark.parametrize("decode", [viterbi, viterbi_torch])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_give_labels_all_the_same(decode, value):
    for place in range(15):
        emission, transition, lengths = chains(place, 2, 4, 3)
        (emission if place < 12 else transition).flatten()[place % 9] = value
        labels, _ = decode(emission, transition, lengths)
        real = torch.arange(4) < lengths.unsqueeze(1)
        assert bool(((labels >= 0) & (labels < 3))[real].all())
        assert bool((labels[~real] == -1).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_take_the_torch_operations(dtype):
    emission, transition, lengths = chains(1, integers=True)
    expected = viterbi_torch(emission, transition, lengths)[0]
    assert torch.equal(viterbi(emission.to(dtype), transition.to(dtype), lengths)[0], expected)
    assert torch.equal(viterbi(emission, transition.double(), lengths)[0], expected)


OPERATORS = {  # scores of any shapes that fit
    "viterbi": (viterbi, [(3, 5, 4), (4, 4)]),
    "sum_product": (sum_product, [(3, 5, 4), (4, 4)]),
    "max_sum_tree": (lambda *scores: max_sum_tree(*scores, torch.tensor([-1, 0, 0])), [(2, 3, 4), (4, 4)]),
    "max_sum_grid": (
        lambda *scores: max_sum_grid(*scores, torch.tensor([-1, 0])),
        [(2, 2, 3, 4), (2, 1, 2, 2, 3, 4), (2, 1, 2, 2, 7), (2, 1, 2, 2, 5)],
    ),
    "distance_transform": (distance_transform, [(2, 3, 4), (4,)]),
    "eisner": (eisner, [(2, 4, 5)]),
    "max_arborescence": (max_arborescence, [(2, 4, 5)]),
}


@each_row("name", OPERATORS)
def test_scores_are_floating(name):
    """Whole numbers and truth values are refused by name; half precision and mixed dtypes take the torch operations."""
    decode, shapes = OPERATORS[name]
    scores = [torch.randint(0, 2, shape) for shape in shapes]
    for dtype in (torch.int64, torch.bool):
        with pytest.raises(ValueError, match=rf"must be float32 or float64, got {dtype}: call \.float\(\)"):
            decode(*(tensor.to(dtype) for tensor in scores))
    expected = decode(*(tensor.float() for tensor in scores))
    tolerance = 0.02 if name == "sum_product" else 0.0
    mixed = [scores[0].float(), *(tensor.double() for tensor in scores[1:])]
    for others in ([tensor.half() for tensor in scores], mixed):
        for found, wanted in zip(decode(*others), expected, strict=True):
            torch.testing.assert_close(found.to(wanted.dtype), wanted, rtol=0, atol=tolerance)


@each_row("length", [0, -1, 6])
def test_bad_lengths_are_refused(length):
    emission, transition, _ = chains(1)
    with pytest.raises(ValueError, match=f"lengths must lie between 1 and the padded length 5, got {length} in row 1"):
        viterbi(emission, transition, torch.tensor([5, length, 2]))


def test_bad_shapes_are_refused():
    emission, transition, lengths = chains(1)
    with pytest.raises(ValueError, match=r"emission must be \[B, N, K\]"):
        viterbi(emission[0], transition, lengths)
    for wrong in (transition[1:], transition[:, 1:], transition.expand(2, 3, 3), transition.expand(3, 5, 3, 3)):
        with pytest.raises(ValueError, match="transition must be"):
            viterbi(emission, wrong, lengths)
    for wrong in (lengths[:2], lengths.int(), lengths.double()):
        with pytest.raises(ValueError, match=r"lengths must be int64 \[3\]"):
            viterbi(emission, transition, wrong)
    with pytest.raises(ValueError, match="at least one position and one state"):
        viterbi(emission[:, :0], transition, None)


def test_an_empty_batch_has_no_labelings():
    labels, value = viterbi(torch.zeros(0, 4, 3), torch.zeros(3, 3), None)
    assert labels.shape == (0, 4)
    assert value.shape == (0,)


# -- What torch knows of the operators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("axes", ["shared", "chain", "position", "expanded"])
def test_viterbi_passes_the_checks_of_torch(axes, ragged):
    arguments = chains(2, axes=axes, ragged=ragged)
    torch.library.opcheck(torch.ops.torchssvm.viterbi.default, arguments)


def test_gradients_flow_around_the_labels():
    """As in a structured hinge: the labels are constants, the scores are not."""

    def hinge(emission, transition, lengths):
        labels, value = viterbi(emission, transition, lengths)
        indicators = torch.nn.functional.one_hot(labels.clamp(min=0), 3)
        return (indicators * emission).sum() + value.sum()

    emission, transition, lengths = chains(4)
    found = []
    for function in (hinge, torch.compile(hinge, backend="aot_eager", fullgraph=True)):
        leaf = emission.clone().requires_grad_()
        value = function(leaf, transition, lengths)
        value.backward()
        found.append((value.detach(), leaf.grad))
    assert float(found[0][1].sum()) == len(emission) * emission.shape[1]
    assert_same(*found)


def test_viterbi_compiles_and_exports_in_one_graph():
    class Decoder(torch.nn.Module):
        def forward(self, emission, transition, lengths):
            labels, value = viterbi(2.0 * emission, transition, lengths)
            return labels + 1, value * 0.5

    arguments = chains(4)
    expected = Decoder()(*arguments)
    compiled = torch.compile(Decoder(), backend="eager", fullgraph=True)
    assert_same(compiled(*arguments), expected)
    exported = torch.export.export(Decoder(), arguments)
    assert "torchssvm.viterbi" in str(exported.graph)
    assert_same(exported.module()(*arguments), expected)
