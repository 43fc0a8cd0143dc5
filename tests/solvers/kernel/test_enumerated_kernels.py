"""Kernel models on tiny problems: certificates enclose the optimum of a QP over all outputs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from cases.enumerated import Listing, listing, optimum_between
from cases.problems import rng

from torchssvm.solvers.kernel import (
    RBF,
    KernelChain,
    KernelMulticlass,
    KernelSSVM,
    Linear,
    Polynomial,
)

pytest.importorskip("clarabel")

PROBLEMS = 100
PORTION = 25
# What each kernel is, written down once more.
KERNELS: list[tuple[Any, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    (Linear(), lambda a, b: a @ b.T),
    (Polynomial(2, 1.0, 0.5), lambda a, b: (0.5 * a @ b.T + 1.0) ** 2),
    (Polynomial(3, 0.3, 0.4), lambda a, b: (0.4 * a @ b.T + 0.3) ** 3),
    (RBF(0.7), lambda a, b: np.exp(-0.7 * ((a[:, None] - b[None]) ** 2).sum(2))),
    (lambda a, b: torch.exp(-torch.cdist(a, b, p=1)), lambda a, b: np.exp(-np.abs(a[:, None] - b[None]).sum(2))),
]


def explicit(problem: Listing, kernel: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Listing:
    """Features whose inner products are the kernel's, from its matrix over all tokens."""
    tokens = np.concatenate(problem.x)
    values, vectors = np.linalg.eigh(kernel(tokens, tokens))
    assert values[0] > -1e-9 * values[-1]
    mapped = vectors * np.sqrt(np.clip(values, 0.0, None))
    x = np.split(mapped, np.cumsum([len(rows) for rows in problem.x])[:-1])
    return Listing(x, problem.y, problem.states, problem.chain, problem.bias, problem.boundary)


def held_objective(problem: Listing, head: Any, lam: float, kernel: Callable[[np.ndarray, np.ndarray], Any]) -> float:
    """``lam/2 |w|^2`` plus the mean hinge of what the head holds: its support tokens and its explicit weights."""
    support, coefficients = head.support.numpy(), head.coefficients.numpy()
    weights = {name: p.detach().numpy() for name, p in head.linear.named_parameters()}
    norm = float((coefficients * (kernel(support, support) @ coefficients)).sum())
    norm += sum(float((correct**2).sum()) for correct in weights.values())
    hinges = 0.0
    for i in range(problem.n):
        scores = kernel(problem.x[i], support) @ coefficients  # [T, K]

        def score(output: tuple[int, ...], scores: np.ndarray = scores) -> float:
            total = sum(scores[t, k] for t, k in enumerate(output))
            if "bias" in weights:
                total += weights["bias"][list(output)].sum()
            if "start_transitions" in weights:
                total += weights["start_transitions"][output[0]] + weights["end_transitions"][output[-1]]
            return total + sum(weights["transition"][pair] for pair in pairwise(output))

        correct = score(tuple(problem.y[i]))
        hinges += max(problem.loss(i, output) + score(output) - correct for output in problem.outputs(i))
    return lam / 2 * norm + hinges / problem.n


def model(problem: Listing, kernel: Any) -> Any:
    width, states = problem.x[0].shape[1], problem.states
    if problem.chain:
        return KernelChain(kernel, width, states, bias=problem.bias, boundary=problem.boundary).double()
    return KernelMulticlass(kernel, width, states, bias=problem.bias).double()


@pytest.mark.parametrize(
    "portion", [0, 1, *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, PROBLEMS // PORTION))]
)
def test_certificates_of_kernel_models(portion):
    for seed in range(PORTION * portion, PORTION * (portion + 1)):
        random = rng(seed)
        draw = lambda most: int(torch.randint(0, most, (), generator=random))  # noqa: B023, E731
        problem = listing(seed, chain=seed % 2 == 0, n=1 + draw(4), states=2 + draw(2))
        kernel, written = KERNELS[seed % len(KERNELS)]
        lam = 0.01 * 200.0 ** float(torch.rand((), generator=random))  # 0.01 to 2
        x, y, lengths = problem.tensors()
        svm = KernelSSVM(model(problem, kernel), x, y, lengths, lam=lam, sweeps=[0, 1, 5][draw(3)])
        below, above = optimum_between(explicit(problem, written).reference(lam))
        rounding = 1e-9 * (1.0 + 1.0 / lam)
        value = 0.0
        for step in range(1, 13):
            svm.visit(torch.randint(0, problem.n, (1 + draw(4),), generator=random))
            assert svm.dual.value() >= value - rounding, f"problem {seed}, step {step}: the dual fell"
            value = svm.dual.value()
            if step not in (1, 5, 12):
                continue
            proof = svm.certify()
            assert proof.exact
            assert proof.primal - proof.dual == proof.gap
            assert proof.dual <= above + rounding, f"problem {seed}, step {step}: {proof}, optimum <= {above}"
            assert proof.primal >= below - rounding, f"problem {seed}, step {step}: {proof}, optimum >= {below}"
            assert proof.dual == pytest.approx(value, abs=rounding)
            primal = held_objective(problem, svm.update_head(), lam, written)
            assert proof.primal == pytest.approx(primal, abs=rounding), f"problem {seed}, step {step}"
        assert value > 0.0
