from __future__ import annotations

import numpy as np
import pytest
import qpsolvers
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import examples, rng

from torchssvm import Away, Corrective, FrankWolfe, Hybrid, Pairwise
from torchssvm.directions import Blocks

RULES = [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective(steps=5000, tolerance=0.0)]
SEEDS = st.integers(0, 2**31 - 1)
N = 7


def random_blocks(seed: int) -> tuple[Blocks, torch.Tensor]:
    """Six blocks of up to five atoms, some without mass, some not there; the curvature is positive definite."""
    random = rng(seed)
    valid = torch.rand(6, 5, generator=random) < 0.8
    valid[:, 0] = True
    mass = torch.rand(6, 5, generator=random, dtype=torch.float64) * valid
    mass *= torch.rand(6, 5, generator=random) < 0.7
    mass[:, 0] += 1e-3
    mass[0] = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    mass /= mass.sum(1, keepdim=True)
    scores = torch.where(valid, torch.randn(6, 5, generator=random, dtype=torch.float64), 0.0)
    losses = torch.where(valid, torch.rand(6, 5, generator=random, dtype=torch.float64), 0.0)
    factors = torch.randn(6, 5, 8, generator=random, dtype=torch.float64) * 0.3
    curvature = factors @ factors.transpose(1, 2)
    corner = (scores + losses).masked_fill(~valid, -torch.inf).argmax(1)
    return Blocks(mass, scores, losses, valid, corner, N, lambda: curvature), curvature


def gain(blocks: Blocks, curvature: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """What the exact step in [0, 1] adds to the dual, by dense sampling."""
    gammas = torch.linspace(0.0, 1.0, 2001, dtype=torch.float64)
    slope = (change * blocks.hinges).sum(1, keepdim=True) / N
    bend = ((change.unsqueeze(1) @ curvature).squeeze(1) * change).sum(1, keepdim=True)
    return (slope * gammas - bend * gammas**2 / 2).amax(1)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@examples(25)
@given(seed=SEEDS)
def test_steps_up_to_1_are_feasible_and_none_goes_down(rule, seed):
    blocks, curvature = random_blocks(seed)
    change = rule(blocks)
    assert change.sum(1).abs().max() < 1e-12
    assert (blocks.mass + change).min() > -1e-12
    assert not change[~blocks.valid].any()
    assert ((change * blocks.hinges).sum(1) > -1e-12).all()
    assert (gain(blocks, curvature, change) >= 0.0).all()


@examples(25)
@given(seed=SEEDS)
def test_the_formulas_of_the_papers(seed):
    blocks, _ = random_blocks(seed)
    frank_wolfe, pairwise, away = FrankWolfe()(blocks), Pairwise()(blocks), Away()(blocks)
    for b in range(6):
        alpha, hinge = blocks.mass[b].numpy(), blocks.hinges[b].numpy()
        s = int(blocks.corner[b])
        active = [c for c in range(5) if alpha[c] > 0 and blocks.valid[b, c]]
        a = min(active, key=lambda c, hinge=hinge: hinge[c])
        unit = np.eye(5)
        assert frank_wolfe[b].numpy() == pytest.approx(unit[s] - alpha)
        assert pairwise[b].numpy() == pytest.approx(alpha[a] * (unit[s] - unit[a]))
        mean = alpha @ hinge
        if alpha[a] < 1.0 and mean - hinge[a] > hinge[s] - mean:
            assert away[b].numpy() == pytest.approx(alpha[a] / (1 - alpha[a]) * (alpha - unit[a]))
        else:
            assert away[b].numpy() == pytest.approx(unit[s] - alpha)
    assert blocks.gaps().numpy() == pytest.approx(((frank_wolfe * blocks.hinges).sum(1) / N).numpy())


@examples(25)
@given(seed=SEEDS)
def test_hybrid_takes_the_best_of_the_three(seed):
    blocks, curvature = random_blocks(seed)
    best = gain(blocks, curvature, Hybrid()(blocks))
    for rule in (FrankWolfe(), Pairwise(), Away()):
        assert (best >= gain(blocks, curvature, rule(blocks)) - 1e-6).all()


@examples(15)
@given(seed=SEEDS)
def test_corrective_solves_the_block(seed):
    blocks, curvature = random_blocks(seed)
    mass = blocks.mass + RULES[-1](blocks)
    for b in range(6):
        here = blocks.valid[b].numpy()
        matrix, rates = curvature[b].numpy()[here][:, here], (blocks.hinges[b] / N).numpy()[here]
        size = len(rates)
        start = blocks.mass[b].numpy()[here]
        # With masses m the dual changes by <m - m0, r> - |m - m0|_G^2 / 2.
        found = qpsolvers.solve_qp(
            P=matrix + 1e-12 * np.eye(size),
            q=-rates - matrix @ start,
            A=np.ones((1, size)),
            b=np.ones(1),
            lb=np.zeros(size),
            solver="quadprog",
        )

        def value(m, r=rates, g=matrix, s=start):
            return (m - s) @ r - (m - s) @ g @ (m - s) / 2

        assert value(mass[b].numpy()[here]) == pytest.approx(value(found), abs=1e-8)


@pytest.mark.parametrize("options", [{"steps": 0}, {"tolerance": 1.0}, {"tolerance": -0.1}])
def test_corrective_refuses(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        Corrective(**options)
