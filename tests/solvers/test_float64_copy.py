"""Torch certificates of float32 heads are those of a float64 run at the same weights and blocks, for every kind."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from cases.problems import PROBLEMS, flat, reference, rng
from torch import nn

from torchssvm import Labelings, MeanParts, Weights, certify
from torchssvm.solvers import primal


class Frozen(nn.Module):
    """A frozen network below the head."""

    def __init__(self, head):
        super().__init__()
        self.network, self.head = nn.Identity(), head

    def forward(self, *args):
        return self.head(*args)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("storage", [MeanParts, Labelings, Weights])
@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_it_is_the_certificate_of_a_float64_run_and_of_the_enumeration(kind, storage, adjoint):
    problem = PROBLEMS[kind](3, dtype=torch.float32, adjoint=adjoint)
    training = problem.train(storage=storage()).run([[0, 1], [2], [3, 4], [1], [0, 2]])
    wide = PROBLEMS[kind](3, dtype=torch.float32, adjoint=adjoint)
    for name in ("x", "head"):
        setattr(wide, name, copy.deepcopy(getattr(problem, name)).double())
    w = flat(training.head.parameters()).double()
    everything = problem.everything(2)
    certificate = certify(training.head, training.dual, everything, refresh=False)
    assert certificate.primal - certificate.dual == certificate.gap >= 0.0
    exact = reference(wide).primal(w.numpy())
    assert certificate.primal == pytest.approx(exact, rel=1e-12)
    assert primal(training.head, problem.structure, everything, problem.lam).value == certificate.primal
    assert primal(wide.head, problem.structure, wide.everything(2), problem.lam).value == pytest.approx(
        exact, rel=1e-12
    )
    again = certify(Frozen(training.head), training.dual, everything, refresh=False)
    assert (again.primal, again.dual) == (certificate.primal, certificate.dual)
    alike = certify(copy.deepcopy(training.head), training.dual, everything, refresh=False)
    assert (alike.primal, alike.dual) == (certificate.primal, certificate.dual)
    as_function = certify(lambda *args: training.head(*args), training.dual, everything, refresh=False)
    assert as_function.primal == pytest.approx(certificate.primal, rel=1e-5)
    assert flat(training.head.parameters()).dtype is torch.float32


def test_the_dual_never_decreases_and_the_gap_is_never_negative():
    problem = PROBLEMS["chain"](5, dtype=torch.float32, lam=1e-4)
    training = problem.train()
    duals = []
    for _ in range(30):
        training.step([int(torch.randint(problem.n, (), generator=rng(len(duals))))])
        certificate = certify(training.head, training.dual, problem.everything())
        assert certificate.gap >= 0.0
        duals.append(certificate.dual)
    assert all(b >= a - 1e-7 * abs(a) for a, b in pairwise(duals))
