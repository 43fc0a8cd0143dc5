"""Factor graphs written out, and what GDMM must do on them; nothing here calls a structure or a kernel.

A variable is a token or a label, a factor ties two variables of one example. Distributions are tables; weights, the
augmented Lagrangian and the optimum of the relaxed problem follow from their definitions.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import qpsolvers
import scipy.optimize
import scipy.sparse
import torch
from torch import Tensor, nn

from torchssvm import Batch, SparseFeatures
from torchssvm.core.batch import apply_head
from torchssvm.structures.common import WeightedLabels

_EXACT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass
class Task:
    """A training set and its head; features dense or lists, chains with lengths and label sets without."""

    head: Any
    x: Any
    y: Any
    lengths: Tensor | None
    lam: float
    n: int

    def batch(self, rows: Sequence[int] | Tensor) -> Batch:
        index = torch.as_tensor(rows, dtype=torch.int64)
        x, y = self.x, self.y
        longest = None if self.lengths is None else int(self.lengths[index].max())

        def part(tensor: Tensor) -> Tensor:
            return tensor[index] if longest is None else tensor[index, :longest]

        if isinstance(x, SparseFeatures):
            x = SparseFeatures(part(x.columns), None if x.values is None else part(x.values))
        else:
            x = part(x)
        y = WeightedLabels(part(y.labels), part(y.weights)) if isinstance(y, WeightedLabels) else part(y)
        return Batch(x, y, index, None if self.lengths is None else self.lengths[index])

    def everything(self, size: int = 2) -> list[Batch]:
        return [self.batch(rows) for rows in torch.arange(self.n).split(size)]

    def copy(self) -> Task:
        return Task(copy.deepcopy(self.head), self.x, self.y, self.lengths, self.lam, self.n)

    def potentials(self) -> list[dict[str, np.ndarray]]:
        """For each weight of the head the potentials that it alone makes, if it is 1."""
        head = copy.deepcopy(self.head)
        parameters = list(head.parameters())
        size, results = sum(p.numel() for p in parameters), []
        whole = self.batch(range(self.n))
        with torch.no_grad():
            for j in range(size):
                nn.utils.vector_to_parameters(torch.eye(size, dtype=parameters[0].dtype)[j], parameters)
                tensors = apply_head(head, whole).tensors
                results.append({name: t.double().numpy().copy() for name, t in tensors.items()})
        return results


@dataclass
class Variable:
    """One with the labels 0 to A - 1. ``phi`` is ``[A, d]``, ``cost`` ``[A]``."""

    example: int
    target: int
    cost: np.ndarray
    phi: np.ndarray


@dataclass
class Factor:
    """Ties two variables, numbered. ``phi`` is ``[A, B, d]``; ``counted`` ``[A]``: labels whose mass must agree."""

    example: int
    left: int
    right: int
    phi: np.ndarray
    counted: np.ndarray


@dataclass
class Duals:
    """Tables of all variables and factors; of factors that are there, multipliers of both sides."""

    variables: list[np.ndarray]
    factors: list[np.ndarray | None]
    multipliers: list[tuple[np.ndarray, np.ndarray] | None] = field(default_factory=list)


@dataclass
class FactorGraph:
    variables: list[Variable]
    factors: list[Factor]
    lam: float
    n: int

    def target(self, factor: Factor) -> tuple[int, int]:
        return self.variables[factor.left].target, self.variables[factor.right].target

    def weights(self, duals: Duals) -> np.ndarray:
        """``w = (1/(lam n)) sum_f Phi_f^T (e_y - pi_f)``; a factor without a table has its mass on the target."""
        total = np.zeros(self.variables[0].phi.shape[-1])
        for variable, mass in zip(self.variables, duals.variables, strict=True):
            total += variable.phi[variable.target] - mass @ variable.phi
        for factor, mass in zip(self.factors, duals.factors, strict=True):
            if mass is not None:
                total += factor.phi[self.target(factor)] - np.einsum("ab,abd->d", mass, factor.phi)
        return total / (self.lam * self.n)

    def loss(self, duals: Duals) -> float:
        return sum(float(v.cost @ mass) for v, mass in zip(self.variables, duals.variables, strict=True)) / self.n

    def dual(self, duals: Duals) -> float:
        w = self.weights(duals)
        return self.loss(duals) - self.lam / 2 * float(w @ w)

    def excesses(self, duals: Duals, place: int) -> tuple[np.ndarray, np.ndarray]:
        """``M pi_f - pi_j`` of both sides."""
        factor, mass = self.factors[place], duals.factors[place]
        assert mass is not None
        left, right = duals.variables[factor.left], duals.variables[factor.right]
        return (mass.sum(1) - left) * factor.counted, (mass.sum(0) - right) * factor.counted

    def lagrangian(self, duals: Duals, rho: float) -> float:
        """The augmented Lagrangian times n, with rho and multipliers times n."""
        total = -self.n * self.dual(duals)
        for place, mass in enumerate(duals.factors):
            for excess, stored in zip(
                self.excesses(duals, place) if mass is not None else (), duals.multipliers[place] or (), strict=False
            ):
                total += float(stored @ excess) + rho / 2 * float(excess @ excess)
        return total

    @functools.cached_property
    def _polytope(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """``A mu = b`` of the local polytope, and where each table begins in mu."""
        sizes = [len(v.cost) for v in self.variables] + [f.phi.shape[0] * f.phi.shape[1] for f in self.factors]
        start = np.concatenate([[0], np.cumsum(sizes)])
        entries: list[tuple[int, int, float]] = []  # rows, columns and values of A
        right: list[float] = []
        for j in range(len(self.variables)):
            entries += [(len(right), column, 1.0) for column in range(start[j], start[j + 1])]
            right.append(1.0)
        for place, factor in enumerate(self.factors):
            begin = start[len(self.variables) + place]
            table = begin + np.arange(factor.phi.shape[0] * factor.phi.shape[1]).reshape(factor.phi.shape[:2])
            for variable, lines in ((factor.left, table), (factor.right, table.T)):
                for label, line in enumerate(lines.tolist()):
                    entries += [(len(right), column, 1.0) for column in line]
                    entries.append((len(right), int(start[variable]) + label, -1.0))
                    right.append(0.0)
        rows, columns, values = zip(*entries, strict=True)
        matrix = scipy.sparse.csc_matrix((values, (rows, columns)), shape=(len(right), start[-1]))
        return matrix, np.array(right), start

    @functools.cached_property
    def _features(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features ``[M, d]`` and costs ``[M]`` of all entries, and the features of the targets ``[d]``."""
        size = self.variables[0].phi.shape[-1]
        phi = np.concatenate([t.phi.reshape(-1, size) for t in (*self.variables, *self.factors)])
        cost = np.zeros(len(phi))
        stored = np.concatenate([v.cost for v in self.variables])
        cost[: len(stored)] = stored
        true = sum(v.phi[v.target] for v in self.variables) + sum(f.phi[self.target(f)] for f in self.factors)
        return phi, cost, np.asarray(true)

    def hinges(self, w: np.ndarray) -> float:
        """Sum of the structured hinges of the linear program."""
        matrix, right, _ = self._polytope
        phi, cost, true = self._features
        result = scipy.optimize.linprog(-(phi @ w + cost), A_eq=matrix, b_eq=right, bounds=(0, None), options=_EXACT)
        assert result.status == 0
        return -result.fun - float(true @ w)

    def primal(self, w: np.ndarray) -> float:
        return self.lam / 2 * float(w @ w) + self.hinges(w) / self.n

    def optimum(self) -> float:
        """Of the structural SVM with the oracle relaxed to the local polytope, which on a chain is the SVM itself."""
        matrix, right, start = self._polytope
        phi, cost, true = self._features
        result = qpsolvers.solve_qp(
            P=scipy.sparse.csc_matrix(phi @ phi.T / self.lam / self.n),
            q=-phi @ true / self.lam / self.n - cost,
            A=matrix,
            b=right,
            lb=np.zeros(start[-1]),
            solver="clarabel",
            tol_gap_abs=1e-10,
            tol_gap_rel=1e-10,
            tol_feas=1e-10,
        )
        assert result is not None
        w = (true - result @ phi) / (self.lam * self.n)
        value = float(cost @ result) / self.n - self.lam / 2 * float(w @ w)
        assert abs(self.primal(w) - value) < 1e-6, "the reference itself is not solved"
        return value


def chain_task(
    seed: int,
    *,
    n: int = 4,
    states: int = 3,
    longest: int = 3,
    features: int = 2,
    lam: float = 0.1,
    bias: bool = True,
    boundary: bool = True,
    sparse: bool = False,
    weighted: bool = False,
    class_weight: bool = False,
    normalize: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Task:
    """Chains of 1 to ``longest`` tokens; lists of features hold columns twice and none."""
    from torchssvm import Chain, LinearChain, SparseLinearChain

    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=random)
    lengths[0] = longest
    real = torch.arange(longest) < lengths.unsqueeze(1)
    y = torch.randint(0, states, (n, longest), generator=random).masked_fill(~real, -1)
    costs = torch.rand(states, generator=random, dtype=torch.float64) + 0.5
    structure = Chain(states, normalize=normalize, class_weight=costs if class_weight else None)
    target: Any = y
    if weighted:
        target = WeightedLabels(y, torch.rand(n, longest, generator=random, dtype=torch.float64) * 2.0 * real)
    x: Any
    if sparse:
        columns = torch.randint(-1, features, (n, longest, 3), generator=random)
        values = torch.randn(n, longest, 3, generator=random, dtype=torch.float64).to(dtype)
        x = SparseFeatures(columns.masked_fill(~real.unsqueeze(2), -1), values)
        head: Any = SparseLinearChain(features, states, bias=bias, boundary=boundary, structure=structure)
    else:
        x = torch.randn(n, longest, features, generator=random, dtype=torch.float64).to(dtype) * real.unsqueeze(2)
        head = LinearChain(features, states, bias=bias, boundary=boundary, structure=structure)
    return Task(head.to(dtype), x, target, lengths, lam, n)


def chain_graph(task: Task) -> FactorGraph:
    alone = task.potentials()
    emission = np.stack([t["emission"] for t in alone], -1)  # [n, N, K, d]
    transition = np.stack([t["transition"] for t in alone], -1)  # [n, K, K, d]
    structure, states = task.head.structure, emission.shape[2]
    labels = task.y.labels if isinstance(task.y, WeightedLabels) else task.y
    graph = FactorGraph([], [], task.lam, task.n)
    for i, length in enumerate(task.lengths.tolist()):  # type: ignore[union-attr]
        for t in range(length):
            y = int(labels[i, t])
            cost = 1.0 if not isinstance(task.y, WeightedLabels) else float(task.y.weights[i, t])
            if structure.class_weight is not None:
                cost *= float(structure.class_weight[y])
            if structure.normalize:
                cost /= length
            wrong = np.full(states, cost)
            wrong[y] = 0.0
            if t > 0:
                here = len(graph.variables)
                graph.factors.append(Factor(i, here - 1, here, transition[i], np.ones(states)))
            graph.variables.append(Variable(i, y, wrong, emission[i, t]))
    return graph


def label_set_task(
    seed: int,
    *,
    n: int = 4,
    labels: int = 3,
    features: int = 2,
    lam: float = 0.1,
    bias: bool = True,
    sparse: bool = False,
    weighted: bool = False,
    normalize: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Task:
    """Label sets of which two labels come together and two do not."""
    from torchssvm import LinearMultilabel, Multilabel, SparseLinearMultilabel

    random = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n, labels), generator=random)
    alike, apart = (torch.rand(2, n, generator=random) < 0.7).unbind()
    if labels > 1:
        y[:, 1] = torch.where(alike, y[:, 0], y[:, 1])
    if labels > 2:
        y[:, 2] = torch.where(apart, 1 - y[:, 0], y[:, 2])
    costs = torch.rand(labels, generator=random, dtype=torch.float64) + 0.5
    structure = Multilabel(labels, normalize=normalize, weights=costs if weighted else None)
    x: Any
    if sparse:
        values = torch.randn(n, 3, generator=random, dtype=torch.float64).to(dtype)
        x = SparseFeatures(torch.randint(-1, features, (n, 3), generator=random), values)
        head: Any = SparseLinearMultilabel(features, labels, bias=bias, structure=structure)
    else:
        x = torch.randn(n, features, generator=random, dtype=torch.float64).to(dtype)
        head = LinearMultilabel(features, labels, bias=bias, structure=structure)
    return Task(head.to(dtype), x, y, None, lam, n)


def label_set_graph(task: Task) -> FactorGraph:
    alone = task.potentials()
    unary = np.stack([t["unary"] for t in alone], -1)  # [n, K, d]
    pairwise = np.stack([t["pairwise"] for t in alone], -1)  # [n, P, d]
    structure, labels = task.head.structure, unary.shape[1]
    costs = np.ones(labels) if structure.weights is None else structure.weights.double().numpy()
    if structure.normalize:
        costs = costs / costs.sum()
    graph = FactorGraph([], [], task.lam, task.n)
    for i in range(task.n):
        first = len(graph.variables)
        for k in range(labels):
            y = int(task.y[i, k])
            cost = np.array([costs[k] * (y != 0), costs[k] * (y != 1)])
            graph.variables.append(Variable(i, y, cost, np.stack([0.0 * unary[i, k], unary[i, k]])))
        pair = 0
        for a in range(labels):
            for b in range(a + 1, labels):
                phi = np.zeros((2, 2, unary.shape[-1]))
                phi[1, 1] = pairwise[i, pair]
                graph.factors.append(Factor(i, first + a, first + b, phi, np.array([0.0, 1.0])))
                pair += 1
    return graph
