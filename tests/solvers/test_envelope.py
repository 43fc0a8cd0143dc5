"""The envelope gradient against finite differences of the certified optimum."""

from __future__ import annotations

import pytest
import torch
from problems import chain, multiclass, rng

from torchssvm import Batch, CacheOracle, CompiledBCFW, Corrective, DualState, Labelings, MeanParts
from torchssvm.core.batch import apply_head
from torchssvm.lightning.alternate import envelope


def features_of(problem, matrix: torch.Tensor) -> Batch:
    return Batch(torch.tanh(problem.x @ matrix), problem.y, torch.arange(problem.n), problem.lengths)


def optimum(problem, matrix: torch.Tensor, storage) -> tuple[float, DualState]:
    """The middle of primal and dual of a head that is solved on these features."""
    with torch.no_grad():
        batch = features_of(problem, matrix)
        for p in problem.head.parameters():
            p.zero_()
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=storage)
    if isinstance(storage, Labelings):
        loop = CompiledBCFW(problem.head, dual, [batch], direction=Corrective(), oracle=CacheOracle())
        found = loop.solve(1e-10, max_passes=5000)
    else:
        found = CompiledBCFW(problem.head, dual, [batch]).solve(2e-5, max_passes=20000)
    return (found.primal + found.dual) / 2, dual


@pytest.mark.parametrize("kind", [chain, multiclass])
@pytest.mark.parametrize("storage", [Labelings, MeanParts])
def test_it_predicts_the_change_of_the_certified_optimum(kind, storage):
    problem = kind(2, n=8, lam=1.0)
    matrix = torch.randn(problem.x.shape[-1], problem.x.shape[-1], generator=rng(0), dtype=torch.float64)
    value, dual = optimum(problem, matrix, storage())
    moving = matrix.clone().requires_grad_()
    batch = features_of(problem, moving)
    weights = [p.requires_grad_(False) for p in problem.head.parameters()]
    halves = []
    for rows in (torch.arange(3), torch.arange(3, problem.n)):  # batches add up
        part = Batch(batch.x[rows], batch.y[rows], rows, None if batch.lengths is None else batch.lengths[rows])
        halves.append(envelope(dual, apply_head(problem.head, part), part))
    found = sum(halves)
    squares = float(sum(w.square().sum() for w in weights))
    accuracy = 1e-6 if storage is Labelings else 1e-3
    assert float(found.detach()) == pytest.approx(value - problem.lam / 2 * squares, abs=accuracy)
    found.backward()
    for p in problem.head.parameters():
        p.requires_grad_(True)
    direction = moving.grad / moving.grad.norm()
    step = 1e-3 if storage is Labelings else 3e-2
    change = [optimum(problem, matrix + sign * step * direction, storage())[0] for sign in (1, -1)]
    observed = (change[0] - change[1]) / (2 * step)
    assert float(moving.grad.norm()) == pytest.approx(observed, rel=0.01 if storage is Labelings else 0.1)


def test_it_needs_a_target_that_fits():
    problem = multiclass(0)
    value, dual = optimum(problem, torch.eye(3, dtype=torch.float64), Labelings())
    assert value > 0.0
    batch = problem.batch([0, 1])
    with pytest.raises(ValueError, match="label 9"):
        envelope(dual, problem.head(batch.x), batch.replace(y=torch.tensor([9, 9])))
