"""Training within bounds, and what it must find: by a QP solver on the primal."""

from __future__ import annotations

from typing import Any

import numpy as np
import qpsolvers
import torch

from cases.problems import Problem, Reference, Training, flat
from torchssvm import BCFW
from torchssvm.core.batch import apply_head

Bounds = dict[str, tuple[Any, Any]]


def groups_of(head: torch.nn.Module, bounds: Bounds) -> list[dict[str, Any]]:
    results = []
    for name, parameter in head.named_parameters():
        lower, upper = bounds.get(name, (None, None))
        options = {key: bound for key, bound in (("lower", lower), ("upper", upper)) if bound is not None}
        results.append({"params": [parameter], **options})
    return results


class Bounded(Training):
    """The plain torch loop, with bounds by the parameters' names."""

    def __init__(self, problem: Problem, bounds: Bounds, *, line_search: Any = None, **options: Any) -> None:
        super().__init__(problem, **options)
        self.bounds = bounds
        self.optim = BCFW(groups_of(problem.head, bounds), self.dual, line_search=line_search)

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        return limits(self.problem, self.bounds)

    def unclipped(self) -> torch.Tensor:
        return flat(self.dual.unclipped)

    def recomputed(self) -> np.ndarray:
        """v from the blocks alone, float64."""
        batch = self.problem.batch(range(self.problem.n))
        potentials, storage = apply_head(self.head, batch), self.dual.storage
        return flat(storage.contribution(storage.gather(batch.index, potentials, batch.y), potentials)).double().numpy()

    def explicit_dual(self) -> float:
        """The dual value of the blocks, straight from the Lagrangian."""
        return box_dual(self.recomputed(), float(self.dual.loss.sum()), self.problem.lam, *self.limits())


def limits(problem: Problem, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    sides = []
    for side, missing in ((0, -np.inf), (1, np.inf)):
        pieces = []
        for name, parameter in problem.head.named_parameters():
            bound = bounds.get(name, (None, None))[side]
            bound = torch.as_tensor(missing if bound is None else bound, dtype=torch.float64)
            pieces.append(bound.expand(parameter.shape).flatten().numpy())
        sides.append(np.concatenate(pieces))
    return sides[0], sides[1]


def box_dual(v: np.ndarray, loss: float, lam: float, lower: np.ndarray, upper: np.ndarray) -> float:
    """min over w in the box of lam/2 |w|^2 - lam <v, w>, plus the losses; weight by weight, at its three candidates."""
    candidates = np.stack([np.where(np.isfinite(lower), lower, v), np.where(np.isfinite(upper), upper, v), v])
    allowed = (candidates >= lower) & (candidates <= upper)
    values = np.where(allowed, lam / 2 * candidates**2 - lam * v * candidates, np.inf)
    return loss + float(values.min(0).sum())


def optimum_within(truth: Reference, lower: np.ndarray, upper: np.ndarray) -> tuple[float, np.ndarray]:
    """Value and weights of the primal QP over (w, slacks), with the solver's multipliers as its certificate."""
    d, n = truth.changes[0].shape[1], truth.n
    small = 1e-9  # quadprog wants a definite matrix; the value is evaluated without it
    rows = np.concatenate(truth.changes)
    owner = np.repeat(np.eye(n), [len(losses) for losses in truth.losses], axis=0)
    result = qpsolvers.solve_problem(
        qpsolvers.Problem(
            P=np.diag(np.concatenate([np.full(d, truth.lam), np.full(n, small)])),
            q=np.concatenate([np.zeros(d), np.full(n, 1.0 / n)]),
            G=np.hstack([rows, -owner]),
            h=-np.concatenate(truth.losses),
            lb=np.concatenate([lower, np.full(n, -1e6)]),
            ub=np.concatenate([upper, np.full(n, 1e6)]),
        ),
        solver="quadprog",
    )
    assert result.x is not None
    w = np.clip(result.x[:d], lower, upper)
    value = truth.primal(w)
    weights = np.clip(result.z, 0.0, None)
    alphas = [a / a.sum() for a in np.split(weights, np.cumsum([len(losses) for losses in truth.losses])[:-1])]
    loss = sum(float(a @ losses) for a, losses in zip(alphas, truth.losses, strict=True)) / n
    assert value - box_dual(truth.weights(alphas), loss, truth.lam, lower, upper) < 1e-7, "the reference is not solved"
    return value, w
