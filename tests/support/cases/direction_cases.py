"""What every direction must be: inherit ``DirectionTestCase``, say how to make the rule, get the tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases.problems import PROBLEMS, Reference, examples, reference
from torchssvm.steps.directions import Atoms, DirectionRule

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from(sorted(PROBLEMS))


class Setting(NamedTuple):
    """Blocks of a random dual at the weights that belong to it.

    Attributes:
        truth: The problem, all outputs listed.
        columns: For each example ``[M, Y_i]``, the distribution over its outputs that an atom stands for.
        alphas: For each example ``[Y_i]``, the dual distribution.
        w: w(alpha).
        blocks: What the rule sees.
        curvature: ``[n, M, M]``.
    """

    truth: Reference
    columns: list[np.ndarray]
    alphas: list[np.ndarray]
    w: np.ndarray
    blocks: Atoms
    curvature: np.ndarray

    def dual(self, i: int, mass: np.ndarray) -> float:
        """The dual objective with block i at other masses of its atoms."""
        alphas = list(self.alphas)
        alphas[i] = mass @ self.columns[i]
        return self.truth.dual(alphas)


class DirectionTestCase(ABC):
    """Random cached labelings and masses, the rest the target or a random mixture, the corner cached or new."""

    #: Most cached labelings of a block.
    cached = 4

    @abstractmethod
    def make_rule(self) -> DirectionRule: ...

    def setting(self, seed: int, kind: str, mixed: bool, lam: float = 0.5) -> Setting:
        options = {"classes": 5} if kind == "multiclass" else {}
        truth = reference(PROBLEMS[kind](seed, n=3, lam=lam, **options))
        random = np.random.default_rng(seed)
        width = self.cached + 2
        columns, masses, valids, corners = [], [], [], []
        for losses, parts in zip(truth.losses, truth.parts, strict=True):
            count = int(random.integers(0, min(self.cached, len(losses)) + 1))
            atoms = np.zeros((width, len(losses)))
            atoms[0, abs(parts).sum(1).argmin()] = 1.0  # the target
            if mixed and self.cached:
                atoms[0] = random.dirichlet(np.ones(len(losses)))
            atoms[1 + np.arange(count), random.permutation(len(losses))[:count]] = 1.0
            mass = np.zeros(width)
            mass[: count + 1] = random.random(count + 1) * (random.random(count + 1) < 0.7)
            if count == 0 or mass.sum() == 0.0:
                mass[0] = 1.0
            mass /= mass.sum()
            valid = np.zeros(width, dtype=bool)
            valid[0], valid[1 : count + 1] = mass[0] > 0.0, True
            columns.append(atoms)
            masses.append(mass)
            valids.append(valid)
        alphas = [mass @ atoms for mass, atoms in zip(masses, columns, strict=True)]
        w = truth.weights(alphas)
        for i, atoms in enumerate(columns):
            best = int((truth.losses[i] + truth.changes[i] @ w).argmax())
            same = [c for c in range(1, width - 1) if valids[i][c] and atoms[c, best] == 1.0]
            if not same:
                atoms[width - 1, best] = 1.0
                valids[i][width - 1] = True
            corners.append(same[0] if same else width - 1)
        features = np.stack([atoms @ changes for atoms, changes in zip(columns, truth.changes, strict=True)])
        curvature = features @ features.transpose(0, 2, 1) / (truth.lam * truth.n**2)
        blocks = Atoms(
            mass=torch.from_numpy(np.stack(masses)),
            scores=torch.from_numpy(features @ w),
            losses=torch.from_numpy(np.stack([a @ losses for a, losses in zip(columns, truth.losses, strict=True)])),
            valid=torch.from_numpy(np.stack(valids)),
            corner=torch.tensor(corners),
            num_examples=truth.n,
            curvature=lambda: torch.from_numpy(curvature.copy()),
        )
        return Setting(truth, columns, alphas, w, blocks, curvature)

    @pytest.mark.every_variant
    @examples(30)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans())
    def test_it_changes_masses_and_nothing_else(self, seed, kind, mixed):
        blocks = self.setting(seed, kind, mixed).blocks
        stored = [t.clone() for t in (blocks.mass, blocks.scores, blocks.losses, blocks.hinges)]
        change = self.make_rule()(blocks)
        assert change.shape == blocks.mass.shape
        assert change.dtype == torch.float64
        assert change.sum(1).tolist() == pytest.approx([0.0] * 3, abs=1e-14)
        assert bool((blocks.mass + change >= -1e-15).all())
        assert not bool(change[~blocks.valid].any())
        for before, after in zip(stored, (blocks.mass, blocks.scores, blocks.losses, blocks.hinges), strict=True):
            assert torch.equal(before, after)

    @pytest.mark.every_variant
    @examples(30)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans())
    def test_the_slope_is_the_derivative_of_the_dual(self, seed, kind, mixed):
        setting = self.setting(seed, kind, mixed)
        blocks = setting.blocks
        change = self.make_rule()(blocks)
        slopes = (change * blocks.hinges).sum(1) / blocks.num_examples
        for i in range(setting.truth.n):
            values = [setting.dual(i, (blocks.mass[i] + gamma * change[i]).numpy()) for gamma in (0.5, -0.5)]
            assert float(slopes[i]) == pytest.approx(values[0] - values[1], abs=1e-9)  # exact: the dual is quadratic
            assert float(slopes[i]) >= -1e-12

    @examples(30)
    @given(seed=SEEDS, kind=KINDS, mixed=st.booleans())
    def test_it_grows_where_something_can_be_gained(self, seed, kind, mixed):
        """A slope of zero is a block at its optimum: no direction may stall before."""
        setting = self.setting(seed, kind, mixed)
        blocks = setting.blocks
        slopes = (self.make_rule()(blocks) * blocks.hinges).sum(1) / blocks.num_examples
        gaps = blocks.gaps()
        assert bool((gaps >= -1e-12).all())
        assert bool((slopes[gaps > 1e-9] > 0.0).all())

    @pytest.mark.parametrize("kind", sorted(PROBLEMS))
    def test_a_block_alone_is_the_same_as_in_a_batch(self, kind):
        setting = self.setting(5, kind, True)
        blocks, rule = setting.blocks, self.make_rule()
        together = rule(blocks)
        for i in range(setting.truth.n):
            alone = Atoms(
                *(t[i : i + 1] for t in (blocks.mass, blocks.scores, blocks.losses, blocks.valid, blocks.corner)),
                blocks.num_examples,
                lambda i=i: torch.from_numpy(setting.curvature[i : i + 1].copy()),
            )
            torch.testing.assert_close(rule(alone), together[i : i + 1], rtol=0, atol=0)

    def test_a_block_at_its_corner_stays(self):
        mass = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
        scores = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
        valid = torch.tensor([[False, True, False]])
        nothing = torch.zeros(1, 3, 3, dtype=torch.float64)
        blocks = Atoms(mass, scores, torch.zeros_like(mass), valid, torch.tensor([1]), 4, lambda: nothing)
        assert self.make_rule()(blocks).tolist() == [[0.0, 0.0, 0.0]]

    def test_devices(self, device):
        """Curvature and masses may live on a GPU."""
        blocks = self.setting(3, "chain", True).blocks
        moved = Atoms(
            *(t.to(device) for t in (blocks.mass, blocks.scores, blocks.losses, blocks.valid, blocks.corner)),
            blocks.num_examples,
            lambda: blocks.curvature().to(device),
        )
        result = self.make_rule()(moved)
        assert result.device.type == device.type
        torch.testing.assert_close(result.cpu(), self.make_rule()(blocks))
