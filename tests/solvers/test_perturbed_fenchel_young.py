"""The perturbed loss against all outputs under the same noise, its gradient, and every kind of output."""

from __future__ import annotations

import pytest
import torch
from cases.compiled_kinds import ARCS, KINDS
from cases.problems import with_weights

from torchssvm import Decisions, PerturbedFenchelYoung
from torchssvm.core.batch import apply_head
from torchssvm.core.potentials import conform, inner
from torchssvm.structures.decisions import DecisionPotentials, Selection


@pytest.mark.parametrize("kind", ["multiclass", "chain"])
def test_it_is_the_mean_over_noise_of_the_best_of_all_outputs(kind):
    problem = with_weights(kind, 3)
    batch = problem.batch([0, 2, 3])
    potentials, structure = apply_head(problem.head, batch).detach(), problem.structure
    target = structure.check_target(batch.y, potentials)
    torch.manual_seed(7)
    value = PerturbedFenchelYoung(structure, sigma=0.7, samples=3)(potentials, batch.y)
    torch.manual_seed(7)
    first, expected = next(iter(potentials.tensors)), 0.0
    for _ in range(3):
        noisy = {**potentials.tensors, first: potentials[first] + 0.7 * torch.randn_like(potentials[first])}

        def score(y, noisy=noisy):
            return inner(conform(structure.parts(y), potentials, "parts"), noisy)

        best = torch.stack([score(y) for y in structure.enumerate(potentials)]).amax(0)
        expected += float((best - score(target)).mean()) / 3
    assert float(value) == pytest.approx(expected, abs=1e-9)


def test_its_gradient_is_that_of_its_values():
    problem = with_weights("chain", 5)
    batch, loss = problem.batch([0, 1, 3]), PerturbedFenchelYoung(problem.structure, sigma=0.5, samples=4)

    def value(x):
        torch.manual_seed(0)
        return loss(problem.head(x, batch.lengths), batch.y)

    assert torch.autograd.gradcheck(value, batch.x.clone().requires_grad_())


@pytest.mark.parametrize("kind", sorted(KINDS | ARCS))
def test_every_kind_trains_by_it(kind):
    problem = (KINDS | ARCS)[kind]()
    batch, loss = problem.batch(list(range(problem.n))), PerturbedFenchelYoung(problem.head.structure, 0.1, 4)
    adam = torch.optim.Adam(problem.head.parameters(), 0.02)

    def value():
        return loss(apply_head(problem.head, batch), batch.y)

    def measured():
        torch.manual_seed(0)
        return sum(float(value().detach()) for _ in range(10))

    before = measured()
    for _ in range(30):
        adam.zero_grad()
        value().backward()
        adam.step()
    assert measured() < before


def test_known_costs_count_in_the_value():
    structure = Decisions(Selection(4, 2))
    costs = torch.tensor([[1.0, 4.0, 2.0, 3.0]], dtype=torch.float64)
    target, loss = structure.target(costs), PerturbedFenchelYoung(structure, sigma=2.0)
    values = []
    for potentials in (DecisionPotentials(costs), DecisionPotentials(0.0 * costs, fixed=costs)):
        torch.manual_seed(1)
        values.append(float(loss(potentials, target)))
    assert values[0] > 0.0
    assert values[0] == pytest.approx(values[1])


@pytest.mark.parametrize("wrong", [{"sigma": 0.0}, {"sigma": float("nan")}, {"samples": 0}])
def test_doors(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PerturbedFenchelYoung(Decisions(Selection(4, 2)), **wrong)
