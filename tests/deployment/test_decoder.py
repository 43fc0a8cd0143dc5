"""One module of head and decoding: at once, exported, compiled, in ONNX, and compiled ahead of time."""

import functools

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from torchssvm import (
    Arborescence,
    Chain,
    LinearArcs,
    LinearChain,
    LinearGraph,
    LinearMulticlass,
    LinearMultilabel,
    LinearRanking,
    LinearSegments,
    LinearTree,
    Multiclass,
    Multilabel,
    SlackRescaling,
    SparseFeatures,
    SparseLinearChain,
    SparseLinearMultilabel,
    Structure,
    Tree,
)
from torchssvm.core.decoding import Decoding
from torchssvm.deployment import Decoder
from torchssvm.structures import LinearForest
from torchssvm.structures.chain import Transitions
from torchssvm.structures.multilabel import MessagePassing
from torchssvm.structures.slack_rescaling import EveryLossLevel

ANY = Dim.DYNAMIC
F, K, N = 5, 4, 7


def with_weights(head: nn.Module, seed: int = 0, *, whole: bool = False) -> nn.Module:
    """Random weights; whole numbers make ties."""
    with torch.no_grad():
        for name, weight in head.named_parameters():
            drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed + weight.numel()))
            drawn = drawn.abs() if name == "pairwise" else drawn  # messages decide where no pair is negative
            weight.copy_(drawn.round() if whole else drawn)
    return head


def restricted() -> Chain:
    pairs = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 0], [1, 0, 1, 1]]).bool()
    first, last = torch.tensor([True, True, False, True]), torch.tensor([True, False, True, True])
    return Chain(K, transitions=Transitions(pairs, first=first, last=last))


def sets(size: int = 6) -> Multilabel:
    return Multilabel(size, decoder=MessagePassing())


def ragged(chance: torch.Generator, longest: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    batch, length = (int(torch.randint(1, most, (), generator=chance)) for most in (6, longest + 1))
    x = torch.randn(batch, length, F, generator=chance)
    return x, torch.randint(1, length + 1, (batch,), generator=chance)


def lists(chance: torch.Generator) -> tuple[SparseFeatures, torch.Tensor]:
    x, lengths = ragged(chance)
    columns = torch.randint(-1, 30, (*x.shape[:2], 3), generator=chance)
    return SparseFeatures(columns, x[..., :3].contiguous()), lengths


def whole_trees(chance: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x, _ = ragged(chance)
    x = torch.randn(len(x), N, F, generator=chance)
    return x, torch.randint(1, N + 1, (len(x),), generator=chance)


def single(chance: torch.Generator) -> tuple[torch.Tensor]:
    return (ragged(chance)[0][:, 0].contiguous(),)


PARENT = [-1, 0, 0, 1, 1, 2, 2]
KINDS = {
    "chain": (lambda: LinearChain(F, K), ragged, ({0: ANY, 1: ANY}, {0: ANY})),
    "restricted": (lambda: LinearChain(F, K, structure=restricted()), ragged, ({0: ANY, 1: ANY}, {0: ANY})),
    "positions": (lambda: LinearChain(F, K, positions=N), whole_trees, ({0: ANY}, {0: ANY})),
    "lists": (lambda: SparseLinearChain(30, K), lists, (SparseFeatures({0: ANY, 1: ANY}, {0: ANY, 1: ANY}), {0: ANY})),
    "segments": (lambda: LinearSegments(F, K, 3), ragged, ({0: ANY, 1: ANY}, {0: ANY})),
    "rankings": (lambda: LinearRanking(F), ragged, ({0: ANY, 1: ANY}, {0: ANY})),
    "tree": (lambda: LinearTree(F, K, PARENT), whole_trees, ({0: ANY}, {0: ANY})),
    "tree of unshared matrices": (lambda: LinearTree(F, K, PARENT, shared=False), whole_trees, ({0: ANY}, {0: ANY})),
    "classes": (lambda: LinearMulticlass(F, K), single, ({0: ANY},)),
    "label sets": (lambda: LinearMultilabel(F, 4, structure=sets(4)), single, ({0: ANY},)),
    "labels": (lambda: LinearMultilabel(F, 6, pairwise=False), single, ({0: ANY},)),
}


def batches(draw, count: int) -> list:
    chance = torch.Generator().manual_seed(0)
    return [draw(chance) for _ in range(count)]


def largest(batches: list) -> tuple:
    return max(batches, key=lambda batch: batch[-1].numel() * 100 + batch[0][0].numel())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [False, True])
def test_it_decodes_as_the_structure_at_once_and_in_plain_operators(kind: str, whole: bool) -> None:
    make, draw, _ = KINDS[kind]
    head = with_weights(make(), whole=whole)
    decoder = Decoder(head)
    for batch in batches(draw, 20):
        if whole and isinstance(batch[0], torch.Tensor):  # sums of whole numbers are exact: ties are ties in any order
            batch = (batch[0].round(), *batch[1:])
        elif whole:
            batch = (SparseFeatures(batch[0].columns), *batch[1:])
        potentials = head(*batch)
        labels = head.structure.decode(potentials)
        assert torch.equal(decoder(*batch), labels)
        if decoder.rule is None:  # its decode is traced
            continue
        plain = decoder.rule(potentials.detach().tensors, *batch[1:] or (None,))
        if whole and kind == "label sets":  # several sets may be best: the same score is asked for
            scores = head.structure._scores([torch.stack([plain, labels], 1)], potentials)
            torch.testing.assert_close(scores[:, 0], scores[:, 1])
        else:
            assert torch.equal(plain, labels)


class WithoutLengths(LinearChain):
    def forward(self, x, lengths=None):
        return super().forward(x, lengths).tensors


def test_a_head_may_leave_the_lengths_out() -> None:
    head, x, lengths = with_weights(WithoutLengths(F, K)), torch.randn(3, N, F), torch.tensor([7, 3, 1])
    potentials = LinearChain.forward(head, x, lengths)
    assert torch.equal(Decoder(head)(x, lengths), head.structure.decode(potentials))


@functools.cache
def exported_once(kind: str) -> tuple:
    """A decoder, batches of any size, and the decoder exported."""
    make, draw, sizes = KINDS[kind]
    decoder = Decoder(with_weights(make()))
    result = batches(draw, 20)
    return decoder, result, export(decoder, largest(result), dynamic_shapes=sizes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chain", "lists", "tree", "classes", "label sets"])
def test_exported_with_any_batch_and_length(kind: str) -> None:
    decoder, result, program = exported_once(kind)
    assert "torchssvm" not in str({node.target for node in program.graph.nodes})
    exported = program.module()
    for batch in result:
        assert torch.equal(exported(*batch), decoder(*batch))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chain", "classes"])
def test_one_whole_graph_for_the_compiler(kind: str) -> None:
    make, draw, _ = KINDS[kind]
    decoder = Decoder(with_weights(make()))
    torch._dynamo.reset()
    compiled = torch.compile(decoder, fullgraph=True, dynamic=True, backend="eager")
    for batch in batches(draw, 5):
        assert torch.equal(compiled(*batch), decoder(*batch))


@pytest.mark.slow
def test_ragged_batches_compiled_ahead_of_time(tmp_path) -> None:
    decoder, _, program = exported_once("chain")
    torch._dynamo.reset()
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "chain.pt2"))
    ahead = torch._inductor.aoti_load_package(path)
    for batch in batches(KINDS["chain"][1], 100):
        assert torch.equal(ahead(*batch), decoder(*batch))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chain", "classes"])
def test_onnx(kind: str, tmp_path) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    decoder, result, program = exported_once(kind)
    torch.onnx.export(program, dynamo=True, verbose=False).save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    names = [one.name for one in session.get_inputs()]
    for batch in result:
        (labels,) = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, batch, strict=True)})
        assert torch.equal(torch.from_numpy(labels), decoder(*batch))


def test_label_sets_by_messages_where_no_pair_is_negative() -> None:
    head = with_weights(LinearMultilabel(F, 8))
    decoder = Decoder(head, Multilabel(8, decoder=MessagePassing()))
    x = torch.randn(50, F)
    labels = head.structure.argmax(head(x))  # branch and bound
    assert labels.exact
    assert torch.equal(decoder(x), labels.labeling)


def test_sparse_label_sets() -> None:
    head = with_weights(SparseLinearMultilabel(30, 6, pairwise=False))
    x, decoder = SparseFeatures(torch.randint(-1, 30, (9, 4))), Decoder(head)
    labels = head.structure.decode(head(x))
    assert torch.equal(decoder(x), labels)
    assert torch.equal(export(decoder, (x,)).module()(x), labels)


def test_label_sets_whose_pairs_repel_are_local_optima() -> None:
    head = with_weights(LinearMultilabel(F, 6, structure=sets()))
    with torch.no_grad():
        head.pairwise.neg_()
    x = torch.randn(40, F)
    potentials = head(x)
    result = Decoder(head).rule(potentials.detach().tensors, None)
    flips = [result] + [
        result ^ ((torch.arange(6) == i) | (torch.arange(6) == j)).long() for i in range(6) for j in range(i + 1)
    ]
    scores = head.structure._scores([torch.stack(flips, 1)], potentials)
    assert torch.all(scores[:, 0] >= scores.amax(1) - 1e-9)


def test_features_and_a_trained_model_by_its_parts() -> None:
    class Model(nn.Module):  # as StructuredSVM
        def __init__(self) -> None:
            super().__init__()
            self.head = with_weights(LinearMulticlass(3, K))
            self.features = nn.Sequential(nn.Linear(F, 3), nn.Dropout())
            self.structure = Multiclass(K)

    model = Model()
    decoder = Decoder(model)
    x = torch.randn(6, F)
    assert not model.features.training
    assert torch.equal(decoder(x), model.head(model.features(x)).single.argmax(1))
    assert torch.equal(Decoder(model.head, features=model.features)(x), decoder(x))


def test_slack_rescaling_decodes_as_what_it_wraps() -> None:
    chain = Chain(K)
    head = with_weights(LinearChain(F, K))
    x, lengths = torch.randn(3, N, F), torch.tensor([7, 3, 1])
    result = Decoder(head, SlackRescaling(chain, EveryLossLevel()))(x, lengths)
    assert torch.equal(result, chain.decode(head(x, lengths)))


class Signs(Structure):
    """Any subset of labels, as on the README's page."""

    def argmax(self, potentials):
        chosen = (potentials.single > 0).long()
        return Decoding(chosen, value=(chosen * potentials.single).sum(1))

    def parts(self, labeling):
        return labeling.float()

    def loss(self, labeling, target):
        return (labeling != target).sum(1).double()

    def loss_potentials(self, target):
        return 1.0 - 2.0 * target, target.sum(1).double()


def test_a_structure_of_ones_own_is_traced() -> None:
    head = nn.Linear(F, 3)
    decoder = Decoder(head, Signs())
    x = torch.randn(4, F)
    assert torch.equal(decoder(x), (head(x) > 0).long())
    assert torch.equal(export(decoder, (x,), dynamic_shapes=({0: ANY},)).module()(x[:2]), decoder(x[:2]))


class Reversed(Chain):
    """The best states, 3 as 0 and so on."""

    def decode(self, potentials):
        return K - 1 - super().decode(potentials)


class Unscaled(SlackRescaling):
    def argmax(self, potentials):
        return K - 1 - self.structure.decode(potentials)


@pytest.mark.parametrize("structure", [Reversed(K), Unscaled(Chain(K))])
def test_what_a_subclass_decodes_counts(structure) -> None:
    head, x = with_weights(LinearChain(F, K)), torch.randn(2, N, F)
    assert torch.equal(Decoder(head, structure)(x), K - 1 - Decoder(head)(x))


@pytest.mark.parametrize(
    ("head", "structure"),
    [
        (LinearChain(F, K), Multiclass(K)),
        (LinearChain(F, K), Chain(K + 1)),
        (LinearChain(F, K), SlackRescaling(Multiclass(K))),
        (LinearTree(F, K, [-1, 0]), Tree(K, [-1, 0, 0])),
        (LinearMultilabel(F, K), Multilabel(K, pairwise=False)),
        (LinearArcs(5, num_labels=2), Arborescence()),
    ],
)
def test_a_structure_that_does_not_fit_the_head_is_refused_at_once(head, structure) -> None:
    with pytest.raises(ValueError, match="structure="):
        Decoder(head, structure)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (lambda: LinearForest(2, 2, 3), "Forest"),
        (lambda: LinearArcs(5), "Arborescence"),
        (lambda: LinearGraph(3, 2), "GraphCut"),
        (lambda: LinearMultilabel(F, 3), "MessagePassing"),
        (lambda: nn.Linear(2, 3), "head="),
    ],
)
def test_what_cannot_be_traced_is_refused_at_once(head, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        Decoder(head())
