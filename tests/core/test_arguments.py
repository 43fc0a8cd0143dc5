"""Arguments of a wrong kind are refused by name, with what to do; NumPy's numbers are numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from cases.problems import assert_same, chain, multiclass

from torchssvm import (
    BCFW,
    GDMM,
    Arborescence,
    BlockGap,
    CacheOracle,
    Chain,
    CompiledBCFW,
    Corrective,
    DualState,
    GapBatchSampler,
    GraphCut,
    HiddenStates,
    Labelings,
    LinearChain,
    LinearEdges,
    LinearGraph,
    LinearMulticlass,
    LinearMultilabel,
    LinearPose,
    LinearSegments,
    LinearTree,
    Matching,
    Multiclass,
    Multilabel,
    Permutation,
    Pose,
    Potentials,
    Proportional,
    Segments,
    SparseFeatures,
    SparseLinearChain,
    StructuredHinge,
    TorchStruct,
    Tree,
    WeightedLabels,
    certify,
    check,
    choose_lam,
    datasets,
    evaluate,
    in_order,
    recompute_weights,
    regularization_path,
)
from torchssvm.core.arguments import check_number, check_seed, check_whole
from torchssvm.datasets import (
    OCR,
    ChunkingDataset,
    CoNLL2000,
    GraphSettings,
    OCRData,
    PaddedDataset,
    PrecomputedFeatures,
    SentencePair,
    Vocabulary,
    WordChains,
    alignment_errors,
    arc_columns,
    chunks,
)
from torchssvm.models import LetterFeatures, best_threshold, mean_displacements, threshold_links
from torchssvm.path import Certified
from torchssvm.solvers import EveryPasses, WeightedAverage, WhenEstimated, primal
from torchssvm.solvers.gdmm import Penalty, ResidualBalancing
from torchssvm.solvers.kernel import RBF, KernelMulticlass, KernelSSVM, Polynomial
from torchssvm.steps import BoxQP
from torchssvm.structures.matching import EdgePotentials
from torchssvm.structures.multilabel import BranchAndBound, MessagePassing
from torchssvm.structures.slack_rescaling import BruteForceSearch

WORDS = [(3, 3), ("3", None), (2.5, None), (True, None), (None, None), (np.int32(3), 3), (np.bool_(True), None)]


@pytest.mark.parametrize(("given", "number"), WORDS)
def test_whole_numbers(given, number):
    if number is None:
        with pytest.raises((TypeError, ValueError), match="n="):
            check_whole(given, "n")
    else:
        assert check_whole(given, "n") == number
        assert type(check_whole(given, "n")) is int


def test_limits_of_numbers():
    for least, most in ((4, None), (0, 2)):
        with pytest.raises(ValueError, match="n=3"):
            check_whole(3, "n", least, most=most)
    assert check_number(np.float32(0.5), "x", 0.0) == 0.5
    assert check_number(torch.inf, "x", above=0.0, finite=False) == torch.inf
    for value, options in (
        (-1.0, {"least": 0.0}),
        (1.0, {"above": 1.0}),
        (torch.inf, {}),
        (torch.nan, {"finite": False}),
    ):
        with pytest.raises(ValueError, match=f"x={value}"):
            check_number(value, "x", **options)
    for value in ("1", None, True, [1.0], torch.tensor(1.0)):
        with pytest.raises(TypeError, match="x="):
            check_number(value, "x")
    assert check_seed(-1) == -1
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match="seed="):
            check_seed(seed)


def test_whole_numbers_of_numpy_are_taken_everywhere():
    six = np.int64(6)
    problem = multiclass(1)
    dual = DualState.for_head(
        problem.head, six, problem.lam, storage=Labelings(np.int64(4)), memory_limit=np.int64(10**8)
    )
    assert (dual.num_examples, type(dual.num_examples)) == (6, int)
    assert type(dual.storage.capacity) is int
    sampler = GapBatchSampler(dual, batch_size=np.int16(2), num_examples=six, seed=np.uint8(3), chunk=np.int64(9))
    assert {type(n) for n in (sampler.batch_size, sampler.num_examples, sampler.chunk)} == {int}
    loss = BlockGap(dual, block_steps=BoxQP(np.int64(2)))
    optim = BCFW(problem.head.parameters(), dual)
    batch = problem.batch(next(iter(sampler)))
    loss(problem.head(batch.x), batch.y, batch.index).backward()
    optim.step()
    state = dual.state_dict()
    assert type(state["num_examples"]) is int  # NumPy's are no numbers to weights_only=True
    assert certify(problem.head, dual, problem.everything()).num_examples == 6


SMALL = multiclass(1, dtype=torch.float32)
SIZED: list[tuple[str, Any]] = [
    ("in_features", lambda n: LinearMulticlass(n, 3)),
    ("num_states", lambda n: LinearChain(3, n)),
    ("positions", lambda n: LinearChain(3, 3, positions=n)),
    ("in_features", lambda n: SparseLinearChain(n, 3)),
    ("in_features", LinearEdges),
    ("edge_features", lambda n: LinearGraph(2, n)),
    ("in_features", lambda n: LinearMultilabel(n, 3)),
    ("in_features", lambda n: LinearSegments(n, 2, 3)),
    ("max_duration", lambda n: Segments(3, n)),
    ("in_features", lambda n: LinearTree(n, 2, [-1])),
    ("num_classes", lambda n: KernelMulticlass(RBF(), 3, n)),
    ("num_classes", Multiclass),
    ("num_states", Chain),
    ("num_states", lambda n: Tree(n, [-1])),
    ("num_labels", Multilabel),
    ("max_rounds", MessagePassing),
    ("effort", lambda n: BranchAndBound(10, n)),
    ("most", BruteForceSearch),
    ("capacity", Labelings),
    ("steps", Corrective),
    ("memory_limit", lambda n: DualState.for_head(multiclass(1).head, 6, 0.1, memory_limit=n)),
    ("memory_limit", lambda n: KernelSSVM(KernelMulticlass(RBF(), 3, 3), SMALL.x, SMALL.y, lam=0.1, memory_limit=n)),
    ("degree", Polynomial),
    ("batch_size", lambda n: GapBatchSampler(num_examples=5, batch_size=n)),
    ("fold", lambda n: OCR(fold=n)),
    ("segments", GraphSettings),
]


@pytest.mark.parametrize("size", [2.5, "3", True, -1, [3]])
@pytest.mark.parametrize(("name", "make"), SIZED)
def test_sizes(name, make, size):
    kind = TypeError if isinstance(size, str | list) else ValueError
    with pytest.raises(kind, match=f"{name}="):
        make(size)


def _compiled() -> tuple[Any, ...]:
    problem = multiclass(1)
    return problem.head, DualState.for_head(problem.head, 6, 0.1), problem.everything()


NUMBERS: list[tuple[str, Any]] = [
    ("factor", lambda x: CacheOracle(factor=x)),
    ("seed", lambda x: GapBatchSampler(num_examples=5, batch_size=2, seed=x)),
    ("seed", lambda x: CompiledBCFW(*_compiled(), seed=x)),
    ("seed", lambda x: GDMM(chain(1).head, chain(1).everything(), num_examples=5, lam=0.1, seed=x)),
    ("rho", Penalty),
    ("factor", lambda x: ResidualBalancing(factor=x)),
    ("tolerance", lambda x: Corrective(tolerance=x)),
    ("power", Proportional),
    ("passes", EveryPasses),
    ("at_least", lambda x: WhenEstimated(at_least=x)),
    ("kappa", Certified),
    ("gamma", RBF),
    ("scale", lambda x: Polynomial(scale=x)),
    ("precision_cost", lambda x: Matching(precision_cost=x)),
    ("weight", lambda x: TorchStruct(_crf(), weight=x)),
    ("epsilon", lambda x: regularization_path(LinearMulticlass(3, 3), [1], epsilon=x, lam_min=0.1)),
    ("lam_min", lambda x: regularization_path(LinearMulticlass(3, 3), [1], epsilon=0.1, lam_min=x)),
    (r"lams\[0\]", lambda x: choose_lam(LinearMulticlass(3, 3), [1], [1], [x])),
    ("max_passes", lambda x: choose_lam(LinearMulticlass(3, 3), [1], [1], [0.1], max_passes=x)),
    ("tolerance", lambda x: CompiledBCFW(*_compiled()).solve(x)),
]


def _crf() -> Any:
    import torch_struct

    return torch_struct.LinearChainCRF


@pytest.mark.parametrize("value", ["x", "0.5", [0.5]])
@pytest.mark.parametrize(("name", "make"), NUMBERS)
def test_numbers_are_no_words(name, make, value):
    with pytest.raises(TypeError, match=f"{name}="):
        make(value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LinearMulticlass(3, 3, bias="no"), "bias"),
        (lambda: LinearChain(3, 3, boundary=None), "boundary"),
        (lambda: SparseLinearChain(3, 3, sparse_gradient=1), "sparse_gradient"),
        (lambda: LinearTree(3, 2, [-1], shared="no"), "shared"),
        (lambda: Chain(3, normalize="no"), "normalize"),
        (lambda: BoxQP("five"), "sweeps"),
        (lambda: LinearChain(3, 3, structure="chain"), "structure"),
        (lambda: LinearPose(3), "structure"),
        (lambda: Chain(3, class_weight=[1, 1, 1]), "class_weight"),
        (lambda: Multiclass(3, cost=torch.eye(3).to_sparse()), "cost"),
        (lambda: Pose([-1], None, (2, 2), size=1.0), "displacements"),
        (lambda: Arborescence("projective"), "among"),
        (lambda: GraphCut("maxflow"), "oracle"),
        (lambda: Multilabel(3, decoder=MessagePassing), "decoder"),
        (lambda: KernelMulticlass("rbf", 3, 3), "kernel"),
        (lambda: GapBatchSampler(num_examples=3, batch_size=2, order=Permutation), "order"),
        (lambda: GapBatchSampler(num_examples=3, batch_size=2).bind(None), "dual"),
        (lambda: CompiledBCFW(*_compiled()).solve(0.1, schedule=3), "schedule"),
        (lambda: BlockGap(LinearChain(3, 3)), "dual"),
        (lambda: StructuredHinge(Multiclass), "structure"),
        (lambda: BCFW(multiclass(1).head.parameters(), None), "dual"),
        (lambda: WeightedAverage(LinearChain(3, 3)), "params"),
        (lambda: DualState.for_head(LinearChain(3, 3).to("meta"), 6, 0.1), "weight"),
        (lambda: certify(LinearChain(3, 3), None, []), "dual"),
        (lambda: certify(*_compiled()[:2], None), "batches"),
        (lambda: certify(*_compiled(), refresh="no"), "refresh"),
        (lambda: evaluate(LinearChain(3, 3), Chain, []), "structure"),
        (lambda: LinearChain(3, 3)(np.zeros((1, 2, 3))), "x"),
        (lambda: LinearChain(3, 3)(SparseFeatures(torch.zeros(1, 2, 3).long())), "x"),
        (lambda: primal(LinearChain(3, 3), None, [], 0.1), "structure"),
        (lambda: check(LinearChain(3, 3), Chain(3), None), "check"),
        (lambda: choose_lam(LinearChain(3, 3), [1], [1], "abc"), "lams"),
        (lambda: multiclass(1).train().dual.rescale("x"), "factor"),
    ],
)
def test_objects_of_another_kind(make, words):
    with pytest.raises(TypeError, match=words):
        make()


BAD_TARGETS: dict[str, Any] = {
    "None": lambda y: None,
    "a list": lambda y: y.tolist(),
    "of NumPy": lambda y: y.numpy(),
    "a word": lambda y: "abc",
    "meta": lambda y: y.to("meta"),
    "sparse": lambda y: y.to_sparse(),
    "float": lambda y: y.double(),
}


@pytest.mark.parametrize("kind", BAD_TARGETS)
@pytest.mark.parametrize("problem", [multiclass, chain])
def test_targets_of_another_kind(problem, kind):
    spoil = BAD_TARGETS[kind]
    training = problem(1).train().run([[0], [1, 2]])
    everything = training.problem.everything()[0]
    bad = everything.replace(y=spoil(everything.y))
    before = training.snapshot()
    with pytest.raises(ValueError, match="target"):
        training.step(bad)
    for call in (
        lambda: certify(training.head, training.dual, [bad]),
        lambda: StructuredHinge(training.problem.structure)(_applied(training.head, bad), bad.y),
        lambda: primal(training.head, training.problem.structure, [bad], 0.1),
        lambda: CompiledBCFW(training.head, training.dual, [bad]),
    ):
        with pytest.raises(ValueError, match="target"):
            call()
    assert_same(training.snapshot(), before)
    training.step([0])


def _applied(head: Any, batch: Any) -> Any:
    return head(batch.x) if batch.lengths is None else head(batch.x, batch.lengths)


@pytest.mark.parametrize(
    ("name", "spoil", "argument"),
    [
        ("x", lambda x: None, "x"),
        ("x", lambda x: x.tolist(), "x"),
        ("x", lambda x: x.to("meta"), "x"),
        ("x", lambda x: x.to(torch.complex128), "x"),
        ("x", lambda x: x.to_sparse(), "x"),
        ("y", lambda y: WeightedLabels(y, None), r"target\.weights"),
        ("y", lambda y: WeightedLabels(y, torch.ones(5, 3).to_sparse()), r"target\.weights"),
        ("index", lambda index: index.to("meta"), "index"),
        ("lengths", lambda lengths: lengths.to("meta"), "lengths"),
    ],
)
def test_batches_of_another_kind(name, spoil, argument):
    training = chain(1).train().run([[0], [1, 2]])
    batch, before = training.problem.everything()[0], training.snapshot()
    with pytest.raises((TypeError, ValueError), match=rf"\b{argument}\b"):
        training.step(batch.replace(**{name: spoil(getattr(batch, name))}))
    assert_same(training.snapshot(), before)


@pytest.mark.parametrize("spoil", [lambda t: t.to("meta"), lambda t: t.to(torch.complex128), lambda t: t.to_sparse()])
def test_potentials_of_another_kind(spoil):
    training = multiclass(1).train().run([[0]])
    batch = training.problem.batch([0, 1])
    potentials = spoil(training.head(batch.x).single.detach())
    with pytest.raises(TypeError, match="potentials"):
        training.loss(potentials, batch.y, batch.index)


X, Y = torch.zeros(3, 4, 2), torch.zeros(3, 4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PaddedDataset([[1]], Y), "x"),
        (lambda: PaddedDataset(X.to("meta"), Y), "x"),
        (lambda: PaddedDataset(X[:0], Y[:0]), "x"),
        (lambda: PaddedDataset(X, Y, torch.tensor([1, 2, 5])), "lengths"),
        (lambda: PaddedDataset(X, Y, index=torch.tensor([0, 0, 1])), "index"),
        (lambda: PaddedDataset(X, Y)[1.5], "index"),
        (lambda: PaddedDataset(X, Y).__getitems__(["a"]), "index"),
        (lambda: Vocabulary("abc", ["O"]), "attributes"),
        (lambda: Vocabulary([1, 2], ["O"]), "attributes"),
        (lambda: ChunkingDataset("text", None), "sentences"),
        (lambda: CoNLL2000(vocabulary="words"), "vocabulary"),
        (lambda: WordChains.from_sentences(["a b"]), "sentences"),
        (lambda: chunks([1]), "tags"),
        (lambda: alignment_errors([["ab c"]], [SentencePair(("a",), ("b",))]), "link"),
        (lambda: arc_columns(["a"], ["b", "c"], 9), "words"),
        (lambda: arc_columns(["a"], ["b"], "x"), "num_features"),
        (lambda: OCRData(num_workers=-1), "num_workers"),
        (lambda: OCRData(order="uniform"), "order"),
        (lambda: PrecomputedFeatures(PaddedDataset(X, Y), len), "features"),
        (lambda: LetterFeatures(2.5), "width"),
        (lambda: mean_displacements(torch.zeros(3, 2, 2), [-1, 0], 2.5), "num_types"),
        (lambda: best_threshold(threshold_links, [], len, steps=0), "steps"),
        (lambda: Matching.from_partners(torch.tensor([0.5]), 2), "partners"),
        (lambda: EdgePotentials(None), "tensors"),
        (lambda: recompute_weights(LinearChain(3, 3), None, []), "dual"),
        (lambda: choose_lam(LinearChain(3, 3), None, [1], [0.1]), "dataset"),
    ],
)
def test_data_of_another_kind(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda bad: in_order(bad), "dataset"),
        (lambda bad: Potentials(torch.zeros(1, 2), ragged=bad or 3), "ragged"),
        (lambda bad: Segments(2, 2).from_spans(bad), "spans"),
        (lambda bad: Segments(2, 2).frames(bad), "labeling"),
        (lambda bad: HiddenStates(Chain(2)).observe(bad), "states"),
        (lambda bad: datasets.NamedChains(bad, [["a"]]), "x"),
        (lambda bad: datasets.NamedChains([["a"]], [["b"]], vocabulary=bad or 3), "vocabulary"),
        (lambda bad: datasets.NamedChains([["a"]], [["b"]], labels=bad or 3), "labels"),
        (lambda bad: datasets.SparseRows.of_dense(bad), "matrix"),
        (lambda bad: datasets.chunks(bad), "tags"),
        (lambda bad: datasets.chunk_scores(bad, [["O"]]), "true"),
        (lambda bad: datasets.alignment_errors(bad, []), "predicted"),
        (lambda bad: datasets.attachment(bad, []), "heads"),
        (lambda bad: datasets.read_columns("here.txt", bad or 3), "columns"),
        (lambda bad: datasets.Vocabulary.of(bad), "sentences"),
        (lambda bad: datasets.Standardised().fit(bad), "features"),
        (lambda bad: datasets.SparseChains(bad, *[torch.zeros(1)] * 3, in_features=1, num_states=1), "offsets"),
        (lambda bad: datasets.to_bio(bad), "tags"),
        (lambda bad: datasets.arc_columns(bad, ["b"], 4), "words"),
        (lambda bad: datasets.pose_scores(bad, bad, torso=(0, 1)), "predicted"),
        (lambda bad: datasets.pool_regions(bad, bad), "features"),
        (lambda bad: datasets.segmentation_scores(bad, []), "predicted"),
    ],
)
@pytest.mark.parametrize("bad", [None, 3, 2.5])
def test_what_is_no_list_or_tensor_is_refused_by_name(call, name, bad):
    with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
        call(bad)
