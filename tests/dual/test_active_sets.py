"""Every direction and oracle rule on a dual that is kept as labelings."""

from __future__ import annotations

import io

import pytest
import torch
from cases.problems import PROBLEMS, Training, assert_same, rng, steps_of

from torchssvm import BlockGap, CacheOracle, Corrective, FrankWolfe, Labelings, Pairwise
from torchssvm.steps import Away, Hybrid, MaxOracle

RULES = [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()]
ORACLES = [MaxOracle(), CacheOracle()]


def training(problem, direction, oracle, capacity=20, sweeps=5) -> Training:
    made = Training(problem, storage=Labelings(capacity))
    made.loss = BlockGap(made.dual, direction, oracle=oracle, block_steps=steps_of(sweeps))
    return made


def schedule(n: int, steps: int, seed: int = 0) -> list[list[int]]:
    random = rng(seed)
    return [torch.randint(0, n, (1 + k % 3,), generator=random).tolist() for k in range(steps)]


@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
@pytest.mark.parametrize("direction", RULES, ids=repr)
def test_resume_to_the_same_bits(direction, oracle):
    def made():
        return training(PROBLEMS["chain"](3, lam=0.05, n=6), direction, oracle, capacity=3)

    whole, first, second = made(), made(), made()
    batches = schedule(6, 60)
    whole.run(batches)
    first.run(batches[:35])
    file = io.BytesIO()
    torch.save(first.optim.state_dict(), file)
    file.seek(0)
    second.optim.load_state_dict(torch.load(file, weights_only=True))
    second.run(batches[35:])
    assert_same(second.snapshot(), whole.snapshot())
