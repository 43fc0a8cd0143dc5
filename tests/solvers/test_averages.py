"""The averages of [B13]: their formulas, and what they are good for."""

from __future__ import annotations

import pytest
import torch
from cases.average_cases import AverageTestCase, schedule
from cases.bounded import Bounded, box_dual, optimum_within
from cases.custom import Approximate, label_sets
from cases.problems import assert_same, chain, flat, reference

from torchssvm import BCFW, BlockGap, CompiledBCFW, DualState, Labelings, MeanParts, Weights, certify
from torchssvm.core.potentials import as_potentials
from torchssvm.solvers import Average, SuffixAverage, UniformAverage, WeightedAverage


class TestWeightedAverage(AverageTestCase):
    kind = WeightedAverage

    def shares(self, count):
        return [2 * t / (count * (count + 1)) for t in range(1, count + 1)]

    def test_the_recursion_of_the_paper(self):
        """``wbar <- k/(k+2) wbar + 2/(k+2) w`` after step k = 0, 1, ..."""
        for k in range(20):
            assert self.kind([torch.zeros(1)]).coefficient(k + 1) == pytest.approx(2 / (k + 2))


@pytest.mark.variant
class TestSuffixAverage(AverageTestCase):
    kind = SuffixAverage

    def shares(self, count):
        start = max(2**e for e in range(20) if 2**e <= count)
        return [1 / (count - start + 1) if t >= start else 0.0 for t in range(1, count + 1)]


@pytest.mark.variant
class TestUniformAverage(AverageTestCase):
    kind = UniformAverage

    def shares(self, count):
        return [1 / count] * count


KINDS = [WeightedAverage, SuffixAverage, UniformAverage]


def following(dual: DualState, kinds: list[type[Average]]) -> list[Average]:
    return [kind.following(dual) for kind in kinds]


def test_several_averages_follow_one_dual():
    problem = chain(2)
    together, alone = problem.copy().train(), [problem.copy().train() for _ in KINDS]
    averages = following(together.dual, KINDS)
    each = [kind.following(training.dual) for kind, training in zip(KINDS, alone, strict=True)]
    for training in (together, *alone):
        training.run(schedule(problem, 3, 11))
    for a, b, training in zip(averages, each, alone, strict=True):
        found = a.certify(together.head, together.dual, problem.everything())
        assert found.gap == b.certify(training.head, training.dual, problem.everything()).gap
    assert len({a.loss for a in averages}) == len(KINDS)


def test_an_approximate_oracle_gives_an_upper_bound():
    head, _, batch = label_sets(1)
    structure = Approximate(4, 2)
    dual = DualState.for_head(head, 5, 0.2, structure=structure)
    optim, loss = BCFW(head.parameters(), dual), BlockGap(dual)
    average = WeightedAverage.following(dual)
    for k in range(20):
        row = torch.tensor([k % 5])
        optim.zero_grad()
        loss(head(batch.x[row]), batch.y[row], row).backward()
        optim.step()
    found = average.certify(head, dual, [batch])
    assert not found.exact
    with average.apply():
        scores = batch.x @ head.weight.detach().T
        squared = float(head.weight.detach().square().sum())
    outputs = list(structure.enumerate(as_potentials(scores)))
    listed = torch.stack([structure.loss(y, batch.y) + (scores * (y - batch.y)).sum(1) for y in outputs])
    exact = 0.1 * squared + float(listed.max(0).values.mean())
    assert found.primal == pytest.approx(exact + structure.slack, abs=1e-10)


# -- Duals of every kind -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("storage", [MeanParts, Weights, Labelings])
def test_under_bounds_v_is_averaged(storage, kind):
    problem = chain(2, lam=0.3)
    bounds = {"emission": (-0.1, 0.2), "transition": (0.0, None)}
    training = Bounded(problem, bounds, storage=storage())
    average = kind.following(training.dual)
    unclipped, losses = [], []
    for rows in schedule(problem, 4, 14):
        training.step(rows)
        unclipped.append(training.unclipped().clone())
        losses.append(float(training.dual.loss.sum()))
    lower, upper = training.limits()
    shares = [kind([torch.zeros(1)]).coefficient(k) for k in range(1, 15)]
    v, loss = unclipped[0], losses[0]
    for share, next_v, next_loss in zip(shares[1:], unclipped[1:], losses[1:], strict=True):
        v, loss = v + share * (next_v - v), loss + share * (next_loss - loss)
    w = v.numpy().clip(lower, upper)
    assert (v.numpy() != w).any()
    before = training.snapshot()
    found = average.certify(training.head, training.dual, problem.everything(2))
    before["dual"]["oracle_calls"] += problem.n
    assert_same(training.snapshot(), before)
    truth = reference(problem)
    assert found.primal == pytest.approx(truth.primal(w), abs=1e-11)
    assert found.dual == pytest.approx(box_dual(v.numpy(), loss, problem.lam, lower, upper), abs=1e-11)
    optimum, _ = optimum_within(truth, lower, upper)
    assert found.dual - 1e-7 <= optimum <= found.primal + 1e-7
    with average.apply():
        assert training.dual.box.holds(training.dual.parameters)
        torch.testing.assert_close(training.weights(), torch.from_numpy(w))
    training.step([0])
    assert average.count == 15


def test_passes_that_remember_labelings_do_not_end_an_average():
    problem = chain(2)
    training = problem.train(storage=Labelings())
    average = WeightedAverage.following(training.dual)
    for count, rows in enumerate(schedule(problem, 4, 12), 1):
        training.step(rows)
        certify(training.head, training.dual, problem.everything())
        assert average.count == count
    optimum = reference(problem).optimum()
    found = average.certify(training.head, training.dual, problem.everything())
    assert found.dual - 1e-9 <= optimum <= found.primal + 1e-9


@pytest.mark.parametrize("change", [lambda dual: dual.rescale(0.5), lambda dual: dual.change_lam(0.4)])
def test_another_lam_begins_the_average_anew(change):
    problem = chain(2)
    training = problem.train()
    average = WeightedAverage.following(training.dual)
    training.run(schedule(problem, 4, 12))
    change(training.dual)
    with pytest.raises(RuntimeError, match="no average yet"):
        average.certify(training.head, training.dual, problem.everything())
    training.run(schedule(problem, 5, 6))
    assert average.count == 6
    problem.lam = training.dual.lam
    optimum = reference(problem).optimum()
    found = average.certify(training.head, training.dual, problem.everything())
    assert found.dual - 1e-9 <= optimum <= found.primal + 1e-9


def test_the_compiled_loop_tells_of_its_last_step():
    problem = chain(2, boundary=True)
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=Labelings())
    solver = CompiledBCFW(problem.head, dual, problem.everything())
    average, iterates = UniformAverage.following(dual), []
    for _ in range(5):
        solver.step(4)
        iterates.append(flat(dual.parameters).clone())
    assert (average.count, dual.steps) == (5, 20)
    torch.testing.assert_close(flat(average.weights), sum(iterates) / 5)
    found, optimum = average.certify(problem.head, dual, problem.everything()), reference(problem).optimum()
    assert found.dual - 1e-9 <= optimum <= found.primal + 1e-9
