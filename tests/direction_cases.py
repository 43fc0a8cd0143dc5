"""What every direction must be: inherit ``DirectionTestCase``, say how to make the rule, get the tests."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import PROBLEMS, Problem, Reference, examples, reference, rng, unpadded
from scipy.optimize import linprog

from torchssvm.batch import apply_head
from torchssvm.directions import Direction, DirectionRule
from torchssvm.structures import Corner, find_corner

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from(sorted(PROBLEMS))


class DirectionTestCase(ABC):
    """Random weights and a random explicit dual distribution of every block."""

    @abstractmethod
    def make_rule(self) -> DirectionRule: ...

    def setting(self, seed: int, kind: str, sparse: bool) -> tuple[Problem, Reference, list[np.ndarray], np.ndarray]:
        problem = PROBLEMS[kind](seed, n=3)
        truth = reference(problem)
        random = rng(seed)
        alphas = []
        for losses in truth.losses:
            weights = torch.rand(len(losses), generator=random, dtype=torch.float64)
            if sparse:
                weights = weights * (torch.arange(len(losses)) == int(torch.randint(0, len(losses), ())))
                weights[0] += 1e-3
            alphas.append((weights / weights.sum()).numpy())
        return problem, truth, alphas, truth.weights(alphas)

    def directions(self, problem: Problem, w: np.ndarray) -> tuple[Direction, Corner]:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(w), problem.head.parameters())
        batch = problem.batch(range(problem.n))
        potentials = apply_head(problem.head, batch)
        target = problem.structure.check_target(batch.y, potentials)
        corner = find_corner(problem.structure, potentials, target)
        return self.make_rule()(corner, problem.n), corner

    def explicit(self, problem: Problem, direction: Direction, truth: Reference, alphas: list[np.ndarray], i: int):
        """Delta_i without padding, the value of psi_i, and the change of l_i, all relative to the target."""
        length = None if problem.lengths is None else int(problem.lengths[i])
        psi = -alphas[i] @ truth.parts[i]
        decay = 1.0 if direction.decay is None else float(direction.decay[i])
        parts = unpadded(direction.parts, i, length, shared=True)
        loss = alphas[i] @ truth.losses[i] / truth.n
        return parts + decay * psi, psi, float(direction.loss[i]) - decay * loss

    @examples(15)
    @given(seed=SEEDS, kind=KINDS, sparse=st.booleans())
    def test_every_step_up_to_1_is_feasible(self, seed, kind, sparse):
        """Some distribution over the outputs has these mean parts and this mean loss."""
        problem, truth, alphas, w = self.setting(seed, kind, sparse)
        direction, _ = self.directions(problem, w)
        for i in range(problem.n):
            delta, psi, change = self.explicit(problem, direction, truth, alphas, i)
            held = alphas[i] @ truth.losses[i] / truth.n
            for gamma in (0.0, 0.3, 1.0):
                wanted = np.concatenate([-psi + gamma * delta, [truth.n * (held + gamma * change), 1.0]])
                matrix = np.concatenate([truth.parts[i].T, truth.losses[i][None], np.ones((1, len(alphas[i])))])
                found = linprog(np.zeros(len(alphas[i])), A_eq=matrix, b_eq=wanted, bounds=(0, None))
                assert found.status == 0, f"example {i}, gamma {gamma}: {found.message}"

    @examples(15)
    @given(seed=SEEDS, kind=KINDS, sparse=st.booleans())
    def test_the_slope_is_the_derivative_of_the_dual(self, seed, kind, sparse):
        problem, truth, alphas, w = self.setting(seed, kind, sparse)
        direction, _ = self.directions(problem, w)
        matrices = self.linear_maps(problem)
        for i in range(problem.n):
            delta, psi, change = self.explicit(problem, direction, truth, alphas, i)
            decay = 1.0 if direction.decay is None else float(direction.decay[i])
            slope = float(direction.slopes[i]) + decay * psi @ matrices[i] @ w / truth.n + change
            losses = [a @ b / truth.n for a, b in zip(alphas, truth.losses, strict=True)]

            def dual(gamma, i=i, delta=delta, change=change, losses=losses):
                moved = w - gamma * delta @ matrices[i] / (truth.lam * truth.n)
                return sum(losses) + gamma * change - truth.lam / 2 * moved @ moved

            assert slope == pytest.approx((dual(0.5) - dual(-0.5)), abs=1e-9)  # exact: the dual is quadratic
            assert slope >= -1e-12

    def linear_maps(self, problem: Problem) -> list[np.ndarray]:
        """Phi_i of every example, ``[p_i, d]``."""
        parameters = list(problem.head.parameters())
        size = sum(p.numel() for p in parameters)
        columns = []
        batch = problem.batch(range(problem.n))
        with torch.no_grad():
            for j in range(size):
                torch.nn.utils.vector_to_parameters(torch.eye(size, dtype=torch.float64)[j], parameters)
                tensors = apply_head(problem.head, batch).tensors
                lengths = [None] * problem.n if problem.lengths is None else problem.lengths.tolist()
                columns.append([unpadded(tensors, i, lengths[i], shared=True) for i in range(problem.n)])
        return [np.stack([column[i] for column in columns], 1) for i in range(problem.n)]
