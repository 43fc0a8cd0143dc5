"""The two losses against brute force, and their gradients against finite differences."""

from __future__ import annotations

import pytest
import torch
from cases.problems import PROBLEMS, Training, examples, flat, multiclass, reference, rng, steps_of, with_weights
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import BlockGap, MeanParts, SoftmaxMargin, StructuredHinge, Weights
from torchssvm.core.batch import apply_head

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from(sorted(PROBLEMS))
STORAGES = st.sampled_from([MeanParts, Weights])


def trained(kind: str, seed: int, storage=MeanParts, **options) -> Training:
    problem = PROBLEMS[kind](seed, **options)
    return problem.train(storage=storage()).run([[0, 1], [2], [3, 1], [4]])


def gradient(training: Training) -> torch.Tensor:
    return flat(torch.zeros_like(p) if p.grad is None else p.grad for p in training.head.parameters())


@examples(20)
@given(seed=SEEDS, kind=KINDS, storage=STORAGES)
def test_the_value_is_the_sum_of_the_block_gaps(seed, kind, storage):
    """g_i = H_i(w)/n - (l_i - lam <w, w_i>): what block i adds to P - D at w = w(alpha)."""
    training = trained(kind, seed, storage)
    problem, dual = training.problem, training.dual
    truth = reference(problem)
    hinges = truth.hinges(training.weights())
    gaps = []
    for i in range(problem.n):
        batch = problem.batch([i])
        potentials = apply_head(training.head, batch)
        stored = flat(dual.storage.contribution(dual.storage.gather(batch.index, potentials, batch.y), potentials))
        gaps.append(hinges[i] / problem.n - float(dual.loss[i]) + problem.lam * float(stored @ training.weights()))
        assert float(training.loss(potentials, batch.y, batch.index).detach()) == pytest.approx(gaps[i], abs=1e-12)
        assert gaps[i] >= -1e-12
    for rows in ([0, 1, 2], [4, 2], list(range(problem.n)), [3, 3, 0, 3]):
        value = training.forward(problem.batch(rows))
        assert value.dtype == torch.float64
        assert value.shape == ()
        assert float(value.detach()) == pytest.approx(sum(gaps[i] for i in set(rows)), abs=1e-12)
    assert sum(gaps) == pytest.approx(truth.primal(training.weights()) - dual.value(), abs=1e-10)


@examples(20)
@given(seed=SEEDS, kind=KINDS, storage=STORAGES, sweeps=st.sampled_from([0, 1, 10]), adjoint=st.booleans())
def test_the_gradient_is_that_of_the_weighted_directions(seed, kind, storage, sweeps, adjoint):
    """Finite differences of sum_i gamma_i <Delta_i, theta_i(w)>/n with Delta and gamma fixed."""
    training = trained(kind, seed, storage, adjoint=adjoint)
    training.loss = BlockGap(training.dual, block_steps=steps_of(sweeps))
    training.optim.zero_grad()
    rows = [3, 0, 2]
    batch = training.problem.batch(rows)
    training.backward(rows)
    (proposal,) = training.dual.mailbox.waiting
    parameters = training.dual.parameters
    stored = [p.detach().clone() for p in parameters]
    if storage is Weights:  # the block's part of Delta_i is a vector of weights there
        blocks = [b[batch.index] for b in training.dual.storage.state_dict()["blocks"]]

    def value() -> float:
        with torch.no_grad():
            potentials = apply_head(training.head, batch)
            total = 0.0
            for name, tensor in potentials.tensors.items():
                products = (proposal.parts[name] * tensor).flatten(1).sum(1)
                total += float(proposal.gammas @ products) / training.problem.n
            if storage is Weights:
                for block, p in zip(blocks, parameters, strict=True):
                    total += training.dual.lam * float(proposal.gammas @ (block * p).flatten(1).sum(1))
            return total

    result = gradient(training)
    random = rng(seed)
    for _ in range(3):
        directions = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in parameters]
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                for p, h, d in zip(parameters, stored, directions, strict=True):
                    p.copy_(h + sign * d)
            values.append(value())
        assert (values[0] - values[1]) / 2 == pytest.approx(float(result @ flat(directions)), abs=1e-10)
    assert result.abs().max() > 0


@pytest.mark.parametrize("adjoint", [True, False])
def test_retained_graphs_give_the_same_gradient_again(adjoint):
    training = trained("chain", 3, adjoint=adjoint)
    training.optim.zero_grad()
    value = training.forward(training.problem.batch([0, 2]))
    value.backward(retain_graph=True)
    once = gradient(training)
    value.backward()
    torch.testing.assert_close(gradient(training), 2 * once)
    twin = trained("chain", 3, adjoint=adjoint)
    twin.step([0, 2])
    training.optim.step()  # two proposals of the same blocks: still one feasible step
    torch.testing.assert_close(training.weights(), twin.weights())
    torch.testing.assert_close(training.dual.loss, twin.dual.loss)


def test_features_get_a_gradient_too():
    """The block gap is a function of the potentials: what is below them receives the chain rule."""
    problem = multiclass(2)
    training = problem.train().run([[0], [1], [2]])
    x = problem.x[:1].clone().requires_grad_()
    index = torch.tensor([0])
    training.loss(training.head(x), problem.y[:1], index).backward()
    potentials = training.head(x)
    (proposal,) = training.dual.mailbox.waiting
    expected = proposal.parts["potentials"] @ training.head.weight / problem.n
    torch.testing.assert_close(x.grad, expected.detach())
    assert potentials.requires_grad


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_bare_tensors_and_mappings_are_potentials_too(kind):
    training = trained(kind, 4)
    problem = training.problem
    batch = problem.batch([0]) if kind == "multiclass" else problem.batch([0, 0])
    potentials = apply_head(training.head, batch)
    whole = training.loss(potentials, batch.y, batch.index)
    bare = potentials.single if kind == "multiclass" else dict(potentials.tensors)
    if kind == "chain":  # without lengths, so only for an example of the full length
        assert int(batch.lengths.min()) == batch.x.shape[1]
        structured = StructuredHinge(problem.structure)
        assert torch.equal(structured(bare, batch.y), structured(potentials, batch.y))
    else:
        assert torch.equal(training.loss(bare, batch.y, batch.index), whole)


@examples(20)
@given(seed=SEEDS, kind=KINDS)
def test_the_hinge_is_the_mean_of_the_definition(seed, kind):
    problem = with_weights(kind, seed)
    truth, hinge = reference(problem), StructuredHinge(problem.structure)
    w = flat(problem.head.parameters())
    expected = truth.hinges(w)
    for rows in ([0], [1, 3, 4], [2, 2], list(range(problem.n))):
        batch = problem.batch(rows)
        value = hinge(apply_head(problem.head, batch), batch.y)
        assert value.dtype == torch.float64
        assert float(value.detach()) == pytest.approx(expected[rows].mean(), abs=1e-10)


@examples(20)
@given(seed=SEEDS, kind=KINDS)
def test_the_gradient_of_the_hinge(seed, kind):
    problem = with_weights(kind, seed)
    truth, hinge = reference(problem), StructuredHinge(problem.structure)
    w = flat(problem.head.parameters()).numpy()
    rows = [0, 2, 3]
    batch = problem.batch(rows)
    x = batch.x.clone().requires_grad_()
    hinge(apply_head(problem.head, batch.replace(x=x)), batch.y).backward()
    result = torch.cat([p.grad.flatten() for p in problem.head.parameters()]).numpy()
    best = [truth.changes[i][(truth.losses[i] + truth.changes[i] @ w).argmax()] for i in rows]
    assert result == pytest.approx(sum(best) / len(rows), abs=1e-10)
    direction = torch.randn(x.shape, generator=rng(seed), dtype=torch.float64)
    values = []
    for sign in (1, -1):
        moved = batch.replace(x=batch.x + sign * 1e-7 * direction)
        values.append(float(hinge(apply_head(problem.head, moved), batch.y).detach()))
    assert (values[0] - values[1]) / 2e-7 == pytest.approx(float((x.grad * direction).sum()), abs=1e-4)


@pytest.mark.parametrize("kind", [StructuredHinge, SoftmaxMargin])
def test_features_and_head_train_by_ordinary_optimizers_in_the_dtype_of_the_potentials(kind):
    torch.manual_seed(0)
    problem = multiclass(3, n=30, features=5, dtype=torch.float32)
    features, loss = torch.nn.Linear(5, 5), kind(problem.structure)
    optim = torch.optim.SGD([*features.parameters(), *problem.head.parameters()], lr=0.3)
    values = []
    for _ in range(60):
        optim.zero_grad()
        value = loss(problem.head(features(problem.x)), problem.y)
        value.backward()
        optim.step()
        values.append(float(value.detach()))
    assert value.dtype == torch.float32
    assert values[-1] < 0.8 * values[0]
    assert kind is SoftmaxMargin or values[0] == 1.0
