"""What is checked where it enters: masks, missing labels, scores, datasets; and masks packed by ``select_tokens``."""

import pytest
import torch
from cases.one_of_each import KINDS
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from torchssvm import (
    GDMM,
    Batch,
    BlockGap,
    Chain,
    DualState,
    Graphs,
    LinearChain,
    LinearGraph,
    LinearMulticlass,
    LinearRanking,
    LinearSegments,
    LinearTree,
    Multiclass,
    Potentials,
    Ranking,
    SoftmaxMargin,
    Solver,
    SparseFeatures,
    SparseLinearChain,
    StructuredHinge,
    Tree,
    WeightedLabels,
    evaluate,
    select_tokens,
    solve,
)
from torchssvm.datasets import PaddedDataset, PrecomputedFeatures, RankedLists
from torchssvm.deployment import Decoder
from torchssvm.solvers.kernel import RBF, KernelMulticlass, KernelSSVM
from torchssvm.steps import ByLength
from torchssvm.structures.tree.forest import Forest, ForestPotentials

MASK = torch.tensor([[False, True, True, False, True], [True, True, False, False, False]])
X = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))


@examples(20)
@given(
    rows=st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n).filter(any), min_size=1, max_size=4)
    )
)
def test_selected_tokens_come_first_in_their_order(rows):
    mask = torch.tensor(rows)
    x = torch.randn(*mask.shape, 2, requires_grad=True)
    y = torch.arange(mask.numel()).view(mask.shape)
    packed, labels, lengths = select_tokens(mask, x, y)
    assert packed.shape[:2] == labels.shape == (len(mask), max(map(sum, rows)))
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(packed[row, :length], x[row][mask[row]])
        assert torch.equal(labels[row, :length], y[row][mask[row]])
        assert not packed[row, length:].any()
        assert bool((labels[row, length:] == -1).all())
    packed.sum().backward()
    assert torch.equal(x.grad, mask.unsqueeze(2).expand(x.shape).float())
    whole = torch.full_like(y, -1)
    whole[mask] = labels[labels >= 0]
    assert torch.equal(whole, y.masked_fill(~mask, -1))


@pytest.mark.parametrize(
    ("mask", "x"), [(MASK.long(), X), (MASK[0], X), (MASK, X[:, :3]), (MASK & torch.tensor([[True], [False]]), X)]
)
def test_wrong_masks_are_refused(mask, x):
    with pytest.raises(ValueError, match="mask"):
        select_tokens(mask, x)


def _precomputed(mask):
    class Masked(list):
        @staticmethod
        def collate(_):
            return Batch(X, torch.zeros(2, 5, dtype=torch.int64), torch.arange(2), mask)

    return PrecomputedFeatures(Masked([0, 1]), torch.nn.Linear(4, 3))


ENTRIES = {
    "chain": lambda mask: LinearChain(4, 3)(X, mask),
    "sparse chain": lambda mask: SparseLinearChain(4, 3)(SparseFeatures(X.argsort(2)), mask),
    "segments": lambda mask: LinearSegments(4, 3, 2)(X, mask),
    "tree": lambda mask: LinearTree(4, 3, [-1, 0, 1, 2, 3])(X, mask),
    "ranking": lambda mask: LinearRanking(4)(X, mask),
    "graph": lambda mask: LinearGraph(4, 1)(Graphs(X, torch.zeros(2, 0, 1), torch.zeros(2, 0, 2).long()), mask),
    "potentials": lambda mask: Potentials({"a": X}, mask),
    "dataset": lambda mask: PaddedDataset(X, torch.zeros(2, 5, dtype=torch.int64), mask),
    "precomputed": _precomputed,
    "order": ByLength,
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize("mask", [MASK, MASK.long(), MASK.float()], ids=["bool", "int64", "float32"])
def test_a_mask_is_not_taken_for_lengths(entry, mask):
    with pytest.raises(ValueError, match="mask"):
        entry(mask)


@pytest.mark.parametrize("missing", [-1, -100])
def test_labels_that_are_missing_are_refused_with_their_place(missing):
    y = torch.tensor([[0, 1, 2, 0, 1], [2, 1, missing, -1, -1]])
    lengths = torch.tensor([5, 3])
    head = LinearChain(4, 3)
    for loss in (StructuredHinge(head.structure), SoftmaxMargin(head.structure)):
        with pytest.raises(ValueError, match=f"label {missing} at position 2 of row 1"):
            loss(head(X, lengths), y)


class _Classes:
    """Examples that come in one batch."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return i

    def collate(self, items):
        index = torch.tensor(items)
        return Batch(self.x[index], self.y[index], index)


@pytest.mark.parametrize("compiled", [True, False])
def test_minus_100_is_padding_beyond_the_lengths_alone_where_labels_are_needed(compiled):
    y = torch.tensor([[0, 1, -100], [2, -100, -100]])
    head, solver = LinearChain(4, 3), Solver(compiled=compiled)
    with pytest.raises(ValueError, match="label -100 at position 2 of example 0"):
        solve(head, PaddedDataset(X[:, :3], y, torch.tensor([3, 1])), lam=0.1, solver=solver, progress=False)
    data = PaddedDataset(X[:, :3], y, torch.tensor([2, 1]))
    assert solve(head, data, lam=0.1, solver=solver, progress=False).exact


def test_what_docs_call_ignored_is_not_looked_at():
    """Entries at roots, and rows beyond a length where no ``ragged`` says so."""
    nan, node, lengths = torch.nan, torch.zeros(1, 3, 2), torch.tensor([2])
    edge = torch.zeros(1, 3, 2, 2)
    edge[:, 0] = nan
    assert Forest(2).decode(ForestPotentials(node, edge, torch.tensor([[-1, 0, 1]]))).labels.tolist() == [[0] * 3]
    tree = Tree(2, [-1, 0, 1], shared=False)
    assert tree.decode({"node": node, "edge": edge}).tolist() == [[0] * 3]
    node, edge = node.index_fill(1, torch.tensor([2]), nan), edge.index_fill(1, torch.tensor([2]), nan)
    tensors = {"node": node, "edge": edge}
    assert tree.decode(Potentials(tensors, lengths)).tolist() == [[0, 0, -1]]
    shared, pairs = torch.zeros(1, 2, 2), edge[:, 1:]
    assert Tree(2, [-1, 0, 1]).decode(Potentials({"node": node, "edge": shared}, lengths)).tolist() == [[0, 0, -1]]
    for chain, moves in ((Chain(2), shared), (Chain(2, shared=False), pairs)):
        chains = Potentials({"emission": node, "transition": moves}, lengths)
        assert chain.decode(chains).tolist() == [[0, 0, -1]]
    assert Ranking().decode(Potentials(node[..., 0], lengths)).tolist() == [[0, 1, -1]]
    for structure, wrong in ((tree, {"node": node, "edge": edge.fill_(nan)}), (Chain(2, shared=False), chains.tensors)):
        with pytest.raises(ValueError, match=r"rows \[0\] are not finite"):
            structure.decode(wrong)


def test_fake_tensors_are_decoded_as_they_hold_no_numbers():
    decoder = Decoder(LinearChain(4, 3))
    with FakeTensorMode(allow_non_fake_inputs=True):
        scores = {"emission": torch.zeros(2, 5, 3), "transition": torch.zeros(2, 3, 3)}
        assert Chain(3).decode(Potentials(scores)).shape == decoder(torch.zeros(2, 5, 4)).shape == (2, 5)


def test_loss_potentials_of_another_shape_are_refused_with_the_shape_that_is_wanted():
    class Short(Multiclass):
        def loss_potentials(self, target):
            delta, constant = super().loss_potentials(target)
            return delta[:, :2], constant

    x, classes = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(ValueError, match="loss_potentials"):
        solve(LinearMulticlass(4, 3), _Classes(x, classes), 0.1, structure=Short(3), progress=False)


DOORS = {
    "decode": lambda structure, given, target: structure.decode(given),
    "argmax": lambda structure, given, target: structure.argmax(given),
    "augmented_argmax": lambda structure, given, target: structure.augmented_argmax(given, target),
    "check_target": lambda structure, given, target: structure.check_target(target, given),
    "hinge": lambda structure, given, target: StructuredHinge(structure)(given, target),
}


@pytest.mark.parametrize("kind", KINDS)
def test_potentials_that_no_head_returned_are_refused_at_every_door(kind):
    structure, potentials, target = KINDS[kind](torch.Generator().manual_seed(0))
    first = next(iter(potentials.tensors.values()))
    single = len(potentials.tensors) == 1
    wrong = first.unsqueeze(-1) if single else first
    words = r"\['potentials'\] must be \[B" if single else " must be .*, not one tensor: pass what the head returns"
    for call in DOORS.values():
        with pytest.raises(ValueError, match=f"^potentials{words}"):
            call(structure, wrong, target)
        for none in (None, first.numpy(), (first,)):
            with pytest.raises(TypeError, match=r"^potentials=.* must be Potentials or tensors, as a head returns"):
                call(structure, none, target)
    if not single:
        with pytest.raises(ValueError, match=r"^potentials must be .*: pass what the head returns"):
            structure.decode({"other": first})


@pytest.mark.parametrize("loss", ["block gap", "hinge"])
def test_a_loss_says_which_potentials_it_needs(loss):
    head = LinearChain(4, 3)
    dual = DualState.for_head(head, 2, 0.1)
    scores, y = torch.zeros(2, 5, 3), torch.zeros(2, 5, dtype=torch.int64)
    call = BlockGap(dual) if loss == "block gap" else lambda scores, y, _: StructuredHinge(Chain(3))(scores, y)
    with pytest.raises(ValueError, match=r"'emission', 'transition'.* not one tensor: pass what the head returns"):
        call(scores, y, torch.arange(2))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "decisions"])  # decisions may be fractions
def test_a_target_of_floats_is_refused_with_its_dtype_and_the_way_out(kind):
    structure, potentials, target = KINDS[kind](torch.Generator().manual_seed(0))
    if isinstance(target, WeightedLabels):
        wrong = target._replace(labels=target.labels.double())
    else:
        wrong = target.double()
    with pytest.raises(ValueError, match=r"^target must be int64 .*torch.float64 .*: convert target by \.long\(\)"):
        structure.check_target(wrong, potentials)


def _gap(name):
    head = LinearChain(4, 3)
    given = {"y": torch.zeros(2, 5).long(), "index": torch.arange(2), "lengths": torch.tensor([5, 4])}
    given[name] = given[name].float()
    BlockGap(DualState.for_head(head, 2, 0.1))(head(X, given["lengths"]), given["y"], given["index"])


FLOATS = {
    "target": lambda: _gap("y"),
    "index": lambda: _gap("index"),
    "lengths": lambda: _gap("lengths"),
    "y of solve": lambda: solve(LinearChain(4, 3), PaddedDataset(X, torch.zeros(2, 5)), 0.1, progress=False),
    "y of the torch loop": lambda: solve(
        LinearChain(4, 3), PaddedDataset(X, torch.zeros(2, 5)), 0.1, solver=Solver(compiled=False), progress=False
    ),
    "y of evaluate": lambda: evaluate(LinearChain(4, 3), Chain(3), PaddedDataset(X, torch.zeros(2, 5))),
    "y of a kernel": lambda: KernelSSVM(KernelMulticlass(RBF(1.0), 4, 3), X[:, 0], torch.zeros(2), lam=0.1),
    "y of GDMM": lambda: GDMM(
        LinearChain(4, 3), [Batch(X, torch.zeros(2, 5), torch.arange(2))], num_examples=2, lam=0.1
    ),
    "sizes": lambda: RankedLists(X[0], torch.ones(5).long(), torch.tensor([2.0, 3.0])),
}


@pytest.mark.parametrize("where", FLOATS)
def test_whole_numbers_given_as_floats_are_refused_everywhere(where):
    with pytest.raises(ValueError, match=r"torch.float32.*: convert \w+ by \.long\(\)"):
        FLOATS[where]()
