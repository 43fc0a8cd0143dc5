"""Features that overflow when squared: blocks would never move, and compiled loops would not end."""

from __future__ import annotations

import pytest
import torch
from cases.problem_data import Items
from cases.problems import chain, multiclass

from torchssvm import Solver, guess_lam, make_trainer
from torchssvm.steps import BoxQP

SIZES = {torch.float32: (1e15, 1e21), torch.float64: (1e150, 1e156)}
COMPILED = [Solver(compiled=True)]
LOOPS = [*COMPILED, Solver(compiled=False), Solver(compiled=False, block_steps=BoxQP())]


class Scaled(Items):
    """Examples of a problem, with features times a factor."""

    def __init__(self, problem, factor):
        super().__init__(problem)
        self.factor = factor

    def collate(self, items):
        batch = super().collate(items)
        return batch.replace(x=batch.x * self.factor)


@pytest.mark.parametrize("make", [multiclass, chain])
@pytest.mark.parametrize("solver", LOOPS, ids=range(3))
@pytest.mark.parametrize("dtype", SIZES)
def test_every_loop_refuses_them(make, solver, dtype):
    problem = make(0, n=4, dtype=dtype)
    few, many = (Scaled(problem, factor) for factor in SIZES[dtype])
    make_trainer(problem.head, few, lam=1.0, solver=solver).step()
    problem = make(0, n=4, dtype=dtype)
    with pytest.raises(ValueError, match="overflow"):
        make_trainer(problem.head, many, lam=1.0, solver=solver).step()


def test_a_lambda_of_them_is_not_guessed():
    problem = multiclass(0, n=4)
    with pytest.raises(ValueError, match="squares overflow"):
        guess_lam(problem.head, Scaled(problem, 1e160))
