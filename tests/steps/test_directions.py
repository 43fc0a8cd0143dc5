from __future__ import annotations

import numpy as np
import pytest
import qpsolvers
from cases.direction_cases import KINDS, SEEDS, DirectionTestCase, Setting
from cases.problems import examples, multiclass
from hypothesis import given
from hypothesis import strategies as st

import torchssvm
from torchssvm import BlockGap, Corrective, FrankWolfe, Pairwise
from torchssvm.steps import Away, Hybrid


def away_corner(setting: Setting, i: int) -> int:
    hinges, mass = setting.blocks.hinges[i].tolist(), setting.blocks.mass[i].tolist()
    return min((c for c in range(len(mass)) if mass[c] > 0.0), key=lambda c: hinges[c])


def explicit(name: str, setting: Setting, i: int) -> np.ndarray | None:
    """The three classical directions of one block by their definitions; None where there is none."""
    mass = setting.blocks.mass[i].numpy()
    corner, away = int(setting.blocks.corner[i]), away_corner(setting, i)
    to_corner, to_away = np.eye(len(mass))[corner], np.eye(len(mass))[away]
    if name == "frank_wolfe":
        return to_corner - mass
    if name == "pairwise":
        return mass[away] * (to_corner - to_away)
    if mass[away] == 1.0:
        return None
    return mass[away] / (1.0 - mass[away]) * (mass - to_away)


def gain(setting: Setting, i: int, change: np.ndarray) -> float:
    """How much the exact step in [0, 1] along a direction of block i raises the dual, from three values of the dual."""
    mass = setting.blocks.mass[i].numpy()
    start, half, full = (setting.dual(i, mass + gamma * change) for gamma in (0.0, 0.5, 1.0))
    curvature = -4.0 * (full - 2.0 * half + start)
    slope = full - start + curvature / 2.0
    step = 1.0 if curvature <= slope else max(slope / curvature, 0.0)
    return setting.dual(i, mass + step * change) - start


class TestFrankWolfe(DirectionTestCase):
    def make_rule(self):
        return FrankWolfe()

    @examples(20)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans())
    def test_it_leads_to_the_corner(self, seed, kind, mixed):
        setting = self.setting(seed, kind, mixed)
        change = self.make_rule()(setting.blocks).numpy()
        for i in range(3):
            assert change[i] == pytest.approx(explicit("frank_wolfe", setting, i), abs=0)

    @examples(20)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans())
    def test_its_slopes_are_the_block_gaps_and_sum_to_the_gap(self, seed, kind, mixed):
        setting = self.setting(seed, kind, mixed)
        blocks, truth = setting.blocks, setting.truth
        slopes = (self.make_rule()(blocks) * blocks.hinges).sum(1) / blocks.num_examples
        assert slopes.tolist() == pytest.approx(blocks.gaps().tolist(), abs=1e-14)
        assert float(slopes.sum()) == pytest.approx(truth.primal(setting.w) - truth.dual(setting.alphas), abs=1e-10)


@pytest.mark.variant
class TestFrankWolfeWithoutLabelings(TestFrankWolfe):
    """As MeanParts and Weights have it: the block is one point, and the corner is always new."""

    cached = 0


class TestPairwise(DirectionTestCase):
    def make_rule(self):
        return Pairwise()

    @examples(30)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans())
    def test_it_is_the_definition(self, seed, kind, mixed):
        setting = self.setting(seed, kind, mixed)
        change = self.make_rule()(setting.blocks).numpy()
        for i in range(3):
            assert change[i] == pytest.approx(explicit("pairwise", setting, i), abs=0)
            assert setting.blocks.mass[i, away_corner(setting, i)] > 0.0

    @examples(20)
    @given(seed=SEEDS, kind=KINDS)
    def test_a_full_step_drops_the_away_corner_exactly(self, seed, kind):
        setting = self.setting(seed, kind, True)
        moved = setting.blocks.mass + self.make_rule()(setting.blocks)
        for i in range(3):
            away = away_corner(setting, i)
            assert float(moved[i, away]) == 0.0 or away == int(setting.blocks.corner[i])


class TestAway(DirectionTestCase):
    def make_rule(self):
        return Away()

    @examples(40)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans())
    def test_it_is_the_definition(self, seed, kind, mixed):
        """The better of two slopes, both of directions that are not yet scaled ([G16] Algorithm 4)."""
        setting = self.setting(seed, kind, mixed)
        blocks = setting.blocks
        change = self.make_rule()(blocks).numpy()
        for i in range(3):
            mean = float(blocks.mass[i] @ blocks.hinges[i])
            forward = float(blocks.hinges[i].max()) - mean
            backward = mean - float(blocks.hinges[i, away_corner(setting, i)])
            if abs(forward - backward) < 1e-12:
                continue
            away = explicit("away", setting, i)
            expected = away if away is not None and backward > forward else explicit("frank_wolfe", setting, i)
            assert change[i] == pytest.approx(expected, abs=1e-15)


class TestHybrid(DirectionTestCase):
    def make_rule(self):
        return Hybrid()

    @examples(40)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans(), lam=st.sampled_from([0.01, 0.5, 20.0]))
    def test_it_is_the_one_with_the_largest_gain(self, seed, kind, mixed, lam):
        setting = self.setting(seed, kind, mixed, lam)
        change = self.make_rule()(setting.blocks).numpy()
        for i in range(3):
            every = [explicit(name, setting, i) for name in ("frank_wolfe", "pairwise", "away")]
            every = [one for one in every if one is not None]
            assert any(change[i] == pytest.approx(one, abs=1e-14) for one in every)
            best = max(gain(setting, i, one) for one in every)
            assert gain(setting, i, change[i]) == pytest.approx(best, abs=1e-10 * (1 + 1 / lam))


class TestCorrective(DirectionTestCase):
    def make_rule(self):
        return Corrective()

    def optimum(self, setting: Setting, i: int) -> float:
        """Maximum of one block's dual over the distributions of its atoms, by a QP solver."""
        blocks, keep = setting.blocks, setting.blocks.valid[i].numpy()
        matrix = setting.curvature[i][np.ix_(keep, keep)]
        mass, slopes = blocks.mass[i].numpy()[keep], blocks.hinges[i].numpy()[keep] / blocks.num_examples
        result = qpsolvers.solve_qp(
            P=matrix + 1e-10 * np.eye(len(matrix)),
            q=-slopes - matrix @ mass,
            A=np.ones((1, len(matrix))),
            b=np.ones(1),
            lb=np.zeros(len(matrix)),
            solver="quadprog",
        )
        full = np.zeros(len(keep))
        full[keep] = np.clip(result, 0.0, None) / np.clip(result, 0.0, None).sum()
        return setting.dual(i, full)

    @examples(25)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans(), lam=st.sampled_from([0.02, 0.5, 20.0]))
    def test_many_steps_solve_the_block(self, seed, kind, mixed, lam):
        setting = self.setting(seed, kind, mixed, lam)
        change = Corrective(steps=3000, tolerance=0.0)(setting.blocks)
        for i in range(3):
            reached = setting.dual(i, (setting.blocks.mass[i] + change[i]).numpy())
            assert reached == pytest.approx(self.optimum(setting, i), abs=1e-7 * (1 + 1 / lam))

    @examples(25)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans(), steps=st.integers(1, 8), tolerance=st.sampled_from([0.0, 0.5]))
    def test_no_number_of_steps_lowers_the_dual(self, seed, kind, mixed, steps, tolerance):
        setting = self.setting(seed, kind, mixed, 0.1)
        before = setting.truth.dual(setting.alphas)
        values = []
        for count in (steps, steps + 5):
            change = Corrective(steps=count, tolerance=tolerance)(setting.blocks)
            values.append([setting.dual(i, (setting.blocks.mass[i] + change[i]).numpy()) for i in range(3)])
        for fewer, more in zip(*values, strict=True):
            assert more >= fewer - 1e-12 >= before - 2e-12

    @examples(20)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans())
    def test_one_step_is_an_exact_pairwise_step(self, seed, kind, mixed):
        setting = self.setting(seed, kind, mixed, 0.1)
        change = Corrective(steps=1)(setting.blocks).numpy()
        for i in range(3):
            reached = setting.dual(i, setting.blocks.mass[i].numpy() + change[i])
            expected = gain(setting, i, explicit("pairwise", setting, i))
            assert reached - setting.truth.dual(setting.alphas) == pytest.approx(expected, abs=1e-10)


class Halfway:
    """Half of the Frank-Wolfe direction: a user's rule, for every storage."""

    needs_labelings = False
    needs_curvature = False

    def __call__(self, blocks):
        return FrankWolfe()(blocks) / 2

    def __repr__(self):
        return "Halfway()"


@pytest.mark.variant
class TestHalfway(DirectionTestCase):
    def make_rule(self):
        return Halfway()


@pytest.mark.parametrize("storage", ["MeanParts", "Weights", "Labelings"])
def test_a_shorter_direction_gives_the_same_steps_as_long_as_they_are_short(storage):
    """Exact line search undoes the scale; a step never exceeds half the way to the corner."""
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
        assert np.allclose(a.dual.loss, b.dual.loss, atol=1e-13)
    assert 0 < max(steps) < 0.5
