"""GDMM on label sets with interactions."""

from __future__ import annotations

import itertools
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.optimize
import torch
from cases.factor_graphs import Duals, FactorGraph, Task, label_set_graph, label_set_task
from cases.gdmm_cases import ORACLES, RULES, FactorGraphTestCase, rules
from cases.optima import enclose
from cases.problems import Reference, examples, flat, rng
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import GDMM, DualState
from torchssvm.core.batch import apply_head
from torchssvm.solvers import EveryPasses
from torchssvm.solvers.gdmm import AwayStep, FactorwiseCertificate, Penalty, ResidualBalancing
from torchssvm.solvers.gdmm.label_set_means import choose_means
from torchssvm.solvers.gdmm.label_set_pass import visit_label_sets
from torchssvm.solvers.gdmm.label_sets import sum_consistent
from torchssvm.solvers.gdmm.rules import Residuals
from torchssvm.structures.multilabel import BranchAndBound, MessagePassing


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
        q, _, stored = gdmm.problem.duals
        labels = q.shape[1]
        result = Duals([np.array([1.0 - on, on]) for on in q.flatten()], [])
        for factor in graph.factors:
            i, key = factor.example, (factor.left % labels) * labels + factor.right % labels
            places = [f for f in range(stored.start[i], stored.start[i] + stored.size[i]) if stored.key[f] == key]
            assert len(places) <= 1, "a factor was made twice"
            if not places:
                result.factors.append(None)
                result.multipliers.append(None)
                continue
            both, first, second = stored.mass[places[0]]
            result.factors.append(np.array([[1.0 - both - first - second, second], [first, both]]))
            left, right = stored.multiplier[places[0]]
            result.multipliers.append((np.array([0.0, left]), np.array([0.0, right])))
        return result

    def check_held(self, gdmm: GDMM, graph: FactorGraph, duals: Duals) -> None:
        """A factor that is not made could agree with its labels at the mass of its target."""
        super().check_held(gdmm, graph, duals)
        for place, factor in enumerate(graph.factors):
            if duals.factors[place] is None:
                a, b = duals.variables[factor.left][1], duals.variables[factor.right][1]
                both = float(graph.target(factor) == (1, 1))
                assert max(0.0, a + b - 1.0) - 1e-9 <= both <= min(a, b) + 1e-9
        if gdmm.problem.pairs.ordered:
            _, entries, pairs = gdmm.problem.pairs
            count = int(entries.counters[0])
            assert np.array_equal(entries.value[:count], pairs[entries.row[:count], entries.col[:count]])

    def rounded(self, gdmm: GDMM, graph: FactorGraph) -> Duals:
        problem, point = gdmm.problem, self.duals(gdmm, graph)
        q = problem.duals.q
        n, labels = q.shape
        room, both = np.zeros(labels, np.int64), np.full((labels, labels), -1.0)
        point.factors = []
        for i in range(n):
            total, y = np.zeros((labels, labels)), problem.data.y[i].astype(float)
            sum_consistent(i, i + 1, problem.data, problem.duals, room, both, 1.0, total)
            assert (both == -1.0).all()
            for a, b in itertools.combinations(range(labels), 2):
                on, first, second = y[a] * y[b] - total[a, b], q[i, a], q[i, b]
                assert on >= 0.0
                point.factors.append(np.array([[1.0 - first - second + on, second - on], [first - on, on]]))
        return point

    def compiled(self) -> Any:
        return visit_label_sets

    def check_room(self, gdmm: GDMM) -> None:
        factors = gdmm.problem.duals.factors
        assert (factors.size <= np.diff(factors.start)).all()
        entries = gdmm.problem.pairs.entries
        assert int(entries.counters[0]) <= len(entries.value)

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


@pytest.mark.parametrize("decoder", [MessagePassing(), BranchAndBound(), BranchAndBound(max_rounds=1, effort=1)])
def test_a_frustrated_triangle_is_loose_and_searched_by_the_decoder(decoder):
    """Three labels repel each other: half of each is better than any set."""
    task = label_set_task(0, n=2, labels=3, features=1)
    task.head.structure.decoder = decoder
    task.x, task.y = torch.zeros_like(task.x), torch.tensor([[1, 0, 0], [0, 0, 0]])
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam)
    weights = [torch.zeros(3, 1).double(), torch.ones(3).double(), torch.full((3,), -5.0).double()]
    result = gdmm.problem.hinges(weights)
    # 3/2 of the score, and half of the costs; the best sets hold one label
    assert result.relaxed == pytest.approx([1.5 + 0.5 - 1.0, 1.5 + 0.5], abs=1e-9)
    assert result.relaxed.sum() == pytest.approx(label_set_graph(task).hinges(flat(weights).numpy()), abs=1e-9)
    best = [2.0 / 3.0, 1.0 + 1.0 / 3.0]
    assert result.exact == (decoder == BranchAndBound())
    assert (result.value <= result.relaxed).all()
    assert (result.value >= np.array(best) - 1e-12).all()
    if result.exact:
        assert result.value == pytest.approx(best, abs=1e-9)
    weights[2] *= -1.0  # nothing is frustrated where labels attract each other
    result = gdmm.problem.hinges(weights)
    assert result.exact
    assert result.value == pytest.approx([18.0 + 2.0 / 3.0 - 1.0, 18.0 + 1.0], abs=1e-9)
    assert np.array_equal(result.relaxed, result.value)


@pytest.mark.parametrize("decoder", [MessagePassing(), BranchAndBound()])
def test_where_the_relaxation_is_loose_both_problems_are_told_apart(decoder):
    task = label_set_task(27, n=6, labels=4, lam=0.01)
    task.head.structure.decoder = decoder
    task.y = torch.nn.functional.one_hot(torch.randint(0, 4, (6,), generator=rng(27)), 4)
    graph = label_set_graph(task)
    truth = listed(graph)
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam, rule=AwayStep(), penalty=Penalty())
    loose: list[bool] = []
    exacts: list[bool] = []
    duals = [(0.0, 0.0)]

    def look(certificate: FactorwiseCertificate) -> None:
        exact = truth.primal(flat(task.head.parameters()).numpy())
        assert exact - 1e-9 <= certificate.primal <= certificate.relaxed_primal
        assert certificate.primal <= exact + 1e-9 or not certificate.exact
        assert certificate.dual >= duals[-1][0]
        assert certificate.relaxed_dual >= duals[-1][1]
        duals.append((certificate.dual, certificate.relaxed_dual))
        loose.append(certificate.relaxed_primal > exact + 1e-6)
        exacts.append(certificate.exact)

    certificate = gdmm.solve(1e-5, max_passes=200, schedule=EveryPasses(2), on_check=look)
    assert any(loose)
    assert all(exacts) == (decoder == BranchAndBound())
    assert certificate.relaxed_gap <= 1e-3
    assert certificate.relaxed_primal == pytest.approx(graph.optimum(), abs=1e-3)


def listed(graph: FactorGraph) -> Reference:
    """All label sets of all examples."""
    truth = Reference([], [], [], graph.lam)
    for i in range(graph.n):
        variables = [v for v in graph.variables if v.example == i]
        factors = [f for f in graph.factors if f.example == i]
        first, features, losses = i * len(variables), {}, {}
        for output in itertools.product((0, 1), repeat=len(variables)):
            features[output] = sum(v.phi[k] for v, k in zip(variables, output, strict=True))
            features[output] += sum(f.phi[output[f.left - first], output[f.right - first]] for f in factors)
            losses[output] = sum(v.cost[k] for v, k in zip(variables, output, strict=True))
        truth.losses.append(np.array(list(losses.values())))
        truth.changes.append(np.array(list(features.values())) - features[tuple(v.target for v in variables)])
    return truth


@examples(20)
@given(
    seed=st.integers(0, 2**31 - 1),
    rule=st.sampled_from(RULES),
    oracle=st.sampled_from(ORACLES),
    variant=st.sampled_from(TestLabelSets.VARIANTS),
    lam=st.floats(0.02, 2.0),
    rho=st.floats(1e-3, 30.0),
)
def test_the_optimum_over_label_sets_is_enclosed_too(seed, rule, oracle, variant, lam, rho):
    """Of all kinds of heads and losses; that of the relaxation may be above it."""
    task = label_set_task(seed, lam=lam, **variant)
    truth = listed(label_set_graph(task))
    best = enclose(truth)
    options = {"rule": rule, "oracle": oracle, "penalty": Penalty(rho), "seed": seed}
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam, **options)
    for passes in (1, 4, 20):
        for _ in range(passes):
            gdmm.step()
        certificate = gdmm.certify()
        assert certificate.exact
        assert certificate.primal == pytest.approx(truth.primal(flat(task.head.parameters()).numpy()), abs=1e-9)
        assert certificate.dual - 1e-9 <= best.high
        assert best.low <= certificate.primal + 1e-9


def means_task(seed: int, labels: int, n: int = 6):
    """Shares of labels, and targets."""
    random = np.random.default_rng(seed)
    q, y = random.uniform(size=(n, labels)), random.uniform(size=(n, labels)) < 0.5
    q[random.uniform(size=q.shape) < 0.2] = 1.0
    q[random.uniform(size=q.shape) < 0.2] = 0.0
    return random, q, y


def together(begin: np.ndarray, q: np.ndarray) -> np.ndarray:
    """How often two labels are on, ``[n, P]``: the circle cut wherever an arc begins or ends, piece by piece."""
    results = []
    for its_begin, its_q in zip(begin, q, strict=True):
        cuts = np.unique(np.concatenate([[0.0, 1.0], its_begin % 1.0, (its_begin + its_q) % 1.0]))
        middle, length = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
        on = (middle[:, None] - its_begin) % 1.0 < its_q
        pairs = [(on[:, a] & on[:, b]) @ length for a, b in itertools.combinations(range(len(its_q)), 2)]
        assert length @ on == pytest.approx(its_q, abs=1e-12)
        results.append(pairs)
    return np.array(results).reshape(len(q), -1)


@examples(30)
@given(seed=st.integers(0, 2**31 - 1), labels=st.integers(1, 4))
def test_pairs_of_means_are_those_of_label_sets(seed, labels):
    _, q, y = means_task(seed, labels)
    i, j = np.triu_indices(labels, 1)
    means = choose_means(q, y)
    pairs = means.pairs(np.arange(len(q)))
    assert pairs == pytest.approx(together(means.begin, q), abs=1e-12)
    assert means.rest[i, j] == pytest.approx((y[:, i] & y[:, j]).sum(0) - pairs.sum(0), abs=1e-12)
    sets = np.array(list(itertools.product((0.0, 1.0), repeat=labels)))
    corners = np.concatenate([sets, sets[:, i] * sets[:, j], np.ones((len(sets), 1))], 1)
    for single, pair in zip(q, pairs, strict=True):
        _, distance = scipy.optimize.nnls(corners.T, np.concatenate([single, pair, [1.0]]))
        assert distance <= 1e-9


@examples(20)
@given(seed=st.integers(0, 2**31 - 1), labels=st.integers(2, 5), n=st.integers(1, 6))
def test_means_make_the_weights_of_pairs_small(seed, labels, n):
    """Smaller than where they began; and in the end no arc gains by going where another one ends."""
    _, q, y = means_task(seed, labels, n)
    i, j = np.triu_indices(labels, 1)
    means, goal = choose_means(q, y), (y[:, i] & y[:, j]).sum(0)

    def length(begin: np.ndarray) -> float:
        return float(np.square(goal - together(begin, q).sum(0)).sum())

    result = length(means.begin)
    assert result <= length(np.where(y, 0.0, 1.0 - q)) + 1e-9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchssvm.solvers.gdmm.label_set_means._ROUNDS", 100)
        means = choose_means(q, y)
    settled = length(means.begin)
    assert settled <= result + 1e-9
    for row, label, other in itertools.product(range(n), range(labels), range(labels)):
        if label != other and 0.0 < q[row, other] < 1.0:
            begin = means.begin.copy()
            begin[row, label] = (begin[row, other] + q[row, other]) % 1.0
            assert settled <= length(begin) + 1e-9


def test_the_dual_handed_over_is_the_certified_one_or_says_that_it_is_below():
    """Labels that repel each other: the relaxation is loose, and passes may lead away from the best mean of sets."""
    task = label_set_task(27, n=60, labels=6, features=4, lam=0.01)
    random = rng(5)
    task.x = torch.randn(60, 4, generator=random, dtype=torch.float64)
    scores = task.x @ torch.randn(4, 6, generator=random, dtype=torch.float64)
    task.y = torch.nn.functional.one_hot(scores.argmax(1), 6)
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam)
    gdmm.solve(0.02, max_passes=100)
    seen = {"same": 0, "below": 0}
    for _ in range(60):
        gdmm.step()
        certificate, state = gdmm.certify(), gdmm.state_dict()
        mean = gdmm.problem.rounded().mean.value(task.lam)
        below = mean < certificate.dual * (1.0 - 1e-9)
        seen["below" if below else "same"] += 1
        if max(seen.values()) > 3 and min(seen.values()) > 0:
            break
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            dual = gdmm.dual_state(task.everything())
        assert dual.value() == pytest.approx(mean, rel=1e-9)
        assert [f"best certificate {certificate.dual:.6g}" in str(w.message) for w in warned] == [True] * below
        gdmm.load_state_dict(state)
    assert min(seen.values()) > 0


@rules
def test_labels_without_features_go_where_the_loss_is(rule):
    """No weight and no factor holds them: all their mass must end on the wrong label."""
    task = label_set_task(1, n=3, bias=False)
    task.x, task.y = torch.zeros_like(task.x), torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 0]])
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam, rule=rule, penalty=Penalty())
    best = label_set_graph(task).optimum()
    certificate = gdmm.solve(3e-6, violation=1e-3, max_passes=3000)
    assert certificate.relaxed_primal == pytest.approx(best, abs=1e-5)
    assert certificate.relaxed_dual == pytest.approx(best, abs=1e-5)


def test_a_factor_without_room_waits_for_the_next_pass():
    """An example may get 32 factors and half of those that it has: of 45, some come later."""
    task = label_set_task(3, n=3, labels=10, lam=0.001)
    task.y = torch.ones_like(task.y)
    task.y[1] = 0
    gdmm = GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam)
    sizes = []
    for _ in range(60):
        gdmm.visit(torch.tensor([0, 1, 2, 2]))
        factors = gdmm.problem.duals.factors
        assert (factors.size <= np.diff(factors.start)).all()
        sizes.append(int(factors.size.max()))
        gdmm.end_pass()
    assert sizes[0] <= 32 < max(sizes)
    certificate = gdmm.certify()
    assert certificate.gap >= -1e-12
    assert certificate.drift < 1e-9


def balanced(penalty: Penalty | None, cost: float) -> GDMM:
    """Label sets whose losses are in another unit, after thirty passes."""
    task = label_set_task(5, n=12, labels=4, normalize=False)
    task.head.structure._costs *= cost
    result = GDMM(task.head, task.everything(), num_examples=12, lam=0.02 / cost, penalty=penalty)
    for _ in range(30):
        result.step()
    return result


def test_rho_is_chosen_whatever_the_unit_of_losses_and_the_start():
    one, many = balanced(None, 1.0), balanced(None, 16.0)
    assert many.rho == pytest.approx(16 * one.rho, rel=1e-9)
    low, high = (balanced(ResidualBalancing(start), 1.0) for start in (0.001, 10.0))
    assert 0.25 <= low.rho / one.rho <= 4.0
    assert 0.25 <= high.rho / one.rho <= 4.0
    certificate = one.certify()
    assert certificate.relaxed_primal - certificate.relaxed_dual == pytest.approx(certificate.relaxed_gap, abs=1e-12)


@examples(20)
@given(st.floats(0.1, 10.0))
def test_the_residuals_that_are_balanced(unit):
    rule = ResidualBalancing()
    even = {"moved": 2.0, "size": 3.0, "force": 6.0 * unit, "passes": 1, "first": unit}
    for apart, factor in ((1.0, 1.0), (2.5, 1.3), (0.4, 1 / 1.3)):  # apart / size against rho moved / force
        assert rule.next(unit, Residuals(apart=apart, **even)) == pytest.approx(factor * unit)
    assert rule.next(unit, Residuals(apart=9.0, **{**even, "passes": 101})) == unit
