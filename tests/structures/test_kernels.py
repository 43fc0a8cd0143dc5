"""Compiled kernels and torch operations give the same results to the bit; the box QP is solved."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from qpsolvers import solve_qp

from torchssvm import BCFW, BlockGap, DualState, LinearChain
from torchssvm.steps import box_qp
from torchssvm.steps import numba as kernels
from torchssvm.steps.numba import ascend_gram
from torchssvm.structures.chain import structure as chain
from torchssvm.structures.chain.oracle import viterbi, viterbi_torch


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 5),
    longest=st.integers(1, 7),
    states=st.integers(1, 5),
    axes=st.sampled_from([2, 3, 4, "expanded"]),
    ragged=st.booleans(),
    ties=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_compiled_viterbi_equals_torch(seed, batch, longest, states, axes, ragged, ties, dtype):
    random = torch.Generator().manual_seed(seed)
    shape = {2: (), 3: (batch,), 4: (batch, longest - 1), "expanded": ()}[axes]
    emission = torch.randn(batch, longest, states, generator=random, dtype=dtype)
    transition = torch.randn(*shape, states, states, generator=random, dtype=dtype)
    if ties:
        emission, transition = emission.round(), transition.round()
    if axes == "expanded":
        transition = transition.expand(batch, states, states)
    lengths = torch.randint(1, longest + 1, (batch,), generator=random) if ragged else None
    labels, value = viterbi_torch(emission, transition, lengths)
    same_labels, same_value = viterbi(emission, transition, lengths)
    assert torch.equal(labels, same_labels)
    assert torch.equal(value, same_value)


def random_qp(seed, size, rank):
    random = np.random.default_rng(seed)
    factors = random.normal(size=(size, rank))
    return factors @ factors.T, random.normal(size=size) * 2


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=60, deadline=None)
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


def test_training_is_the_same_without_kernels(monkeypatch):
    weights = []
    for decode, ascend in ((viterbi, ascend_gram), (viterbi_torch, ascend_gram.__wrapped__)):
        monkeypatch.setattr(chain, "viterbi", decode)
        monkeypatch.setattr(kernels, "ascend_gram", ascend)
        random = torch.Generator().manual_seed(3)
        x, y = torch.randn(6, 5, 4, generator=random), torch.randint(0, 3, (6, 5), generator=random)
        lengths = torch.tensor([5, 1, 3, 2, 5, 4])
        head = LinearChain(4, 3)
        dual = DualState.for_head(head, 6, 0.05)
        loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
        for step in range(20):
            rows = torch.tensor([step % 6, (step + 2) % 6, (5 * step + 1) % 6]).unique()
            optim.zero_grad()
            loss(head(x[rows], lengths[rows]), y[rows], rows).backward()
            optim.step()
        weights.append(torch.cat([p.detach().flatten() for p in head.parameters()]))
    assert weights[0].abs().max() > 0
    assert torch.equal(*weights)


def test_a_kernel_is_copied_and_pickled_by_its_name():
    """Numba's dispatcher cannot be; what holds a kernel must not hinder copies between processes."""
    for kernel in (ascend_gram, kernels.ascend_gradients):
        assert copy.deepcopy(kernel) is kernel
        assert pickle.loads(pickle.dumps(kernel)) is kernel
