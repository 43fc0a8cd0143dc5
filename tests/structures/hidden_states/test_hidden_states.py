import itertools
import math

import pytest
import torch
from cases.problems import examples, rng
from cases.random_potentials import draw
from cases.structure_cases import StructureTestCase
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import (
    Batch,
    BlockGap,
    Chain,
    DualState,
    HiddenStates,
    LinearChain,
    LinearMulticlass,
    Multiclass,
    Potentials,
    SlackRescaling,
    SoftmaxMargin,
    Solver,
    StructuredHinge,
    check,
    evaluate,
    solve,
)
from torchssvm.core.potentials import inner
from torchssvm.datasets import PaddedDataset
from torchssvm.deployment.files import describe, rebuild
from torchssvm.structures.chain import Transitions

SHOWS = [0, 1, 1]


class TestHiddenStates(StructureTestCase):
    """A chain of three states that show two labels."""

    no_values = (2, -1)

    def make_structure(self):
        return HiddenStates(Chain(3), SHOWS)

    def make_potentials(self, random, batch, integers, dtype):
        lengths = torch.randint(1, 4, (batch,), generator=random)
        longest = int(lengths.max())
        shapes = {"emission": (batch, longest, 3), "transition": (batch, 3, 3)}
        tensors = {name: draw(random, shape, integers, dtype) for name, shape in shapes.items()}
        return Potentials(tensors, lengths, ragged={"emission": 0})

    def random_target(self, structure, potentials, random):
        return torch.randint(0, 2, potentials["emission"].shape[:2], generator=random)

    def one(self, labeling, potentials, row):
        return super().one(getattr(labeling, "observed", labeling), potentials, row)

    def alone(self, labeling, potentials, row):
        return type(labeling)(*(StructureTestCase.one(self, t, potentials, row).unsqueeze(0) for t in labeling))

    def reference_score(self, potentials, labeling):
        score = sum(float(potentials["emission"][t, k]) for t, k in enumerate(labeling))
        return score + sum(float(potentials["transition"][a, b]) for a, b in itertools.pairwise(labeling))

    def reference_loss(self, structure, labeling, target):
        wrong = [SHOWS[int(state)] != int(label) for state, label in zip(labeling, target, strict=True)]
        return sum(wrong) / len(wrong)

    def count(self, structure, potentials, row):
        return 3 ** int(potentials.lengths[row])

    def bad_targets(self, potentials, target):
        for wrong, _ in super().bad_targets(potentials, target.observed):
            yield wrong, "target|lengths"
        yield target._replace(states=2 - 2 * target.observed.clamp(min=0)), "target.states"

    def test_devices(self, device):
        pytest.skip("decoding is that of the structure")

    @examples(20)
    @given(seed=st.integers(0, 2**31 - 1), batch=st.integers(1, 4), integers=st.booleans())
    def test_complete_finds_the_best_states_that_show_the_target(self, seed, batch, integers):
        structure, potentials, target = self.setting(seed, batch, integers)
        completed = structure.complete(potentials, target)
        assert torch.equal(completed.observed, target.observed)
        assert torch.equal(structure.observe(completed.states), target.observed)
        assert structure.loss(completed, target).tolist() == structure.loss(target, completed).tolist() == [0.0] * batch
        best = torch.full((batch,), -torch.inf, dtype=torch.float64)
        for labeling in structure.enumerate(potentials):
            fits = (structure.observe(labeling) == target.observed).all(1)
            score = inner(structure.parts(labeling), potentials.tensors)
            best = torch.maximum(best, score.masked_fill(~fits, -math.inf))
        torch.testing.assert_close(inner(structure.parts(completed), potentials.tensors), best)


@pytest.mark.parametrize("chain", [False, True])
def test_check_takes_it(chain):
    random = rng(0)
    if chain:
        head, structure = LinearChain(4, 3), HiddenStates(Chain(3), SHOWS)
        batch = Batch(
            torch.randn(2, 3, 4), torch.tensor([[0, 1, 1], [1, 0, -1]]), torch.arange(2), torch.tensor([3, 2])
        )
    else:
        head, structure = LinearMulticlass(4, 3), HiddenStates(Multiclass(3), SHOWS)
        batch = Batch(torch.randn(5, 4, generator=random), torch.tensor([0, 1, 1, 0, 1]), torch.arange(5))
    check(head, structure, batch).raise_if_wrong()
    assert rebuild(describe(structure)).same_as(structure)


@pytest.mark.parametrize(
    ("structure", "shows", "error", "argument"),
    [
        ("chain", SHOWS, TypeError, "structure"),
        *((Chain(3), wrong, ValueError, "shows") for wrong in ([0, 2, 2], [-1, 0, 1], [0.0, 1.0, 1.0], [], 3)),
    ],
)
def test_wrong_arguments_are_refused(structure, shows, error, argument):
    with pytest.raises(error, match=argument):
        HiddenStates(structure, shows)


@examples(30)
@given(st.integers(0, 2**31 - 1))
def test_labels_whose_first_states_are_forbidden_are_taken_where_other_states_show_them(seed):
    random = rng(seed)
    pairs = (torch.rand(3, 3, generator=random) < 0.5) | torch.eye(3, dtype=torch.bool)
    first = torch.tensor([True, False, True])
    structure = HiddenStates(Chain(3, transitions=Transitions(pairs, first=first)), SHOWS)
    potentials = Potentials(
        {"emission": torch.randn(1, 3, 3, generator=random), "transition": torch.randn(1, 3, 3, generator=random)}
    )
    labels = torch.randint(0, 2, (1, 3), generator=random)
    shown = [o for o in structure.enumerate(potentials) if torch.equal(structure.observe(o), labels)]
    if shown:
        checked = structure.check_target(labels, potentials)
        assert any(torch.equal(checked.states, o) for o in shown)
        assert any(torch.equal(structure.complete(potentials, checked).states, o) for o in shown)
    else:
        with pytest.raises(ValueError, match="labels of rows"):
            structure.check_target(labels, potentials)


@st.composite
def unknown(draw):
    """Chains whose labels are known in part, what their states show, and the labels that each token may have."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    shows = draw(st.sampled_from([None, [0, 1, 1], [0, 0, 1]]))
    lengths = torch.randint(1, 4, (3,), generator=generator)
    tensors = {
        "emission": torch.randn(3, 3, 3, generator=generator, dtype=torch.float64),
        "transition": torch.randn(3, 3, 3, generator=generator, dtype=torch.float64),
    }
    target = torch.randint(0, 3 if shows is None else 2, (3, 3), generator=generator)
    target[torch.rand(3, 3, generator=generator) < 0.5] = -100
    allowed = [[{0, 1, 2} if label == -100 else {label} for label in row] for row in target.tolist()]
    if draw(st.booleans()):
        target = torch.rand(3, 3, 3 if shows is None else 2, generator=generator) < 0.5
        target[..., 0] |= ~target.any(2)
        allowed = [[set(its.nonzero().flatten().tolist()) for its in row] for row in target]
    return HiddenStates(Chain(3, normalize=draw(st.booleans())), shows), Potentials(tensors, lengths), target, allowed


@pytest.mark.slow
@examples(40)
@given(unknown(), st.sampled_from([1.0, 0.3]))
def test_unknown_labels_are_summed_over(problem, temperature):
    structure, potentials, target, allowed = problem
    checked = structure.check_target(target, potentials)
    assert not bool(structure.loss(structure.complete(potentials, checked), checked).any())
    total, likelihood = 0.0, []
    best = structure.complete(potentials, checked)
    for row, length in enumerate(potentials.lengths.tolist()):
        emission, transition = potentials["emission"][row], potentials["transition"][row]
        every, right, free, scores = [], [], [], {}
        for states in itertools.product(range(3), repeat=length):
            score = sum(float(emission[t, k]) for t, k in enumerate(states))
            score += sum(float(transition[a, b]) for a, b in itertools.pairwise(states))
            wrong = sum(int(structure.shows[k]) not in allowed[row][t] for t, k in enumerate(states))
            every.append((score + wrong / (length if structure.structure.normalize else 1)) / temperature)
            free.append(score)
            if not wrong:
                right.append(score / temperature)
                scores[states] = score
        likelihood.append(torch.tensor(list(scores.values())).logsumexp(0) - torch.tensor(free).logsumexp(0))
        assert scores[tuple(best.states[row, :length].tolist())] == pytest.approx(max(scores.values()))
        total += temperature * float(torch.tensor(every).logsumexp(0) - torch.tensor(right).logsumexp(0)) / 3
    torch.testing.assert_close(structure.log_prob(potentials, target).float(), torch.stack(likelihood))
    scores = {name: tensor.requires_grad_() for name, tensor in potentials.tensors.items()}
    loss = SoftmaxMargin(structure, temperature)(potentials.replace(scores), target)
    assert float(loss.detach()) == pytest.approx(total, abs=1e-5)

    def smooth(emission, transition):
        return SoftmaxMargin(structure, temperature)(
            potentials.replace({"emission": emission, "transition": transition}), target
        )

    assert torch.autograd.gradcheck(smooth, tuple(scores.values()))


CHAINS, CLASSES = Potentials({"emission": torch.zeros(1, 2, 2), "transition": torch.zeros(1, 2, 2)}), torch.zeros(1, 2)
SEVERAL = torch.ones(1, 2, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    ("structure", "target", "potentials"),
    [
        (Chain(2), torch.tensor([[0, -100]]), CHAINS),
        (HiddenStates(Chain(2)), torch.tensor([[0, -5]]), CHAINS),
        (HiddenStates(Chain(2)), torch.ones(1, 2, 3, dtype=torch.bool), CHAINS),
        (HiddenStates(Chain(2)), torch.tensor([[[True, False], [False, False]]]), CHAINS),
        (Chain(2), SEVERAL, CHAINS),
        (Multiclass(2), SEVERAL[0, :1], Potentials(CLASSES)),
    ],
)
def test_unknown_labels_and_sets_that_do_not_fit_are_refused(structure, target, potentials):
    with pytest.raises(ValueError, match="target"):
        structure.check_target(target, potentials)


def test_hidden_parts_leave_out_forbidden_states():
    structure = HiddenStates(Chain(3), SHOWS)
    emission = torch.tensor([[[0.0, 5.0, 1.0], [0.0, 1.0, 2.0]]])
    emission[0, 0, 1] = -torch.inf
    potentials = Potentials({"emission": emission, "transition": torch.zeros(1, 3, 3)})
    target = structure.check_target(torch.tensor([[1, 1]]), potentials)
    assert structure.complete(potentials, target).states.tolist() == [[2, 2]]
    emission[0, 0, 2] = -torch.inf
    with pytest.raises(ValueError, match=r"labels of rows \[0\]"):
        structure.complete(potentials, target)


def test_bcfw_refuses_labels_that_several_states_show_and_the_hinge_takes_the_best():
    """BCFW would train for the first state, silently."""
    x, structure = torch.randn(2, 3, 4, generator=rng(0)), HiddenStates(Chain(3))
    y = torch.tensor([[0, 1, 2], [1, -100, 0]])
    allowed = (y == -100).unsqueeze(2) | (y.unsqueeze(2) == torch.arange(3))
    head = LinearChain(4, 3)
    with torch.no_grad():
        for weights in head.parameters():
            weights.normal_(generator=rng(1))
        head.bias[2] += 50.0
    completed = structure.complete(head(x), structure.check_target(y, head(x)))
    hinge = StructuredHinge(structure)
    for target in (y, allowed):
        data = PaddedDataset(x, target)
        with pytest.raises(ValueError, match=r"a label of examples \[1\]"):
            solve(LinearChain(4, 3), data, 0.1, structure=structure, solver=Solver(batch_size=2), progress=False)
        assert torch.equal(hinge(head(x), target), hinge(head(x), completed))
    first = structure.check_target(y, head(x))
    assert float(hinge(head(x), y)) < float(hinge(head(x), first))
    trained = LinearChain(4, 3)
    dual = DualState.for_head(trained, 2, 0.1, structure=structure)
    assert float(BlockGap(dual)(trained(x), completed, torch.arange(2)).detach()) > 0.0
    short = torch.tensor([[0, 1, 2], [1, 0, -100]])  # -100 beyond a length is padding
    potentials = trained(x, torch.tensor([3, 2]))
    for target in (short, short.masked_fill(short < 0, 0)):
        assert float(BlockGap(dual)(potentials, target, torch.arange(2)).detach()) > 0.0
    with pytest.raises(TypeError, match="structure"):
        SlackRescaling(structure)


def test_evaluate_counts_no_states_of_which_data_show_labels_alone():
    head = LinearChain(3, 4)
    structure = HiddenStates(Chain(4), shows=torch.tensor([0, 0, 1, 1]))
    target = torch.tensor([[0, 1, -1], [1, 0, 1]])
    batch = Batch(torch.zeros(2, 3, 3), target, torch.arange(2), torch.tensor([2, 3]))
    report = evaluate(head, structure, [batch])
    assert (report.token_error, report.example_error, report.num_tokens) == (None, None, None)
    assert report.loss == pytest.approx((1 / 2 + 2 / 3) / 2)
