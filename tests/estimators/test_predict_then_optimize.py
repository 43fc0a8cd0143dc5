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
    own = ((2 * predicted - costs) * best).sum(1)
    return ((costs - 2 * predicted) @ known.T).max(1) + own


@pytest.mark.parametrize("anchor", ["zero", "least-squares"])
def test_the_objective_is_that_of_a_quadratic_program(anchor):
    x, costs = draw(6)
    model = PredictThenOptimize(SQUARE, 0.3, anchor=anchor, tol=1e-4, random_state=0).fit(x, costs)
    one = np.c_[x, np.ones(6)]
    base = np.linalg.lstsq(one, costs, rcond=None)[0].T if anchor != "zero" else np.zeros((4, 3))
    found = np.c_[model.coef_, model.intercept_]

    def objective(w, slack):
        return 0.15 * ((w.reshape(4, 3) - base) ** 2).sum() + slack.mean()

    def room(z):
        predicted = one @ z[:12].reshape(4, 3).T
        best = PATHS[(costs @ PATHS.T).argmin(1)]
        values = (costs - 2 * predicted) @ PATHS.T + ((2 * predicted - costs) * best).sum(1, keepdims=True)
        return (z[12:, None] - values).ravel()

    start = np.r_[base.ravel(), spo_plus(one @ base.T, costs)]
    by_qp = minimize(lambda z: objective(z[:12], z[12:]), start, constraints={"type": "ineq", "fun": room}).fun
    own = model.certificate_
    assert objective(found, spo_plus(model.predict(x), costs)) == pytest.approx(own.primal, rel=1e-6)
    assert own.dual - 1e-9 <= by_qp <= own.primal + 1e-6
    assert own.primal - own.dual <= 1e-4 * own.primal


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
        with pytest.raises(ValueError, match="X has no known costs"):
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
    found = []
    for delay in (0.0, 1e-3):  # a clock says nothing
        program = OptModel(Choice())
        program.quick, solve = quick, program.solve
        program.solve = lambda *args, delay=delay, solve=solve: (time.sleep(delay), solve(*args))[1]
        found.append(PredictThenOptimize(program, 0.1, tol=0.05, random_state=0).fit(x, costs))
    assert found[0].structure_._quick_to_decode == quick
    assert found[0].certificate_.relative_gap <= 0.05
    assert np.array_equal(found[0].coef_, found[1].coef_)


def test_a_model_of_pyepo_maximises_and_is_checked():
    own = Choice()
    own.modelSense = -1
    with pytest.raises(ValueError, match="modelSense=-1 must be 1"):
        OptModel(own)
    own.solve = lambda: (np.eye(4)[own.c.argmax()], own.c.max())
    assert OptModel(own).maximize
    own.modelSense = 1
    with pytest.raises(ValueError, match="modelSense=1 must be -1"):
        OptModel(own)
    own = Choice()
    assert not OptModel(own).maximize
    y, value, bound = OptModel(Choice()).solve(np.array([[2.0, 1.0, 3.0, 4.0]]))
    assert y.dtype == np.int64
    assert y.tolist() == [[0, 1, 0, 0]]
    assert value.tolist() == [1.0]
    assert bound is None
    model = OptModel(own)
    own.solve = lambda: (np.full(4, 0.5), 0.0)
    with pytest.raises(ValueError, match=r"row 0 of the batch is not whole: give OptModel\(model, whole=False\)"):
        model.solve(np.ones((1, 4)))
    assert OptModel(own, whole=False).solve(np.ones((1, 4)))[0].tolist() == [[0.5] * 4]
    own.solve = lambda: (np.zeros(3), 0.0)
    with pytest.raises(ValueError, match="num_cost"):
        model.solve(np.ones((1, 4)))
    with pytest.raises(ValueError, match="given"):
        model.solve(np.ones((1, 4)), np.ones((1, 1)))
    own.modelSense = 0
    with pytest.raises(ValueError, match="modelSense"):
        OptModel(own)
    own.modelSense, own.c_pred_index = 1, np.arange(2)
    with pytest.raises(TypeError, match="model="):
        OptModel(own)
    with pytest.raises(TypeError, match="model="):
        OptModel(Choice)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"anchor": "mean"}, ValueError, "anchor"),
        ({"lam": 0.0}, ValueError, "lam=0"),
        ({"held_out": 1.0}, ValueError, "held_out=1.0"),
        ({"held_out": "a"}, TypeError, "held_out='a'"),
        ({"intercept_scaling": -1.0}, ValueError, "intercept_scaling=-1"),
        ({"shared": True}, ValueError, r"X has shape \[4, 2\]"),
        ({"program": 3}, TypeError, "oracle=3"),
        ({"tol": 2.0}, ValueError, "tol=2.0"),
    ],
)
def test_errors(options, error, said):
    x, costs = draw(4)
    with pytest.raises(error, match=said):
        PredictThenOptimize(**{"program": SQUARE, "lam": 1.0, **options}).fit(x, costs)


def test_errors_of_data():
    x, costs = draw(4)
    model = PredictThenOptimize(SQUARE, 1.0)
    with pytest.raises(ValueError, match="costs"):
        model.fit(x, costs[:3])
    with pytest.raises(ValueError, match="costs"):
        model.fit(x, costs[:, :3])
    with pytest.raises(ValueError, match="not finite"):
        model.fit(x * np.nan, costs)
    for large in (x * 1e200, (x * 1e30).astype(np.float32)):
        with pytest.raises(ValueError, match="X has features"):
            model.fit(large, costs)
    with pytest.raises(ValueError, match="lam=None"):
        PredictThenOptimize(SQUARE).fit(x[:1], costs[:1])
    with pytest.raises(ValueError, match="X has shape"):
        model.fit(x, costs).predict(np.ones((1, 3)))
    with pytest.raises(ValueError, match="costs"):
        model.regret(x, costs[:3])
    assert model.fit(x[:, :1], costs).coef_.shape == (4, 1)


def test_known_costs_of_another_shape_are_refused():
    x, costs = draw(4)
    model = PredictThenOptimize(SQUARE, 1.0, max_passes=2.0, tol=0.9).fit(x, costs)
    for wrong in (torch.full((4, 4), torch.nan), torch.ones(1, 4), torch.ones(4, 1)):
        with pytest.raises(ValueError, match=r"X\.fixed"):
            model.decide(Situations(torch.as_tensor(x), wrong))
