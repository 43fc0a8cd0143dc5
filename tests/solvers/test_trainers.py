"""All trainers by the same tests, and the names that are typed."""

from __future__ import annotations

import re

import torch
from cases.kernel_problems import kernel_svm
from cases.problem_data import Items
from cases.problems import chain
from cases.trainer_cases import TrainerTestCase

import torchssvm
from torchssvm import GDMM, Batch, BlockGap, CompiledBCFW, DualState, TorchLoop, in_order
from torchssvm.solvers.kernel import RBF


class TestCompiledBCFW(TrainerTestCase):
    def make(self):
        problem = chain(1, n=8, lam=0.3)
        dual = DualState.for_head(problem.head, problem.n, problem.lam)
        return CompiledBCFW(problem.head, dual, problem.everything(3), seed=4)

    def state(self, trainer):
        return {"trainer": trainer.state_dict(), "dual": trainer.dual.state_dict()}

    def load(self, trainer, state):
        trainer.dual.load_state_dict(state["dual"])
        super().load(trainer, state)


class TestGDMM(TrainerTestCase):
    again = 10.0  # a certificate follows every tenth pass

    def make(self):
        problem = chain(1, n=8, lam=0.3, boundary=False)
        return GDMM(problem.head, problem.everything(3), num_examples=problem.n, lam=problem.lam, seed=4)


class TestKernelSSVM(TrainerTestCase):
    def make(self):
        return kernel_svm(chain(1, n=8, lam=0.3), RBF(0.3), batch_size=3, seed=4)


class TestTorchLoop(TrainerTestCase):
    def make(self):
        problem = chain(1, n=8, lam=1.0)
        dual = DualState.for_head(problem.head, problem.n, problem.lam)
        return TorchLoop(problem.head, BlockGap(dual), Items(problem), batch_size=3)


def test_the_docstring_lists_every_name():
    typed, _ = torchssvm.__doc__.split("Other names")
    assert set(re.findall(r"``(\w+)``", typed)) == set(torchssvm.__all__)


def test_the_batches_of_a_pass_can_be_read_again():
    every = in_order(range(5), batch_size=2, collate_fn=lambda items: Batch(*[torch.tensor(items)] * 3))
    assert len(every) == 3
    for _ in range(2):
        assert [batch.index.tolist() for batch in every] == [[0, 1], [2, 3], [4]]
