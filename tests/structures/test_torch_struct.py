"""torch-struct's distributions as structures, against brute-force enumeration and against our chain."""

import itertools

import pytest
import torch
from cases.labelings_cases import LabelingsTestCase
from cases.problems import examples
from cases.torch_struct_cases import CASES, Case
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchssvm.core.decoding import as_decoding
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import Potentials, inner
from torchssvm.structures import TorchStruct

torch_struct = pytest.importorskip("torch_struct")
# Of the instances that the tests make themselves; the adapter is silent, see test_decoding_is_silent.
pytestmark = pytest.mark.filterwarnings("ignore:.*arg_constraints.*:UserWarning")

EXAMPLES = examples(15)
SEEDS = st.integers(0, 2**31 - 1)


all_cases = pytest.mark.parametrize("case", CASES, ids=repr)


def decode(structure: TorchStruct, potentials: Potentials) -> Tensor:
    return as_decoding(structure.argmax(potentials)).labeling


def scores_of(outputs: Tensor, scores: Tensor) -> Tensor:
    return (outputs.to(torch.float64) * scores.to(torch.float64)).flatten(1).sum(1)


def is_among(event: Tensor, outputs: Tensor) -> bool:
    return bool((event == outputs).flatten(1).all(1).any())


class TorchStructLabelings(LabelingsTestCase):
    """Events are shaped like the potentials, and padded along several axes."""

    case: Case

    def setting(self, seed, batch=3, integers=False):
        potentials = self.case.draw(seed, "ties" if integers else "normal", batch)
        random = torch.Generator().manual_seed(seed)
        rows = []
        for row in range(batch):
            outputs = self.case.all_outputs(potentials, row)
            rows.append(outputs[torch.randint(0, len(outputs), (), generator=random)])
        target = self.case.structure.check_target(torch.stack(rows), potentials)
        return self.case.structure, potentials, target


for _case in CASES:
    _name = "TestLabelings_" + _case.name.replace("-", "_")
    globals()[_name] = type(_name, (TorchStructLabelings,), {"case": _case, "__module__": __name__})


@all_cases
@EXAMPLES
@given(seed=SEEDS, kind=st.sampled_from(["normal", "ties"]), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_argmax_is_the_best_of_all_outputs(case, seed, kind, dtype):
    potentials = case.draw(seed, kind, dtype=dtype)
    labels = decode(case.structure, potentials)
    assert labels.dtype == dtype
    assert not labels.requires_grad
    value = inner({"y": labels}, {"y": potentials.single})
    for row in range(len(labels)):
        outputs = case.all_outputs(potentials, row)
        assert is_among(labels[row], outputs)
        best = scores_of(outputs, potentials.single[row]).max()
        torch.testing.assert_close(value[row], best, atol=1e-5 if dtype == torch.float32 else 1e-12, rtol=0)


@all_cases
@examples(15)
@given(seed=SEEDS, junk=st.sampled_from([0.0, float("nan")]), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_marginals_are_means_over_all_outputs(case, seed, junk, dtype):
    potentials = case.draw(seed, dtype=dtype)
    scores = potentials.single.clone()
    for row, length in enumerate(potentials.lengths.tolist()):
        real = case.embed(torch.ones(1, *case.shape(length)), scores)[0]
        scores[row] = torch.where(real > 0, scores[row], junk)
    means = case.structure.marginals(Potentials({"y": scores}, potentials.lengths))
    assert means.parts["y"].dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    for row in range(len(scores)):
        outputs = case.all_outputs(potentials, row)
        values = scores_of(outputs, potentials.single[row])
        mean = torch.einsum("o,o...->...", values.softmax(0), outputs.double())
        torch.testing.assert_close(means.parts["y"][row].double(), mean, atol=tolerance, rtol=0)
        torch.testing.assert_close(means.log_partition[row], values.logsumexp(0), atol=tolerance, rtol=1e-6)


@all_cases
@EXAMPLES
@given(
    seed=SEEDS, kind=st.sampled_from(["normal", "ties"]), junk=st.sampled_from([0.0, 50.0, -1e7, 1e30, float("nan")])
)
def test_padding_never_changes_an_answer(case, seed, kind, junk):
    potentials = case.draw(seed, kind)
    scores = potentials.single.clone()
    for row, length in enumerate(potentials.lengths.tolist()):
        real = case.embed(torch.ones(1, *case.shape(length)), scores)[0]
        scores[row] = torch.where(real > 0, scores[row], junk)
    together = decode(case.structure, Potentials(scores, potentials.lengths))
    for row, length in enumerate(potentials.lengths.tolist()):
        box = tuple(slice(n) for n in case.shape(length))
        alone = decode(case.structure, Potentials(scores[row][box].unsqueeze(0)))
        assert torch.equal(together[row], case.embed(alone, scores)[0])


@all_cases
@pytest.mark.parametrize("level", [0.0, 1e5, -1e9, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_potentials_give_one_output(case, level, dtype):
    lengths = torch.arange(case.shortest, case.longest + 1)
    potentials = Potentials(torch.full((len(lengths), *case.shape(case.longest)), level, dtype=dtype), lengths)
    labels = decode(case.structure, potentials)
    for row in range(len(lengths)):
        assert is_among(labels[row], case.all_outputs(potentials, row))
    assert torch.equal(labels, decode(case.structure, potentials))


@all_cases
@EXAMPLES
@given(seed=SEEDS, size=st.sampled_from([1e3, 1e5, 1e7, 1e15]), shift=st.sampled_from([-1.0, 0.0, 1.0]))
def test_large_potentials_stay_clear_of_the_sentinels(case, seed, size, shift):
    potentials = case.draw(seed)
    large = (potentials.single + 5 * shift) * size
    labels = decode(case.structure, Potentials(large, potentials.lengths))
    for row in range(len(labels)):
        outputs = case.all_outputs(potentials, row)
        assert is_among(labels[row], outputs)
        scores = scores_of(outputs, large[row])
        value = scores_of(labels[row : row + 1], large[row])[0]
        torch.testing.assert_close(value, scores.max(), atol=1e-10 * size, rtol=0)


def test_semi_markov_keeps_long_segments_beside_a_short_example():
    """torch-struct's lengths lose them: all segments beyond the shortest example's end have length 1."""
    scores = torch.zeros(2, 6, 4, 2, 2)
    scores[:, :, 3] = 10.0
    lengths = torch.tensor([7, 3])
    theirs = torch_struct.SemiMarkovCRF(scores.clone(), lengths=lengths).argmax
    assert float((theirs * scores)[0].sum()) < 20.0  # fixed in torch-struct? then _bridge_padding can go
    ours = decode(TorchStruct(torch_struct.SemiMarkovCRF), Potentials(scores, lengths))
    assert float((ours * scores)[0].sum()) == 20.0


def token_hamming(target: Tensor) -> tuple[Tensor, Tensor]:
    """Wrong tokens of a linear chain, divided by their number; the constant counts, delta takes back."""
    real = target.sum((2, 3))  # [B, N-1]
    first = target[:, 0].sum(1)  # [B, C], indicator of the state at 0
    right = target.sum(3, keepdim=True).expand_as(target).clone()  # 1 where the next state is the target's
    right[:, 0] += first.unsqueeze(1)
    tokens = real.sum(1) + 1
    return -right / tokens.view(-1, 1, 1, 1), torch.ones_like(tokens)


def edges_of(labels: Tensor, states: int) -> Tensor:
    events = torch.zeros(len(labels), labels.shape[1] - 1, states, states, dtype=torch.float64)
    for row, n in itertools.product(range(len(labels)), range(labels.shape[1] - 1)):
        if labels[row, n + 1] >= 0:
            events[row, n, labels[row, n + 1], labels[row, n]] = 1
    return events


@all_cases
@EXAMPLES
@given(seed=SEEDS, weight=st.sampled_from([0.0, 0.3, 1.0, 7.0]), normalize=st.booleans())
def test_loss_counts_the_missing_parts(case, seed, weight, normalize):
    structure = TorchStruct(case.structure.distribution, weight=weight, normalize=normalize, **case.structure.arguments)
    potentials = case.draw(seed)
    labeling = decode(structure, potentials)
    target = decode(structure, Potentials(-potentials.single, potentials.lengths))
    target = structure.check_target(target, potentials)
    loss = structure.loss(labeling, target)
    missing = ((labeling == 1) & (target == 0)).flatten(1).sum(1).to(torch.float64)
    count = (target == 1).flatten(1).sum(1) if normalize else 1
    torch.testing.assert_close(loss, weight * missing / count)
    delta, constant = structure.loss_potentials(target)
    assert delta.shape == potentials.single.shape
    torch.testing.assert_close(inner({"y": structure.parts(labeling)}, {"y": delta}) + constant, loss)
    assert torch.equal(structure.loss(target, target), torch.zeros(len(target), dtype=torch.float64))


@all_cases
@EXAMPLES
@given(seed=SEEDS, zero=st.booleans())
def test_augmented_argmax_is_the_best_of_all_outputs(case, seed, zero):
    potentials = case.draw(seed)
    target = case.structure.check_target(decode(case.structure, case.draw(seed)), potentials)
    scores = potentials.single * (0.0 if zero else -1.0)
    corner = find_corner(case.structure, Potentials(scores, potentials.lengths), target)
    for row in range(len(scores)):
        outputs = case.all_outputs(potentials, row)
        assert is_among(corner.labeling[row], outputs)
        loss = case.structure.loss(outputs, target[row].expand_as(outputs))
        hinge = scores_of(outputs - target[row], scores[row]) + loss
        torch.testing.assert_close(corner.hinge[row], hinge.max(), atol=1e-12, rtol=0)


@all_cases
def test_every_output_is_a_target(case):
    structure = TorchStruct(case.structure.distribution, verify_targets=True, **case.structure.arguments)
    for length in range(case.shortest, min(case.longest, 4) + 1):
        outputs = case.outputs(length)
        potentials = Potentials(torch.zeros(outputs.shape, dtype=torch.float64))
        for dtype in (torch.bool, torch.int64, torch.float32):
            checked = structure.check_target(outputs.to(dtype), potentials)
            assert checked.dtype == torch.float64
            assert torch.equal(checked, outputs.double())


@all_cases
def test_an_event_with_one_part_more_or_less_is_no_output(case):
    outputs = case.outputs(min(case.longest, 3))
    for event in outputs[:20]:
        position = int(event.flatten().nonzero()[0])
        for where in (position, int((event.flatten() == 0).nonzero()[0])):
            changed = event.clone().flatten()
            changed[where] = 1 - changed[where]
            assert not bool(case.structure.is_output(changed.view_as(event).unsqueeze(0)).any())


def chain_batch() -> tuple[TorchStruct, Potentials, Tensor]:
    lengths = torch.tensor([4, 3])
    return (
        TorchStruct(torch_struct.LinearChainCRF),
        Potentials(torch.zeros(2, 3, 2, 2), lengths),
        edges_of(torch.tensor([[0, 1, 1, 0], [1, 0, 0, -1]]), 2),
    )


CHAIN = torch_struct.LinearChainCRF


def zeros(*shape, lengths=None):
    return Potentials(torch.zeros(shape), None if lengths is None else torch.tensor(lengths))


class Subset:
    """A distribution that is not torch-struct's: any parts of positive score, up to ``limit`` of each."""

    def __init__(self, log_potentials, lengths=None, limit=1):
        assert lengths is not None
        assert int(lengths.max()) == log_potentials.shape[1]
        self.scores, self.limit = log_potentials, limit

    @property
    def argmax(self):
        return (self.scores > 0) * self.limit


def structure_of(name):
    return TorchStruct(getattr(torch_struct, name))


WAY = {"padded_axes": (1,), "length_offset": 0}
HALVES = TorchStruct(Subset, **WAY, limit=0.5)


def with_target(make):
    structure, potentials, target = chain_batch()
    return structure.check_target(make(target), potentials)


def with_entry(place, value):
    target = chain_batch()[2].clone()
    target[place] = value
    return with_target(lambda _: target)


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        *(
            (lambda name=name, shape=shape: decode(structure_of(name), zeros(*shape)), ValueError, "potentials")
            for name, shape in (
                ("LinearChainCRF", (2, 3, 2, 3)),
                ("SemiMarkovCRF", (2, 3, 1, 2, 2)),
                ("DependencyCRF", (2, 3, 4)),
                ("TreeCRF", (2, 3, 3)),
            )
        ),
        (lambda: decode(chain_batch()[0], zeros(2, 3, 2, 2, lengths=[3, 5])), ValueError, "lengths"),
        (lambda: decode(chain_batch()[0], Potentials(torch.full((1, 3, 2, 2), torch.nan))), ValueError, "finite"),
        (lambda: TorchStruct(CHAIN).marginals(Potentials(torch.full((1, 3, 2, 2), 2e4))), ValueError, "potentials"),
        (lambda: decode(HALVES, Potentials(torch.ones(1, 2))), RuntimeError, "argmax"),
        (lambda: with_target(lambda target: target.tolist()), TypeError, "target"),
        (lambda: with_target(lambda target: target[:, :2]), ValueError, "target"),
        (lambda: with_entry((1, 0, 0, 0), 2.0), ValueError, "target"),
        (lambda: with_entry((1, 2, 1, 0), 1.0), ValueError, "target"),
        (lambda: with_entry(0, 0.0), ValueError, "target"),
        *(
            (lambda arguments=arguments: TorchStruct(*arguments[0], **arguments[1]), error, argument)
            for error, argument, *arguments in (
                (TypeError, "distribution", [CHAIN(torch.zeros(1, 2, 2, 2))], {}),
                (ValueError, "weight", [CHAIN], {"weight": torch.nan}),
                (ValueError, "loss_potentials", [CHAIN], {"loss_potentials": token_hamming, "normalize": True}),
                (ValueError, "padded_axes", [CHAIN], {"padded_axes": (1,), "length_offset": -1}),
                (ValueError, "padded_axes", [Subset], {}),
                *(
                    (TypeError, "distribution", [getattr(torch_struct, name)], WAY)
                    for name in ("AlignmentCRF", "HMM", "NonProjectiveDependencyCRF", "SentCFG", "StructDistribution")
                ),
                (TypeError, "multi_root", [torch_struct.DependencyCRF], {"multi_root": False}),
            )
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, error, argument):
    with pytest.raises(error, match=argument):
        call()


def test_targets_that_are_no_outputs_are_refused_where_asked():
    structure, potentials, target = chain_batch()
    target[0, 1] = torch.tensor([[1, 0], [0, 0]])  # 0 -> 0 after 0 -> 1
    structure.check_target(target, potentials)
    with pytest.raises(ValueError, match="target"):
        TorchStruct(CHAIN, verify_targets=True).check_target(target, potentials)
    trees, target = Potentials(torch.zeros(2, 3, 3), torch.tensor([3, 2])), torch.eye(3).repeat(2, 1, 1)
    with pytest.raises(ValueError, match="target"):
        TorchStruct(torch_struct.DependencyCRF).check_target(target, trees)
    target[1, 2, 2] = 0
    TorchStruct(torch_struct.DependencyCRF).check_target(target, trees)


def test_another_class_is_taken_with_its_convention():
    structure = TorchStruct(Subset, **WAY, limit=2)
    potentials = Potentials(torch.ones(2, 5), torch.tensor([1, 3]))
    labels = decode(structure, potentials)
    assert labels.tolist() == [[2, 0, 0, 0, 0], [2, 2, 2, 0, 0]]
    assert structure.loss(labels, torch.zeros(2, 5)).tolist() == [2.0, 6.0]
    assert torch.equal(structure.check_target(labels, potentials), labels)
    with pytest.raises(ValueError, match="target"):
        structure.check_target(-labels, potentials)
