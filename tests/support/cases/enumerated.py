"""Tiny problems with all outputs listed, and where their optimum lies: numpy, a QP solver, nothing of the package."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import qpsolvers
import torch
from scipy import sparse
from torch import Tensor

from cases.bounded import box_dual
from cases.problems import Problem, Reference, rng
from torchssvm import LinearChain, LinearMulticlass

SOLVED = 1e-6  # what the QP solver must prove of its own solution


@dataclass
class Listing:
    """A training set of single labels (``longest`` is 0) or of chains.

    Attributes:
        x: For each example ``[T, F]``, one row for a single label.
        y: For each example its T labels.
        states: K.
        chain: Whether neighbours are scored.
        bias: Whether every state has a bias.
        boundary: Whether the ends of a chain have biases of their own.
    """

    x: list[np.ndarray]
    y: list[list[int]]
    states: int
    chain: bool
    bias: bool = True
    boundary: bool = True

    @property
    def n(self) -> int:
        return len(self.x)

    def outputs(self, i: int) -> list[tuple[int, ...]]:
        return list(itertools.product(range(self.states), repeat=len(self.y[i])))

    def loss(self, i: int, output: tuple[int, ...]) -> float:
        """The share of wrong labels."""
        return sum(a != b for a, b in zip(output, self.y[i], strict=True)) / len(output)

    def features(self, i: int, output: tuple[int, ...]) -> np.ndarray:
        """phi(x_i, y), in the order of the heads' parameters."""
        one = np.eye(self.states)[list(output)]  # [T, K]
        pieces = [one.T @ self.x[i]]
        if self.chain:
            pieces.append(one[:-1].T @ one[1:])
        if self.bias:
            pieces.append(one.sum(0))
        if self.chain and self.boundary:
            pieces += [one[0], one[-1]]
        return np.concatenate([piece.ravel() for piece in pieces])

    def reference(self, lam: float) -> Reference:
        truth = Reference([], [], [], lam)
        for i in range(self.n):
            target = self.features(i, tuple(self.y[i]))
            truth.losses.append(np.array([self.loss(i, output) for output in self.outputs(i)]))
            truth.changes.append(np.stack([self.features(i, output) - target for output in self.outputs(i)]))
        return truth

    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, y and lengths, padded, as the heads take them."""
        if not self.chain:
            return torch.from_numpy(np.concatenate(self.x)), torch.tensor([y for (y,) in self.y]), None
        lengths = torch.tensor([len(target) for target in self.y])
        x = torch.zeros(self.n, int(lengths.max()), self.x[0].shape[1], dtype=torch.float64)
        y = torch.full(x.shape[:2], -1)
        for row, (features, labels) in enumerate(zip(self.x, self.y, strict=True)):
            x[row, : len(labels)], y[row, : len(labels)] = torch.from_numpy(features), torch.tensor(labels)
        return x, y, lengths


def listing(seed: int, *, chain: bool, n: int, states: int, features: int = 2, longest: int = 3) -> Listing:
    """A random one; the chains' lengths differ."""
    random = rng(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=random).tolist() if chain else [1] * n
    x = [torch.randn(size, features, generator=random, dtype=torch.float64).numpy() for size in lengths]
    y = [torch.randint(0, states, (size,), generator=random).tolist() for size in lengths]
    bias, boundary = (bool(torch.rand((), generator=random) < 0.7) for _ in range(2))
    return Listing(x, y, states, chain, bias, boundary)


def linear_problem(problem: Listing, lam: float) -> Problem:
    """The same under the package's linear head, float64."""
    width, states = problem.x[0].shape[1], problem.states
    if problem.chain:
        head: torch.nn.Module = LinearChain(width, states, bias=problem.bias, boundary=problem.boundary)
    else:
        head = LinearMulticlass(width, states, bias=problem.bias)
    return Problem(head.double(), *problem.tensors(), lam)


def optimum_between(
    truth: Reference, lower: np.ndarray | None = None, upper: np.ndarray | None = None
) -> tuple[float, float]:
    """A lower and an upper bound of the optimum, each proved by a point: the QP solver's weights and multipliers."""
    d, n = truth.changes[0].shape[1], truth.n
    lower = np.full(d, -np.inf) if lower is None else lower
    upper = np.full(d, np.inf) if upper is None else upper
    sizes = [len(losses) for losses in truth.losses]
    owner = np.repeat(np.eye(n), sizes, axis=0)
    low, high = np.isfinite(lower).nonzero()[0], np.isfinite(upper).nonzero()[0]
    weights = np.eye(d, d + n)  # of (w, slacks)
    solution = qpsolvers.solve_problem(
        qpsolvers.Problem(
            P=sparse.csc_matrix(np.diag(np.concatenate([np.full(d, truth.lam), np.zeros(n)]))),
            q=np.concatenate([np.zeros(d), np.full(n, 1.0 / n)]),
            G=sparse.csc_matrix(
                np.vstack([np.hstack([np.concatenate(truth.changes), -owner]), -weights[low], weights[high]])
            ),
            h=np.concatenate([-np.concatenate(truth.losses), -lower[low], upper[high]]),
        ),
        solver="clarabel",
    )
    assert solution.x is not None, "the QP solver failed"
    multipliers = np.split(np.clip(solution.z[: sum(sizes)], 0.0, None), np.cumsum(sizes)[:-1])
    alphas = [block / block.sum() for block in multipliers]
    loss = sum(float(a @ losses) for a, losses in zip(alphas, truth.losses, strict=True)) / n
    below = box_dual(truth.weights(alphas), loss, truth.lam, lower, upper)
    above = truth.primal(np.clip(solution.x[:d], lower, upper))
    assert below <= above + 1e-12
    assert above - below < SOLVED, "the QP is not solved"
    return below, above
