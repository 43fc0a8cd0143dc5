from __future__ import annotations

import numpy as np
import pytest
from direction_cases import KINDS, SEEDS, DirectionTestCase
from hypothesis import given
from problems import examples, multiclass

from torchssvm import BlockGap, FrankWolfe


class TestFrankWolfe(DirectionTestCase):
    def make_rule(self):
        return FrankWolfe()

    @examples(15)
    @given(seed=SEEDS, kind=KINDS)
    def test_it_leads_to_the_corner(self, seed, kind):
        problem, truth, alphas, w = self.setting(seed, kind, False)
        direction, _ = self.directions(problem, w)
        for i in range(problem.n):
            delta, psi, change = self.explicit(problem, direction, truth, alphas, i)
            scores = truth.losses[i] + truth.changes[i] @ w
            corner = scores.argmax()
            assert -psi + delta == pytest.approx(truth.parts[i][corner], abs=1e-12)
            held = alphas[i] @ truth.losses[i] / truth.n
            assert held + change == pytest.approx(truth.losses[i][corner] / truth.n, abs=1e-12)

    @examples(15)
    @given(seed=SEEDS, kind=KINDS)
    def test_its_slopes_are_the_block_gaps_and_sum_to_the_gap(self, seed, kind):
        problem, truth, alphas, w = self.setting(seed, kind, False)
        direction, _ = self.directions(problem, w)
        matrices = self.linear_maps(problem)
        total = 0.0
        for i in range(problem.n):
            _, psi, change = self.explicit(problem, direction, truth, alphas, i)
            total += float(direction.slopes[i]) + psi @ matrices[i] @ w / truth.n + change
        assert total == pytest.approx(truth.primal(w) - truth.dual(alphas), abs=1e-10)

    def test_repr(self):
        assert repr(FrankWolfe()) == "FrankWolfe()"


class Halfway:
    """Half of the Frank-Wolfe direction, with its decay said explicitly."""

    def __call__(self, corner, num_examples):
        whole = FrankWolfe()(corner, num_examples)
        half = corner.loss.new_full(corner.loss.shape, 0.5)
        parts = {name: tensor / 2 for name, tensor in whole.parts.items()}
        return type(whole)(parts, whole.slopes / 2, whole.loss / 2, half)


class TestHalfway(DirectionTestCase):
    """The cases hold for directions that decay."""

    def make_rule(self):
        return Halfway()


@pytest.mark.parametrize("storage", ["MeanParts", "Weights"])
def test_a_shorter_direction_gives_the_same_steps_as_long_as_they_are_short(storage):
    """Exact line search undoes the scale; a step never exceeds half the way to the corner."""
    import torchssvm

    problem = multiclass(3, lam=0.01)
    a, b = (problem.copy().train(storage=getattr(torchssvm, storage)()) for _ in range(2))
    b.loss = BlockGap(b.dual, Halfway())
    rows = [[0], [1], [2], [3], [4], [5], [0], [2], [5]]
    steps = []
    for some in rows:
        a.step(some)
        b.step(some)
        steps.append(a.optim.param_groups[0]["lr"] * problem.lam)
        assert np.allclose(a.weights(), b.weights(), atol=1e-12)
        assert torch_equal(a.dual.loss, b.dual.loss)
    assert 0 < max(steps) < 0.5


def torch_equal(a, b):
    return np.allclose(a, b, atol=1e-13)
