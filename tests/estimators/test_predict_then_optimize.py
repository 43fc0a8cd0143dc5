"""PredictThenOptimize: its objective by hand, the anchor beside a quadratic program, lambda, oracles and errors."""

import time

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.base import clone
from torch import nn

from torchssvm.estimators import PredictThenOptimize
from torchssvm.structures.decisions import OptModel, Selection, ShortestPath, Situations

SQUARE = ShortestPath.grid(2, 2)
PATHS = SQUARE.decisions()  # [2, 4]


def draw(n, features=2, costs=4, seed=0):
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(n, features))
    return x, 1.0 + (x @ chance.normal(size=(features, costs)) + 1.0) ** 2 * chance.uniform(0.5, 1.5, (n, costs))


def spo_plus(predicted, costs, known=PATHS):
    """Of every example, by listing the decisions."""
    best = known[(costs @ known.T).argmin(1)]
    value = ((2 * predicted - costs) * best).sum(1)
    return ((costs - 2 * predicted) @ known.T).max(1) + value


@pytest.mark.parametrize("anchor", ["zero", "least-squares"])
def test_the_objective_is_that_of_a_quadratic_program(anchor):
    x, costs = draw(6)
    model = PredictThenOptimize(SQUARE, 0.3, anchor=anchor, tol=1e-4, random_state=0).fit(x, costs)
    one = np.c_[x, np.ones(6)]
    base = np.linalg.lstsq(one, costs, rcond=None)[0].T if anchor != "zero" else np.zeros((4, 3))
    result = np.c_[model.coef_, model.intercept_]

    def objective(w, slack):
        return 0.15 * ((w.reshape(4, 3) - base) ** 2).sum() + slack.mean()

    def room(z):
        predicted = one @ z[:12].reshape(4, 3).T
        best = PATHS[(costs @ PATHS.T).argmin(1)]
        values = (costs - 2 * predicted) @ PATHS.T + ((2 * predicted - costs) * best).sum(1, keepdims=True)
        return (z[12:, None] - values).ravel()

    start = np.r_[base.ravel(), spo_plus(one @ base.T, costs)]
    by_qp = minimize(lambda z: objective(z[:12], z[12:]), start, constraints={"type": "ineq", "fun": room}).fun
    certificate = model.certificate_
    assert objective(result, spo_plus(model.predict(x), costs)) == pytest.approx(certificate.primal, rel=1e-6)
    assert certificate.dual - 1e-9 <= by_qp <= certificate.primal + 1e-6
    assert certificate.primal - certificate.dual <= 1e-4 * certificate.primal


def test_a_large_lambda_stays_at_the_anchor():
    x, costs = draw(20)
    model = PredictThenOptimize(SQUARE, 1e6, anchor="least-squares").fit(x, costs)
    one = np.c_[x, np.ones(20)]
    assert np.allclose(model.predict(x), one @ np.linalg.lstsq(one, costs, rcond=None)[0], atol=1e-3)


def test_an_anchor_that_is_right_gets_a_lambda_all_the_same():
    chance = np.random.default_rng(0)
    x = chance.normal(size=(24, 3))
    costs = 5.0 + x @ chance.normal(size=(3, 4))
    model = PredictThenOptimize(SQUARE, anchor="least-squares", random_state=0).fit(x, costs)
    assert model.regret(x, costs) == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < model.lam_ < np.inf


def test_costs_decisions_and_regret():
    x, costs = draw(40)
    model = PredictThenOptimize(SQUARE, random_state=0, max_passes=50, tol=0.1)
    copied = clone(model).fit(x[:30], costs[:30])
    predicted, y = copied.predict(x[30:]), copied.decide(x[30:])
    assert (y == PATHS[(predicted @ PATHS.T).argmin(1)]).all()
    least = (costs[30:] @ PATHS.T).min(1)
    assert copied.regret(x[30:], costs[30:]) == pytest.approx(((costs[30:] * y).sum(1) - least).sum() / least.sum())
    assert copied.score(x[30:], costs[30:]) == -copied.regret(x[30:], costs[30:])
    assert copied.lam_ in [point.lam for point in copied.choice_.points]
    assert copied.certificate_.num_examples == 30


def test_known_costs_are_added_and_features_are_made_and_frozen():
    x, costs = draw(12)
    known = np.full((12, 4), 2.0)
    whole = Situations(torch.from_numpy(x).float(), fixed=torch.from_numpy(known))
    below = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Dropout(0.5))
    before = [p.detach().clone() for p in below.parameters()]
    model = PredictThenOptimize(SQUARE, 10.0, anchor="least-squares", features=below, tol=0.1).fit(whole, costs + known)
    assert all((a == b).all() for a, b in zip(before, below.parameters(), strict=True))
    assert below.training
    assert model.coef_.shape == (4, 3)
    without = model.predict(torch.from_numpy(x).float())
    assert np.allclose(model.predict(whole), without + 2.0)
    for call in (model.decide, lambda X: model.regret(X, costs)):
        with pytest.raises(ValueError, match="X"):
            call(torch.from_numpy(x).float())
    assert model.decide(whole).shape == (12, 4)


@pytest.mark.parametrize("anchor", ["zero", "least-squares"])
def test_values_are_maximised_with_shared_weights(anchor):
    chance = np.random.default_rng(0)
    x = chance.normal(size=(20, 5, 2))
    values = x @ [1.0, -2.0] + 0.1
    model = PredictThenOptimize(Selection(5, k=2), 0.001, anchor=anchor, shared=True, intercept_scaling=0.0)
    model.fit(x, values)
    assert model.coef_.shape == (2,)
    assert model.intercept_ == 0.0
    assert model.regret(x, values) == pytest.approx(0.0, abs=0.02)


class Choice:
    """A model as those of PyEPO: one of the costs."""

    modelSense, num_cost = 1, 4

    def setObj(self, c):
        self.c = c

    def solve(self):
        return np.eye(4)[self.c.argmin()] * (1 - 1e-7), self.c.min()


@pytest.mark.parametrize("quick", [True, False])
def test_what_a_program_says_of_its_speed_chooses_the_solver(quick):
    x, costs = draw(20)
    results = []
    for delay in (0.0, 1e-3):  # a clock says nothing
        program = OptModel(Choice())
        program.quick, solve = quick, program.solve
        program.solve = lambda *args, delay=delay, solve=solve: (time.sleep(delay), solve(*args))[1]
        results.append(PredictThenOptimize(program, 0.1, tol=0.05, random_state=0).fit(x, costs))
    assert results[0].structure_._quick_to_decode == quick
    assert results[0].certificate_.relative_gap <= 0.05
    assert np.array_equal(results[0].coef_, results[1].coef_)


def test_a_model_of_pyepo_maximises_and_is_checked():
    y, value, bound = OptModel(Choice()).solve(np.array([[2.0, 1.0, 3.0, 4.0]]))
    assert (y.dtype, y.tolist(), value.tolist(), bound) == (np.int64, [[0, 1, 0, 0]], [1.0], None)
    model = Choice()
    for solve, sense in ((model.solve, 1), (lambda: (np.eye(4)[model.c.argmax()], model.c.max()), -1)):
        model.solve, model.modelSense = solve, sense
        assert OptModel(model).maximize == (sense == -1)
        for wrong in (-sense, 0):
            model.modelSense = wrong
            with pytest.raises(ValueError, match="modelSense"):
                OptModel(model)
    model, halves = Choice(), (np.full(4, 0.5), 0.0)
    oracle, model.solve = OptModel(model), lambda: halves
    with pytest.raises(ValueError, match="whole"):
        oracle.solve(np.ones((1, 4)))
    assert OptModel(model, whole=False).solve(np.ones((1, 4)))[0].tolist() == [[0.5] * 4]


X, COSTS = draw(4)
MODEL = PredictThenOptimize(SQUARE, 1.0, max_passes=2.0, tol=0.9)
MADE = {"program": SQUARE, "lam": 1.0}


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        *(
            (lambda wrong=wrong: PredictThenOptimize(**MADE | wrong).fit(X, COSTS), argument)
            for wrong, argument in (
                ({"anchor": "mean"}, "anchor"),
                ({"lam": 0.0}, "lam="),
                ({"held_out": 1.0}, "held_out="),
                ({"intercept_scaling": -1.0}, "intercept_scaling="),
                ({"shared": True}, "X"),
                ({"program": 3}, "oracle="),
                ({"tol": 2.0}, "tol="),
            )
        ),
        (lambda: MODEL.fit(X, COSTS[:3]), "costs"),
        (lambda: MODEL.fit(X, COSTS[:, :3]), "costs"),
        (lambda: MODEL.fit(X * np.nan, COSTS), "finite"),
        (lambda: MODEL.fit(X * 1e200, COSTS), "X"),
        (lambda: PredictThenOptimize(SQUARE).fit(X[:1], COSTS[:1]), "lam=None"),
        (lambda: MODEL.fit(X, COSTS).predict(np.ones((1, 3))), "X"),
        (lambda: MODEL.fit(X, COSTS).regret(X, COSTS[:3]), "costs"),
        (lambda: MODEL.fit(X, COSTS).decide(Situations(torch.as_tensor(X), torch.ones(1, 4))), r"X\.fixed"),
    ],
)
def test_what_does_not_fit_is_refused(call, argument):
    with pytest.raises((TypeError, ValueError), match=argument):
        call()
