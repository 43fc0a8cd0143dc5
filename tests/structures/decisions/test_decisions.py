import numpy as np
import pytest
import torch
from cases.head_cases import HeadTestCase
from cases.problems import rng
from cases.structure_cases import StructureTestCase

from torchssvm import (
    CacheOracle,
    Decisions,
    FrankWolfe,
    Labelings,
    LinearDecisions,
    Pairwise,
    Relative,
    Solver,
    check,
    evaluate,
    in_order,
    make_trainer,
    solve,
)
from torchssvm.core.batch import tree_map
from torchssvm.core.decoding import as_decoding
from torchssvm.core.max_oracle import find_corner
from torchssvm.steps import MaxOracle
from torchssvm.structures.decisions import (
    Decision,
    DecisionOracle,
    DecisionPotentials,
    DecisionProblems,
    Knapsack,
    Selection,
    ShortestPath,
    Situations,
)


class DecisionsCase(StructureTestCase):
    def given(self, random, batch):
        return None

    def make_potentials(self, random, batch, integers, dtype):
        shape = batch, self.make_structure().num_costs
        costs = torch.randint(-2, 3, shape, generator=random) if integers else torch.randn(shape, generator=random)
        return DecisionPotentials(costs.to(dtype), given=self.given(random, batch))

    def random_target(self, structure, potentials, random):
        cost = torch.randint(-3, 4, potentials.single.shape, generator=random)
        return structure.target(cost, potentials.given)

    def one(self, labeling, potentials, row):
        return tree_map(lambda tensor: tensor[row], labeling)

    def alone(self, labeling, potentials, row):
        return tree_map(lambda tensor: tensor[row : row + 1], labeling)

    def reference_score(self, potentials, labeling):
        sign = 2.0 if self.make_structure().oracle.maximize else -2.0
        return sign * float(potentials["potentials"] @ labeling.to(potentials["potentials"].dtype))

    def reference_loss(self, structure, labeling, target):
        cost, best = (float(target.cost @ y.double()) for y in (labeling, target.y))
        return best - cost if structure.oracle.maximize else cost - best

    def count(self, structure, potentials, row):
        return len(structure.oracle.decisions(None if potentials.given is None else potentials.given[row].numpy()))

    def bad_targets(self, potentials, target):
        yield target.y, "target"
        yield Decision(target.y[:, 1:], target.cost), "target.y"
        yield Decision(target.y, target.cost[:2]), "target.cost"
        yield Decision(target.y, target.cost / 0.0), "target.cost"


class TestPaths(DecisionsCase):
    def make_structure(self):
        return Decisions(ShortestPath.grid(2, 3))


class TestKnapsacks(DecisionsCase):
    """Every example has a capacity of its own."""

    rechecked = False

    def make_structure(self):
        return Decisions(Knapsack([3, 1, 2, 2], capacity=4))

    def given(self, random, batch):
        return torch.randint(0, 9, (batch,), generator=random)

    def on(self, potentials, device):
        return DecisionPotentials(potentials.single.to(device), given=potentials.given.to(device))


class Sloppy(DecisionOracle):
    """A list of decisions, of which it finds a bad one now and then; its bound is too high by a tenth."""

    def __init__(self, oracle, seed=0):
        self.oracle, self.random = oracle, np.random.default_rng(seed)
        self.num_costs, self.maximize = oracle.num_costs, oracle.maximize

    def solve(self, costs, given=None, start=None):
        listed = self.oracle.decisions()
        y, value, _ = self.oracle.solve(costs)
        bad = self.random.random(len(costs)) < 0.3
        y[bad] = listed[self.random.integers(len(listed), size=int(bad.sum()))]
        return y, (y * costs).sum(1), value + (0.1 if self.maximize else -0.1)

    def decisions(self, given=None):
        return self.oracle.decisions(given)


@pytest.mark.parametrize("oracle", [ShortestPath.grid(3, 3), Selection(6, 2)], ids=["minimise", "maximise"])
def test_bounds_hold_and_the_target_replaces_what_is_worse(oracle):
    structure = Decisions(Sloppy(oracle))
    random = rng(0)
    costs = torch.randn(2000, oracle.num_costs, generator=random, dtype=torch.float64)
    potentials = DecisionPotentials(costs, fixed=torch.randn(costs.shape, generator=random, dtype=torch.float64))
    truth = Decisions(oracle).target(torch.randn(costs.shape, generator=random, dtype=torch.float64))
    target = structure.check_target(truth, potentials)
    corner, exact = find_corner(structure, potentials, target), find_corner(Decisions(oracle), potentials, target)
    assert not corner.exact
    assert exact.exact
    assert bool((corner.upper >= exact.hinge - 1e-9).all())
    torch.testing.assert_close(corner.upper, torch.maximum(exact.hinge + 0.2, corner.hinge))
    assert bool((corner.hinge <= exact.hinge + 1e-9).all())
    assert bool((corner.hinge >= 0.0).all())
    assert float((corner.labeling == truth.y).all(1).float().mean()) > 0.1
    plain = as_decoding(structure.argmax(potentials))
    assert bool((plain.bound >= as_decoding(Decisions(oracle).argmax(potentials)).value - 1e-9).all())


def test_targets_that_are_not_optimal_are_refused():
    structure = Decisions(ShortestPath.grid(2, 2))
    cost = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 4.0, 1.0, 1.0]])
    right = torch.tensor([[1, 0, 1, 0], [1, 0, 1, 0]])
    wrong = Decision(torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]]), cost)
    with pytest.raises(ValueError, match=r"target of rows \[1\]"):
        structure.loss(right, wrong)
    potentials = DecisionPotentials(3.0 * cost)  # at -c / 2, with all weights zero, the worst decision is the best
    with pytest.raises(ValueError, match=r"target of rows \[1\]"):
        find_corner(structure, potentials, structure.check_target(wrong, potentials))
    close = Decision(right, torch.tensor([[1.0, 1.0 - 1e-12, 1.0, 1.0]] * 2, dtype=torch.float64))
    assert structure.loss(torch.tensor([[0, 1, 0, 1]] * 2), close).tolist() == [0.0, 0.0]  # rounding


STRUCTURE, NAN = Decisions(ShortestPath.grid(2, 2)), torch.full((1, 4), torch.nan)
SHORT, WORSE = (np.zeros((1, 2)), np.zeros(1), None), (np.ones((1, 3)), np.full(1, 2.0), None)


def decision_problems(structure, x=((0.0,), (1.0,)), **parts):
    return DecisionProblems(Situations(torch.tensor(x), **parts), torch.rand(2, 4), structure)


@pytest.mark.parametrize(
    ("make", "error", "argument"),
    [
        (lambda: decision_problems(ShortestPath.grid(2, 2)), TypeError, "structure"),
        (lambda: decision_problems(STRUCTURE, x=[[0.0], [torch.nan]]), ValueError, "x"),
        (lambda: decision_problems(STRUCTURE, fixed=torch.rand(3, 4)), ValueError, "fixed"),
        (lambda: decision_problems(STRUCTURE, given=torch.rand(3, 4)), ValueError, "given"),
        (lambda: STRUCTURE.decode(DecisionPotentials(torch.ones(1, 4), fixed=NAN)), ValueError, "fixed"),
        (lambda: Decisions(lambda costs: None, num_costs=3).decode(torch.ones(1, 3)), TypeError, "oracle"),
        (lambda: Decisions(lambda costs: SHORT, num_costs=3).decode(torch.ones(1, 3)), ValueError, "y"),
        (lambda: Decisions(lambda costs: WORSE, num_costs=3).decode(torch.ones(1, 3)), ValueError, "value"),
        (lambda: Decisions(ShortestPath), TypeError, "oracle="),
        (lambda: Decisions(lambda costs: None), TypeError, "num_costs"),
        (lambda: Decisions(Selection(3, 1), maximize=True), TypeError, "oracle="),
        (lambda: Decisions(lambda costs: None, num_costs=3, maximize="no"), TypeError, "maximize="),
        (lambda: Decisions(Sloppy(Selection(3, 1))).target(torch.ones(1, 3)), ValueError, r"oracle .*rows \[0\]"),
        (lambda: Decisions(Selection(2, 1)).target([[1.0, 2.0], [torch.nan, 1.0]]), ValueError, r"costs of rows \[1\]"),
        (lambda: Decisions(Selection(3, 2)).target(torch.rand(4, 3), torch.tensor([1])), ValueError, "given"),
        (lambda: DecisionPotentials(torch.zeros(2, 3), fixed=torch.zeros(2, 2)), ValueError, "fixed"),
        (lambda: DecisionPotentials(torch.zeros(2, 3), given=torch.zeros(3)), ValueError, "given"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(make, error, argument):
    with pytest.raises(error, match=argument):
        make()


class TestLinearDecisions(HeadTestCase):
    shared, bias = False, True

    def make_head(self):
        return LinearDecisions(3, structure=Decisions(ShortestPath.grid(2, 2)), shared=self.shared, bias=self.bias)

    def make_input(self, random, batch):
        shape = (batch, 4, 3) if self.shared else (batch, 3)
        return (torch.randn(shape, generator=random, dtype=torch.float64),)

    def reference(self, head, x):
        costs = x @ head.weight[0] if self.shared else head.weight @ x
        return {"potentials": costs + head.bias if self.bias else costs}


@pytest.mark.variant
class TestLinearDecisionsWithoutBias(TestLinearDecisions):
    bias = False


@pytest.mark.variant
class TestSharedDecisions(TestLinearDecisions):
    shared = True


def road_costs(x, num_arcs, seed=0, noise=0.5, degree=2):
    """Costs that are polynomials of linear functions of the features, times noise: [Elmachtoub and Grigas 2022]."""
    random = rng(seed)
    through = torch.randint(0, 2, (x.shape[1], num_arcs), generator=random).double()
    costs = (((x.double() @ through) / x.shape[1] ** 0.5 + 3.0).pow(degree) + 1.0) / 3.5**degree
    return costs * (1.0 - noise + 2.0 * noise * torch.rand(costs.shape, generator=random, dtype=torch.float64))


def roads(size=3, count=40, features=4):
    structure = Decisions(ShortestPath.grid(size, size))
    x = torch.randn(count, features, generator=rng(2))
    return structure, x, road_costs(x, structure.num_costs)


def test_known_costs_move_the_solution_that_is_regularised():
    """Predictions of a solution that is known already count as known costs: the whole is SPO+, written out here."""
    structure, x, costs = roads()
    anchor = torch.linalg.lstsq(x.double(), costs).solution.T  # [D, F]
    problems = DecisionProblems(Situations(x, fixed=x.double() @ anchor.T), costs, structure)
    head = LinearDecisions(4, structure=structure, bias=False).double()
    assert check(head, structure, next(iter(in_order(problems)))).ok
    certificate = solve(head, problems, lam=10.0, tolerance=Relative(1e-3), progress=False)
    whole = LinearDecisions(4, structure=structure, bias=False).double()
    whole.weight.data = head.weight.data + anchor
    c_hat, y = x.double() @ whole.weight.detach().T, problems.target.y.double()
    plain = DecisionProblems(x, costs, structure)
    assert evaluate(head, structure, problems).loss == evaluate(whole, structure, plain).loss
    worst = ((costs - 2 * c_hat) @ torch.from_numpy(structure.oracle.decisions()).double().T).amax(1)
    primal = (worst + (2 * c_hat * y - costs * y).sum(1)).mean() + 5.0 * head.weight.detach().square().sum()
    assert float(primal) == pytest.approx(certificate.primal, rel=1e-6)
    assert certificate.gap <= 1e-3 * certificate.primal


def test_shared_weights_and_stored_decisions():
    random = rng(5)
    x = torch.randn(40, 6, 3, generator=random)
    values = x @ torch.tensor([1.0, -1.0, 0.5]) + 0.3 * torch.randn(40, 6, generator=random)
    structure = Decisions(Selection(6, 2))
    problems = DecisionProblems(Situations(x, given=torch.randint(1, 4, (40,), generator=random)), values, structure)
    head = LinearDecisions(3, structure=structure, shared=True, bias=False)
    solver = Solver(direction=Pairwise(), oracle=CacheOracle(), storage=Labelings())
    certificate = solve(head, problems, lam=0.01, tolerance=Relative(0.01), solver=solver, progress=False)
    assert certificate.relative_gap <= 0.01
    assert evaluate(head, structure, problems).loss < 0.1


@pytest.mark.parametrize(("n", "few"), [(7, True), (8, False)])  # and there are 8 weights
def test_few_examples_take_pairwise_steps(n, few):
    structure = Decisions(ShortestPath.grid(2, 2))
    problems = DecisionProblems(torch.rand(n, 2), torch.rand(n, 4), structure)
    head = LinearDecisions(2, structure=structure, bias=False)
    trainer = make_trainer(head, problems, 0.1, solver=Solver(compiled=False), progress=False)
    assert trainer.dual.storage.keeps_labelings == few
    assert type(trainer.loss.direction) is (Pairwise if few else FrankWolfe)
    assert type(trainer.loss.oracle) is MaxOracle
