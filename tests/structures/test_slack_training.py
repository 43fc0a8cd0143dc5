"""Training with slack rescaling: the optimum of a QP, exact gaps, every storage, `check`, reports and Lightning."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from cases.problem_data import Items
from cases.problems import PROBLEMS, Problem, Reference, assert_same, chain, examples, flat, multiclass, reference, rng
from cases.top_label_sets import LabelSets, label_sets
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import (
    BCFW,
    BlockGap,
    CacheOracle,
    Corrective,
    DualState,
    FrankWolfe,
    GapBatchSampler,
    Labelings,
    MeanParts,
    Pairwise,
    Permutation,
    SlackRescaling,
    StructuredHinge,
    Weights,
    certify,
    check,
)
from torchssvm.core.batch import apply_head
from torchssvm.path import start_at_largest_lam
from torchssvm.steps import Away, Hybrid, MaxOracle
from torchssvm.structures.slack_rescaling import BruteForceSearch

SEEDS = st.integers(0, 2**31 - 1)
STORAGES = {"mean_parts": MeanParts, "weights": Weights}
ROWS = ([0], [1, 2], [3], [0, 3, 2], [1], [2, 2, 0])


def rescaled(problem: Problem, oracle=None) -> tuple[Problem, Reference]:
    """The problem with slack rescaling, and its explicit form: the loss times features and parts."""
    truth = reference(problem)
    for name in ("changes", "parts"):
        pairs = zip(truth.losses, getattr(truth, name), strict=True)
        setattr(truth, name, [losses[:, None] * rows for losses, rows in pairs])
    problem.head.structure = SlackRescaling(problem.head.structure, oracle)
    return problem, truth


def uneven(seed: int, **options) -> Problem:
    """Classes that cost 1 to 4: with the zero-one loss both kinds of rescaling are the same."""
    cost = torch.randint(1, 5, (3, 3), generator=rng(seed)).double().fill_diagonal_(0)
    return multiclass(seed, cost=cost, **options)


@pytest.mark.parametrize(
    ("storage", "batch_size", "adjoint", "make", "lam", "steps"),
    [
        ("mean_parts", 1, True, chain, 2.0, 120),
        ("weights", 3, True, uneven, 1.0, 240),
        ("weights", 1, False, chain, 2.0, 120),
    ],
)
def test_to_the_optimum(storage, batch_size, adjoint, make, lam, steps):
    margin = reference(make(3, n=4, lam=lam)).optimum()
    problem, truth = rescaled(make(3, n=4, lam=lam, adjoint=adjoint))
    optimum = truth.optimum()
    assert abs(optimum - margin) > 0.03  # another problem than margin rescaling
    assert truth.primal(np.zeros_like(truth.changes[0][0])) - optimum > 0.1  # and not solved from the start
    training = problem.train(storage=STORAGES[storage]())
    sampler = GapBatchSampler(training.dual, batch_size=batch_size, order=Permutation())
    while training.dual.steps < steps:
        for rows in sampler:
            training.step(rows)
        if training.dual.steps in (4, 40):
            certificate = certify(training.head, training.dual, problem.everything(2))
            assert certificate.dual <= optimum + 2e-7
            assert certificate.primal >= optimum - 1e-7
    certificate = certify(training.head, training.dual, problem.everything(2))
    assert certificate.exact
    assert certificate.dual == pytest.approx(optimum, abs=1e-3)
    assert 0 <= certificate.gap < 3e-3
    assert certificate.primal == pytest.approx(truth.primal(training.weights()), abs=1e-9)


DIRECTIONS = [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()]


@pytest.mark.parametrize("place", range(5))
def test_active_sets_and_caches(place):
    """Cached labelings are scored with their losses: a small capacity, so that some are merged into the rest."""
    make, lam = [(chain, 2.0), (uneven, 1.0)][place % 2]
    direction, oracle = DIRECTIONS[place], MaxOracle() if place == 2 else CacheOracle()
    problem, truth = rescaled(make(3, n=4, lam=lam))
    training = problem.train(storage=Labelings(capacity=3))
    training.loss = BlockGap(training.dual, direction, oracle=oracle)
    value, optimum = 0.0, truth.optimum()
    for k in range(15):
        for i in range(4):
            training.step([i])
            assert training.dual.value() >= value - 1e-10
            value = training.dual.value()
        if k % 5 == 0:
            certify(training.head, training.dual, problem.everything())
    certificate = certify(training.head, training.dual, problem.everything(2))
    assert certificate.drift < 1e-9
    assert certificate.primal == pytest.approx(truth.primal(training.weights()), abs=1e-9)
    assert certificate.dual == pytest.approx(optimum, abs=5e-3)
    assert certificate.dual <= optimum + 2e-7


@examples(15)
@given(seed=SEEDS, kind=st.sampled_from(["chain", "uneven"]))
def test_the_largest_gain_is_that_of_all_outputs(seed, kind):
    problem, _ = rescaled((PROBLEMS | {"uneven": uneven})[kind](seed))
    structure, random = problem.structure, rng(seed)
    potentials = apply_head(problem.head, problem.everything()[0])
    noise = {name: torch.randn(t.shape, generator=random, dtype=t.dtype) for name, t in potentials.tensors.items()}
    potentials = potentials.replace(noise)
    target = structure.check_target(problem.everything()[0].y, potentials)
    every = torch.stack(list(structure.enumerate(potentials)), 1)
    best = structure.relative_scores(every, target, potentials).amax(1).clamp(min=0)
    gain = structure._largest_gain(potentials, target)
    assert bool((gain >= best - 1e-9).all())
    assert bool((gain <= best + 1e-3).all())  # a loss of at most 4, divided by 10 000


def test_a_path_begins_where_its_gap_is_small():
    for seed in range(5):
        problem, truth = rescaled(uneven(seed))
        dual = DualState.for_head(problem.head, problem.n, 1.0)
        bound = start_at_largest_lam(problem.head, dual, Items(problem), tolerance=0.05)
        truth.lam = dual.lam
        assert float(dual.gap_estimates.sum()) <= bound + 1e-9
        certificate = certify(problem.head, dual, problem.everything())  # the weights wait for the next step
        assert certificate.dual <= truth.optimum() + 1e-7
        assert dual.recomputed is not None
        assert -1e-9 <= truth.primal(flat(dual.recomputed)) - certificate.dual <= bound + 1e-9


@examples(15)
@given(seed=SEEDS, kind=st.sampled_from(["chain", "uneven"]), storage=st.sampled_from(sorted(STORAGES)))
def test_the_gap_is_exact(seed, kind, storage):
    problem, truth = rescaled((PROBLEMS | {"uneven": uneven})[kind](seed))
    training = problem.train(storage=STORAGES[storage]())
    value = 0.0
    for rows in ROWS:
        gap = training.step(rows)
        assert gap >= -1e-12
        assert training.dual.value() >= value - 1e-12
        value = training.dual.value()
    w = training.weights()
    certificate = certify(training.head, training.dual, problem.everything(2), refresh=False)
    assert certificate.primal == pytest.approx(truth.primal(w), abs=1e-10)
    assert certificate.dual == pytest.approx(value, abs=1e-10)
    everything = problem.everything()[0]
    with torch.no_grad():
        total = float(training.loss(apply_head(training.head, everything), everything.y, everything.index))
    assert total == pytest.approx(certificate.gap, abs=1e-10)
    assert float(training.dual.gap_estimates.sum()) == pytest.approx(certificate.gap, abs=1e-10)
    hinge = StructuredHinge(problem.structure)(apply_head(training.head, everything), everything.y)
    assert float(hinge.detach()) == pytest.approx(truth.hinges(w).mean(), abs=1e-10)


class F1(LabelSets):
    """One minus the F1 score, squared: no sum over labels."""

    def loss(self, labeling, target):
        return (1 - (labeling * target).sum(1).double() / self.size) ** 2

    def loss_potentials(self, target):
        raise NotImplementedError("the loss does not decompose over the labels")


def test_a_loss_that_does_not_decompose():
    head, _, batch = label_sets(1, n=6)
    structure = SlackRescaling(F1(4, 2))
    assert isinstance(structure.oracle, BruteForceSearch)
    report = check(head, structure, batch)
    assert report.ok, str(report)
    assert "not checked: the structure has no loss_potentials" in str(report)
    assert "NotImplementedError" in str(check(head, F1(4, 2), batch))
    dual = DualState.for_head(head, 6, 0.5, structure=structure)
    optim, loss = BCFW(head.parameters(), dual), BlockGap(dual)
    gaps = [certify(head, dual, [batch]).gap]
    for _ in range(60):
        optim.zero_grad()
        loss(head(batch.x), batch.y, batch.index).backward()
        optim.step()
    gaps.append(certify(head, dual, [batch]).gap)
    assert 0 <= gaps[1] < 0.2 * gaps[0]


def test_a_checkpoint_goes_on_to_the_same_bits_and_not_without_rescaling():
    first, second, margin = rescaled(chain(2))[0].train(), rescaled(chain(2))[0].train(), chain(2).train()
    first.run(ROWS[:3])
    state = copy.deepcopy(first.optim.state_dict())
    second.optim.load_state_dict(state)
    assert_same(first.run(ROWS[3:]).snapshot(), second.run(ROWS[3:]).snapshot())
    with pytest.raises(ValueError, match=r"structure.*SlackRescaling"):
        margin.optim.load_state_dict(state)


@examples(10)
@given(seed=SEEDS)
def test_the_gradient_of_the_hinge(seed):
    problem, truth = rescaled(chain(seed))
    with torch.no_grad():
        for p in problem.head.parameters():
            p.copy_(torch.randn(p.shape, generator=rng(seed), dtype=p.dtype))
    w = flat(problem.head.parameters()).numpy()
    batch = problem.everything()[0]
    StructuredHinge(problem.structure)(apply_head(problem.head, batch), batch.y).backward()
    result = torch.cat([p.grad.flatten() for p in problem.head.parameters()]).numpy()
    best = [truth.changes[i][(truth.losses[i] + truth.changes[i] @ w).argmax()] for i in range(problem.n)]
    assert result == pytest.approx(sum(best) / problem.n, abs=1e-10)
