"""Compiled kernels and torch operations give the same results to the bit; the box QP is solved."""

import numpy as np
import pytest
import torch
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st
from qpsolvers import solve_qp

from torchssvm.steps import box_qp
from torchssvm.steps.box_qp import ascend_gram


def random_qp(seed, size, rank):
    random = np.random.default_rng(seed)
    factors = random.normal(size=(size, rank))
    return factors @ factors.T, random.normal(size=size) * 2


@examples(60)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 12))
def test_many_sweeps_solve_the_box_qp(seed, size):
    matrix, values = random_qp(seed, size, size + 2)
    before = box_qp._CONVERGED
    box_qp._CONVERGED = 1e-13
    try:
        gammas = box_qp.solve_box_qp(torch.tensor(matrix), torch.tensor(values), 20_000).numpy()
    finally:
        box_qp._CONVERGED = before
    best = solve_qp(matrix, -values, lb=np.zeros(size), ub=np.ones(size), solver="quadprog")

    def objective(g):
        return values @ g - g @ matrix @ g / 2

    assert (gammas >= 0).all()
    assert (gammas <= 1).all()
    assert objective(gammas) == pytest.approx(objective(best), abs=1e-8)


@examples(60)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 12), rank=st.integers(0, 4), sweeps=st.integers(1, 6))
def test_sweeps_never_lower_the_objective_and_compiled_ones_are_the_same(seed, size, rank, sweeps):
    matrix, values = random_qp(seed, size, rank)

    def ascend(kernel, sweeps):
        gammas = np.zeros(size)
        kernel(matrix, values.copy(), gammas, sweeps, 1e-3)
        return gammas

    plain, fast = ascend(ascend_gram.__wrapped__, sweeps), ascend(ascend_gram, sweeps)
    assert plain.tobytes() == fast.tobytes()
    fewer = ascend(ascend_gram, sweeps - 1)
    objectives = [values @ g - g @ matrix @ g / 2 for g in (fewer, plain)]
    assert objectives[1] >= objectives[0] - 1e-12
    assert objectives[1] >= -1e-12
