"""``StructuredSVM`` with directions and oracle rules that need labelings, with features that move too."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from cases.problems import Problem, Training, chain, reference

pytest.importorskip("lightning")


from torchssvm import (
    CacheOracle,
    Corrective,
    FrankWolfe,
    Labelings,
    MeanParts,
    Pairwise,
    certify,
    recompute_weights,
)
from torchssvm.steps import Away, Hybrid

DIRECTIONS = [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()]

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`")


def moved(problem: Problem, random: torch.Generator) -> Problem:
    """Other features for the same head, as if they had been trained."""
    turn = torch.linalg.qr(torch.randn(2, 2, generator=random, dtype=torch.float64)).Q
    stretch = 0.8 + 0.4 * torch.rand(2, generator=random, dtype=torch.float64)
    return dataclasses.replace(problem, x=problem.x @ turn * stretch)


@pytest.mark.parametrize("capacity", [1, 2, 20])
def test_labelings_follow_moving_features_as_mean_parts_do(capacity):
    """Frank-Wolfe steps are the same whatever keeps the blocks, also those of labelings that have had to leave."""
    problem, random = chain(7, n=6, lam=0.1), torch.Generator().manual_seed(0)
    runs = [Training(problem.copy(), storage=storage) for storage in (MeanParts(), Labelings(capacity))]
    for _ in range(4):
        truth = reference(problem)
        for _ in range(12):
            rows = torch.randint(0, 6, (2,), generator=random).tolist()
            if truth.tied(runs[0].weights(), rows):  # rounding would decide which output is best
                continue
            for run in runs:
                run.step(problem.batch(rows))
        problem = moved(problem, random)
        for run in runs:
            assert recompute_weights(run.head, run.dual, problem.everything(2)) > 0.01
        plain, labelings = runs
        torch.testing.assert_close(labelings.weights(), plain.weights(), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(labelings.dual.loss, plain.dual.loss, rtol=1e-9, atol=1e-12)
    assert plain.dual.steps > 20
    assert bool(labelings.dual.storage.mixed.any()) == (capacity < 20)


@pytest.mark.parametrize("capacity", [2, 20])
@pytest.mark.parametrize("direction", DIRECTIONS, ids=repr)
def test_every_direction_goes_on_when_features_have_moved(direction, capacity):
    """The dual is that of the features as they stand, and rises from there; so are inner products."""
    problem, random = chain(7, n=6), torch.Generator().manual_seed(0)
    training = Training(problem, storage=Labelings(capacity), direction=direction, oracle=CacheOracle(0.5, 0.0))
    for _ in range(3):
        truth, last_value = reference(problem), training.dual.value()
        for k in range(12):
            training.step(problem.batch([k % 6, (k + 1 + k // 6) % 6]))
            assert training.dual.value() >= last_value - 1e-12
            last_value = training.dual.value()
        certificate = certify(training.head, training.dual, problem.everything(2))
        assert certificate.drift < 1e-10
        assert certificate.primal == pytest.approx(truth.primal(training.weights()), abs=1e-10)
        assert certificate.dual <= truth.optimum() + 2e-7 <= certificate.primal + 4e-7
        if direction.needs_curvature:
            sets = training.dual.storage.sets
            example, at = (sets.known & (sets.mass > 0)).nonzero()[0].tolist()
            labeling = sets.labelings[0][example, at].tolist()
            place = truth.outputs[example].index(tuple(label for label in labeling if label >= 0))
            change = truth.changes[example][place]
            assert float(sets.gram[example, at, at]) == pytest.approx(float(change @ change), rel=1e-9)
        problem = moved(problem, random)
        recompute_weights(training.head, training.dual, problem.everything(2))
