"""GDMM on label sets with interactions."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.optimize
import torch
from factor_graphs import Duals, FactorGraph, Task, label_set_graph, label_set_task
from gdmm_cases import FactorGraphTestCase, rules
from hypothesis import given
from hypothesis import strategies as st
from problems import examples, flat, rng

pytest.importorskip("numba")

from torchssvm import GDMM, DualState
from torchssvm.batch import apply_head
from torchssvm.factorwise import AwayStep, BruteForce, FactorwiseCertificate, Penalty, SortedOracle
from torchssvm.factorwise.handover import shrinking
from torchssvm.factorwise.label_set_means import Means, choose_means
from torchssvm.factorwise.label_set_pass import visit_label_sets
from torchssvm.factorwise.label_set_sums import sum_consistent


class TestLabelSets(FactorGraphTestCase):
    VARIANTS: ClassVar[list[dict[str, Any]]] = [
        {},
        {"sparse": True},
        {"sparse": True, "bias": False, "n": 6},
        {"bias": False},
        {"weighted": True},
        {"normalize": False, "weighted": True},
        {"labels": 4, "n": 3},
        {"labels": 2},
        {"labels": 1, "n": 2},
    ]
    is_loose = True

    def make(self, seed: int, **options: Any) -> Task:
        return label_set_task(seed, **options)

    def graph(self, task: Task) -> FactorGraph:
        return label_set_graph(task)

    def duals(self, gdmm: GDMM, graph: FactorGraph) -> Duals:
        q, held = gdmm.problem.q, gdmm.problem.factors
        labels = q.shape[1]
        found = Duals([np.array([1.0 - on, on]) for on in q.flatten()], [])
        for factor in graph.factors:
            i, key = factor.example, (factor.left % labels) * labels + factor.right % labels
            places = [f for f in range(held.start[i], held.start[i] + held.size[i]) if held.key[f] == key]
            assert len(places) <= 1, "a factor was made twice"
            if not places:
                found.factors.append(None)
                found.multipliers.append(None)
                continue
            both, first, second = held.mass[places[0]]
            found.factors.append(np.array([[1.0 - both - first - second, second], [first, both]]))
            left, right = held.multiplier[places[0]]
            found.multipliers.append((np.array([0.0, left]), np.array([0.0, right])))
        return found

    def check_held(self, gdmm: GDMM, graph: FactorGraph, duals: Duals) -> None:
        """A factor that is not made could agree with its labels at the mass of its target."""
        super().check_held(gdmm, graph, duals)
        for place, factor in enumerate(graph.factors):
            if duals.factors[place] is None:
                a, b = duals.variables[factor.left][1], duals.variables[factor.right][1]
                both = float(graph.target(factor) == (1, 1))
                assert max(0.0, a + b - 1.0) - 1e-9 <= both <= min(a, b) + 1e-9
        if gdmm.problem.ordered:
            entries, pairs = gdmm.problem.entries, gdmm.problem.pairs.value
            count = int(entries.counters[0])
            assert np.array_equal(entries.value[:count], pairs[entries.row[:count], entries.col[:count]])

    def rounded(self, gdmm: GDMM, graph: FactorGraph) -> Duals:
        problem, point = gdmm.problem, self.duals(gdmm, graph)
        n, labels = problem.q.shape
        room, both = np.zeros(labels, np.int64), np.full((labels, labels), -1.0)
        point.factors = []
        for i in range(n):
            total, y = np.zeros((labels, labels)), problem.sets.y[i].astype(float)
            sum_consistent(i, problem.sets, problem.q, problem.factors, room, both, 1.0, total)
            assert (both == -1.0).all()
            for a, b in itertools.combinations(range(labels), 2):
                on, first, second = y[a] * y[b] - total[a, b], problem.q[i, a], problem.q[i, b]
                assert on >= 0.0
                point.factors.append(np.array([[1.0 - first - second + on, second - on], [first - on, on]]))
        return point

    def compiled(self) -> Any:
        return visit_label_sets

    def check_room(self, gdmm: GDMM) -> None:
        held = gdmm.problem.factors
        assert (held.size <= np.diff(held.start)).all()
        assert int(gdmm.problem.entries.counters[0]) <= len(gdmm.problem.entries.value)

    def parts(self, task: Task, dual: DualState, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        batch, graph = task.batch([i]), label_set_graph(task)
        psi = dual.storage.gather(batch.index, apply_head(task.head, batch), batch.y).psi
        variables = [v for v in graph.variables if v.example == i]

        def listed(output: tuple[int, ...]) -> list[int]:
            return [*output, *(a * b for a, b in itertools.combinations(output, 2))]

        outputs = list(itertools.product((0, 1), repeat=len(variables)))
        true = np.array(listed(tuple(v.target for v in variables)))
        losses = [sum(v.cost[k] for v, k in zip(variables, output, strict=True)) for output in outputs]
        return true - flat(psi.values()).numpy(), np.array([listed(o) for o in outputs]), np.array(losses)

    def own_damages(self, good: dict[str, Any]):
        problem = good["gdmm"]["problem"]
        yield ("gdmm", "problem", "passes"), -1
        for path, wrong in (
            (("q",), 1.5),
            (("q",), -0.5),
            (("pairs",), 9.0),
            (("factors", "key"), 0),
            (("factors", "key"), 10**6),
            (("factors", "key"), -1),
            (("factors", "mass"), -0.1),
            (("factors", "mass"), 3.0),
            (("factors", "size"), -1),
            (("factors", "size"), 10**9),
            (("factors", "room"), 10**12),
            (("factors", "room"), 0),
        ):
            held = problem
            for key in path:
                held = held[key]
            if held.numel():
                changed = held.clone()
                changed.view(-1)[0 if path != ("pairs",) else 1] = wrong
                yield ("gdmm", "problem", *path), changed


def test_a_frustrated_triangle_is_not_exact():
    """Three labels repel each other: half of each is better than any set, and the hinge is an upper bound."""
    task = label_set_task(0, n=2, labels=3, features=1)
    task.x, task.y = torch.zeros_like(task.x), torch.tensor([[1, 0, 0], [0, 0, 0]])
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam)
    weights = [torch.zeros(1, 3).double(), torch.ones(3).double(), torch.full((3,), -5.0).double()]
    hinges, exact = gdmm.problem.hinges(weights)
    assert not exact
    # 3/2 of the score, and half of the costs; the best sets hold one label
    assert hinges == pytest.approx([1.5 + 0.5 - 1.0, 1.5 + 0.5], abs=1e-9)
    assert hinges.sum() == pytest.approx(label_set_graph(task).hinges(flat(weights).numpy()), abs=1e-9)
    weights[2] *= -1.0  # nothing is frustrated where labels attract each other
    hinges, exact = gdmm.problem.hinges(weights)
    assert exact
    assert hinges == pytest.approx([18.0 + 2.0 / 3.0 - 1.0, 18.0 + 1.0], abs=1e-9)


def test_where_the_relaxation_is_loose_the_primal_says_so():
    """The relaxed optimum, an upper bound of that over label sets."""
    task = label_set_task(27, n=6, labels=4, lam=0.01)
    task.y = torch.nn.functional.one_hot(torch.randint(0, 4, (6,), generator=rng(27)), 4)
    graph = label_set_graph(task)
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam, rule=AwayStep(), penalty=Penalty())
    loose = []

    def look(found: FactorwiseCertificate) -> None:
        w = flat(task.head.parameters()).numpy()
        exact = task.lam / 2 * float(w @ w) + listed_hinges(task, graph, w) / task.n
        assert found.primal >= exact - 1e-9
        assert found.primal <= exact + 1e-9 or not found.exact
        assert ("upper bound" in str(found)) != found.exact
        loose.append(found.primal > exact + 1e-6)

    found = gdmm.solve(1e-5, max_sweeps=200, check_every=2, on_check=look)
    assert any(loose)
    assert found.gap <= 1e-3
    assert found.primal == pytest.approx(graph.optimum(), abs=1e-3)


def listed_hinges(task: Task, graph: FactorGraph, w: np.ndarray) -> float:
    """Sum of the hinges over all label sets."""
    total = 0.0
    for i in range(task.n):
        variables = [v for v in graph.variables if v.example == i]
        factors = [f for f in graph.factors if f.example == i]
        first = i * len(variables)
        values = {}
        for output in itertools.product((0, 1), repeat=len(variables)):
            score = sum(v.phi[k] @ w for v, k in zip(variables, output, strict=True))
            score += sum(f.phi[output[f.left - first], output[f.right - first]] @ w for f in factors)
            values[output] = score, sum(v.cost[k] for v, k in zip(variables, output, strict=True))
        true = values[tuple(v.target for v in variables)][0]
        total += max(score + cost for score, cost in values.values()) - true
    return total


def means_task(seed: int, labels: int):
    """Shares of labels, targets, and weights of pairs."""
    random = np.random.default_rng(seed)
    q, y = random.uniform(size=(6, labels)), random.uniform(size=(6, labels)) < 0.5
    q[random.uniform(size=q.shape) < 0.3] = 1.0
    weights = np.triu(random.normal(size=(labels, labels)), 1)
    return random, q, y, weights + weights.T


@examples(30)
@given(seed=st.integers(0, 2**31 - 1), labels=st.integers(1, 4))
def test_pairs_of_means_are_those_of_label_sets(seed, labels):
    random, q, _, _ = means_task(seed, labels)
    i, j = np.triu_indices(labels, 1)
    means = Means(q, random.uniform(size=q.shape) < 0.5, random.uniform(size=len(q)) * random.integers(0, 2, len(q)))
    sets = np.array(list(itertools.product((0.0, 1.0), repeat=labels)))
    corners = np.concatenate([sets, sets[:, i] * sets[:, j], np.ones((len(sets), 1))], 1)
    for own, pairs in zip(q, means.pairs(np.arange(len(q))), strict=True):
        _, distance = scipy.optimize.nnls(corners.T, np.concatenate([own, pairs, [1.0]]))
        assert distance <= 1e-9


@examples(30)
@given(seed=st.integers(0, 2**31 - 1), labels=st.integers(2, 5))
def test_means_are_chosen_by_the_weights_and_make_them_small(seed, labels):
    """No label gains by another side, and no other share of all that is tied has a larger dual."""
    _, q, y, weights = means_task(seed, labels)
    (i, j), rows = np.triu_indices(labels, 1), np.arange(len(q))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchssvm.factorwise.label_set_means._NUMBERS", 20)  # two or more portions
        means = choose_means(q, y, weights)
    wholly = means._replace(tied=np.ones(len(q)))
    gains = wholly.pairs(rows) @ weights[i, j]
    apart = means._replace(tied=np.zeros(len(q)))
    chosen = gains > apart.pairs(rows) @ weights[i, j]
    assert not means.tied[~chosen].any()
    for k in range(labels):
        side = means.side.copy()
        side[:, k] ^= True
        other = wholly._replace(side=side).pairs(rows) @ weights[i, j]
        assert (other[chosen] <= gains[chosen] + 1e-9).all()

    def length(share):
        mixed = means._replace(tied=share * chosen)
        return np.square((y[:, i] & y[:, j]).sum(0) - mixed.pairs(rows).sum(0)).sum()

    found = np.square((y[:, i] & y[:, j]).sum(0) - means.pairs(rows).sum(0)).sum()
    assert found <= min(map(length, np.linspace(0.0, 1.0, 11))) + 1e-9


def test_the_dual_handed_over_is_not_far_below_the_certified_one_and_says_so():
    """Labels that repel each other: the relaxation is loose, and no mean of sets has its value."""
    task = label_set_task(27, n=60, labels=6, features=4, lam=0.01)
    random = rng(5)
    task.x = torch.randn(60, 4, generator=random, dtype=torch.float64)
    scores = task.x @ torch.randn(4, 6, generator=random, dtype=torch.float64)
    task.y = torch.nn.functional.one_hot(scores.argmax(1), 6)
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam)
    best = gdmm.solve(1e-3, max_sweeps=100).dual
    i, j = np.triu_indices(6, 1)
    q = gdmm.problem.q
    losses = (np.abs(task.y.numpy() - q) @ gdmm.problem.sets.cost).sum() / task.n
    u = flat(gdmm.problem.held())[: -len(i)].numpy()
    apart = (task.y[:, i] * task.y[:, j]).numpy() - q[:, i] * q[:, j]
    squared = float(u @ u) + float(np.square(apart.sum(0) / (task.lam * task.n)).sum())
    factor = shrinking(losses, task.lam * squared)
    with pytest.warns(UserWarning, match=rf"below the best that GDMM certified .*, {best:.6g}: .*some passes"):
        dual = gdmm.dual_state(task.everything())
    assert factor * losses - factor**2 * task.lam / 2 * squared < dual.value() < best


@rules
def test_labels_without_features_go_where_the_loss_is(rule):
    """No weight and no factor holds them: all their mass must end on the wrong label."""
    task = label_set_task(1, n=3, bias=False)
    task.x, task.y = torch.zeros_like(task.x), torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 0]])
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam, rule=rule, penalty=Penalty())
    best = label_set_graph(task).optimum()
    found = gdmm.solve(3e-6, violation=1e-3, max_sweeps=3000)
    assert found.primal == pytest.approx(best, abs=1e-5)
    assert found.dual == pytest.approx(best, abs=1e-5)


def test_the_oracle_of_a_checkpoint_must_be_the_same():
    """Sorted weights that are not those of the pairs would lead the oracle astray."""
    states = []
    for oracle in (SortedOracle(), BruteForce()):
        task = label_set_task(1)
        gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam, oracle=oracle)
        for _ in range(5):
            gdmm.step()
        states.append((gdmm, gdmm.state_dict()))
    for (gdmm, _), (_, other) in zip(states, reversed(states), strict=True):
        with pytest.raises(ValueError, match="oracle"):
            gdmm.load_state_dict(other)
        gdmm.step()


def test_a_factor_without_room_waits_for_the_next_pass():
    """An example may get 32 factors and half of those that it has: of 45, some come later."""
    task = label_set_task(3, n=3, labels=10, lam=0.001)
    task.y = torch.ones_like(task.y)
    task.y[1] = 0
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam)
    sizes = []
    for _ in range(60):
        gdmm.visit(torch.tensor([0, 1, 2, 2]))
        held = gdmm.problem.factors
        assert (held.size <= np.diff(held.start)).all()
        sizes.append(int(held.size.max()))
        gdmm.end_pass()
    assert sizes[0] <= 32 < max(sizes)
    found = gdmm.certify()
    assert found.gap >= -1e-12
    assert found.drift < 1e-9
