from __future__ import annotations

import torch
from problems import rng

from torchssvm import DecisionProblems, Decisions, LinearDecisions, Relative, ShortestPath, Situations, evaluate, solve


def road_costs(x, num_arcs, seed=0, noise=0.5, degree=2):
    """Costs that are polynomials of linear functions of the features, times noise: [Elmachtoub and Grigas 2022]."""
    random = rng(seed)
    through = torch.randint(0, 2, (x.shape[1], num_arcs), generator=random).double()
    costs = ((x.double() @ through) / x.shape[1] ** 0.5 + 3.0).pow(degree) / 3.5**degree + 1.0
    return costs * (1.0 - noise + 2.0 * noise * torch.rand(costs.shape, generator=random, dtype=torch.float64))


def test_shortest_paths_are_trained_to_a_certified_gap():
    structure = Decisions(ShortestPath.grid(4, 4))
    x = torch.randn(60, 5, generator=rng(1))
    problems = DecisionProblems(x, road_costs(x, 24), structure)
    head = LinearDecisions(5, structure=structure)
    before = evaluate(head, structure, problems).loss
    certificate = solve(head, problems, lam=0.1, tolerance=Relative(0.01))
    assert certificate.exact
    assert certificate.gap <= 0.01 * certificate.primal
    assert evaluate(head, structure, problems).loss < 0.7 * before


def test_known_costs_are_the_same_problem_as_predicting_all():
    """A head for all costs, whose weights are moved by a known solution, against costs known in part."""
    structure = Decisions(ShortestPath.grid(3, 3))
    x = torch.randn(40, 4, generator=rng(2))
    costs = road_costs(x, 12)
    anchor = torch.linalg.lstsq(x.double(), costs).solution.T  # [D, F]
    problems = DecisionProblems(Situations(x, fixed=x.double() @ anchor.T), costs, structure)
    head = LinearDecisions(4, structure=structure, bias=False).double()
    certificate = solve(head, problems, lam=10.0, tolerance=Relative(1e-6))
    whole = LinearDecisions(4, structure=structure, bias=False).double()
    whole.weight.data = head.weight.data + anchor
    plain = DecisionProblems(x, costs, structure)
    assert evaluate(whole, structure, plain).loss == evaluate(head, structure, problems).loss
    c_hat, y = x.double() @ whole.weight.detach().T, problems.target.y.double()
    spo = torch.stack([(z * (costs - 2 * c_hat)).sum(1) for z in map(torch.as_tensor, structure.oracle.decisions())])
    spo = spo.amax(0) + (2 * c_hat * y - costs * y).sum(1)
    primal = spo.mean() + 5.0 * head.weight.detach().square().sum()
    torch.testing.assert_close(primal, torch.tensor(certificate.primal, dtype=torch.float64), rtol=1e-6, atol=1e-9)
