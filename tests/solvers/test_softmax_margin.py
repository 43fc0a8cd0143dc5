"""The softmax-margin against sums over all outputs, and its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from cases.problems import PROBLEMS, Problem, examples, flat, reference, with_weights
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import (
    Chain,
    Multiclass,
    PerturbedFenchelYoung,
    Potentials,
    Ranking,
    SoftmaxMargin,
    StructuredHinge,
    Tree,
)
from torchssvm.core.batch import apply_head
from torchssvm.structures import SlackRescaling

SEEDS = st.integers(0, 2**31 - 1)
TEMPERATURES = st.sampled_from([0.3, 1.0, 2.5])


def value_of(problem: Problem, rows: list[int], temperature: float = 1.0) -> torch.Tensor:
    batch = problem.batch(rows)
    return SoftmaxMargin(problem.structure, temperature)(apply_head(problem.head, batch), batch.y)


@examples(25)
@given(
    seed=SEEDS,
    kind=st.sampled_from(sorted(PROBLEMS)),
    temperature=TEMPERATURES,
    shared=st.booleans(),
    ragged=st.booleans(),
)
def test_it_is_the_mean_of_the_definition_over_all_outputs(seed, kind, temperature, shared, ragged):
    options = {"shared": shared, "ragged": ragged} if kind == "chain" else {}
    problem = with_weights(kind, seed, **options)
    truth, w = reference(problem), flat(problem.head.parameters()).numpy()
    for rows in ([0], [1, 3, 4], [2, 2], list(range(problem.n))):
        sums = [torch.from_numpy((truth.losses[i] + truth.changes[i] @ w) / temperature).logsumexp(0) for i in rows]
        expected = temperature * sum(map(float, sums)) / len(rows)
        result = value_of(problem, rows, temperature)
        assert result.dtype == torch.float64
        assert float(result.detach()) == pytest.approx(expected, abs=1e-10)


@examples(10)
@given(seed=SEEDS, kind=st.sampled_from(sorted(PROBLEMS)), temperature=TEMPERATURES)
def test_a_batch_is_the_mean_of_its_examples_whatever_the_padding(seed, kind, temperature):
    problem = with_weights(kind, seed)
    alone = [float(value_of(problem, [i], temperature).detach()) for i in range(problem.n)]
    whole = value_of(problem, list(range(problem.n)), temperature)
    assert float(whole.detach()) == pytest.approx(sum(alone) / problem.n, abs=1e-12)


@examples(6)
@given(seed=SEEDS, kind=st.sampled_from(sorted(PROBLEMS)), temperature=TEMPERATURES)
def test_its_gradient_in_features_and_weights(seed, kind, temperature):
    problem = with_weights(kind, seed)
    batch, loss = problem.batch([0, 2, 3]), SoftmaxMargin(problem.structure, temperature)
    names, weights = zip(*problem.head.named_parameters(), strict=True)

    def value(x, *given):
        lengths = () if batch.lengths is None else (batch.lengths,)
        result = torch.func.functional_call(problem.head, dict(zip(names, given, strict=True)), (x, *lengths))
        return loss(result, batch.y)

    x = batch.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(value, (x, *[w.detach().clone().requires_grad_() for w in weights]))


def test_it_tends_to_the_hinge_from_above():
    problem = with_weights("chain", 3)
    batch = problem.batch(range(problem.n))
    hinge = float(StructuredHinge(problem.structure)(apply_head(problem.head, batch), batch.y).detach())
    values = [float(value_of(problem, list(range(problem.n)), t).detach()) for t in (1.0, 0.1, 0.01, 1e-4)]
    assert values == sorted(values, reverse=True)
    assert hinge <= values[-1] == pytest.approx(hinge, abs=1e-3)


def test_without_a_loss_it_is_the_likelihood_of_a_random_field():
    problem = with_weights("chain", 5)
    batch = problem.batch(range(problem.n))
    potentials = apply_head(problem.head, batch)
    free = Chain(2, class_weight=torch.zeros(2))
    target_score = sum(
        (problem.structure.parts(batch.y)[name].to(tensor.dtype) * tensor).flatten(1).sum(1)
        for name, tensor in potentials.tensors.items()
    )
    expected = float((problem.structure.marginals(potentials.detach()).log_partition - target_score).mean().detach())
    for loss in (SoftmaxMargin(free), SoftmaxMargin(problem.structure, cost=False)):
        assert float(loss(potentials, batch.y).detach()) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_likelihood_has_the_gradient_of_its_values(kind, temperature):
    problem = with_weights(kind, 4)
    batch, loss = problem.batch([0, 2, 3]), SoftmaxMargin(problem.structure, temperature, cost=False)
    lengths = () if batch.lengths is None else (batch.lengths,)
    x = batch.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(problem.head(x, *lengths), batch.y), x)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(loss(problem.head(x, *lengths), batch.y), x, create_graph=True)[0].sum().backward()


def test_forbidden_outputs_have_no_probability():
    scores = torch.tensor([[[0.0, -torch.inf], [0.0, 0.0]]], requires_grad=True)
    given = Potentials({"emission": scores, "transition": torch.zeros(1, 2, 2)})
    possible, forbidden = torch.tensor([[0, 1]]), torch.tensor([[1, 1]])
    value = Chain(2).log_prob(given, possible)
    value.sum().backward()
    assert float(value.detach()) == pytest.approx(-math.log(2.0))
    torch.testing.assert_close(scores.grad, torch.tensor([[[0.0, 0.0], [-0.5, 0.5]]]))
    assert float(Chain(2).log_prob(given, forbidden).detach()) == -torch.inf
    assert float(Chain(2).entropy(given).detach()) == pytest.approx(math.log(2.0))
    assert bool((Chain(2).sample(given, 20)[:, :, 0] == 0).all())
    nothing = given.replace({"emission": torch.full((1, 2, 2), -torch.inf), "transition": torch.zeros(1, 2, 2)})
    with pytest.raises(ValueError, match="forbid every output"):
        Chain(2).sample(nothing)


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda: SoftmaxMargin(Ranking()), ValueError, "marginals"),
        (lambda: SoftmaxMargin(Chain(3), cost="no"), TypeError, "cost"),
        (lambda: SoftmaxMargin(SlackRescaling(Chain(3))), ValueError, "marginals"),
        (lambda: SoftmaxMargin(Chain(3), 0.0), ValueError, "temperature"),
        (lambda: SoftmaxMargin(Chain(3), float("inf")), ValueError, "temperature"),
        (lambda: SoftmaxMargin(Chain), TypeError, "structure"),
        (lambda: SoftmaxMargin(Multiclass(3))(torch.zeros(2, 3), torch.tensor([0, 9])), ValueError, "label"),
        (lambda: SoftmaxMargin(Multiclass(3))(torch.full((1, 3), torch.nan), torch.tensor([0])), ValueError, "finite"),
        (lambda: SoftmaxMargin(Multiclass(3))(torch.zeros(0, 3), torch.zeros(0).long()), ValueError, "potentials"),
        (lambda: StructuredHinge(Multiclass(3))(torch.zeros(0, 3), torch.zeros(0).long()), ValueError, "potentials"),
    ],
)
def test_doors(call, error, argument):
    with pytest.raises(error, match=argument):
        call()


def test_forbidden_targets_are_refused():
    scores = torch.zeros(1, 3, 2)
    scores[0, 1, 0] = -torch.inf
    given = Potentials({"emission": scores, "transition": torch.zeros(1, 2, 2)})
    for loss in (SoftmaxMargin(Chain(2)), SoftmaxMargin(Chain(2), cost=False), PerturbedFenchelYoung(Chain(2))):
        with pytest.raises(ValueError, match="not finite"):
            loss(given, torch.zeros(1, 3, dtype=torch.int64))


@pytest.mark.parametrize("structure", [Chain(3), Tree(3, [-1, 0, 0])])
def test_batches_without_examples_have_no_likelihood_and_no_sample(structure):
    names = ("emission", "transition") if isinstance(structure, Chain) else ("node", "edge")
    given = Potentials(dict(zip(names, (torch.zeros(0, 3, 3), torch.zeros(0, 3, 3)), strict=True)))
    assert structure.log_prob(given, torch.zeros(0, 3, dtype=torch.int64)).shape == (0,)
    assert structure.entropy(given).shape == (0,)
    assert structure.sample(given, 2).shape == (0, 2, 3)


def test_the_gradient_of_an_entropy_is_an_error_and_not_zero():
    scores = torch.zeros(2, 3, 3, requires_grad=True)
    given = Potentials({"emission": scores, "transition": torch.zeros(2, 3, 3)})
    structure, target = Chain(3), torch.zeros(2, 3, dtype=torch.int64)
    entropy = structure.entropy(given)
    assert entropy.tolist() == pytest.approx([3.0 * math.log(3.0)] * 2)  # can be reported
    with pytest.raises(RuntimeError, match="entropy has no gradient"):
        (structure.log_prob(given, target) + 0.1 * entropy).sum().backward()
    assert scores.grad is None
    with torch.no_grad():
        assert not structure.entropy(given).requires_grad
    detached = Potentials({name: tensor.detach() for name, tensor in given.tensors.items()})
    assert not structure.entropy(detached).requires_grad
