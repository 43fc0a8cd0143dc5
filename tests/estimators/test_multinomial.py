"""MultinomialSVC beside scikit-learn's checks, its objective by hand, and lists beside dense features."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from torchssvm.estimators import MultinomialSVC


@pytest.fixture
def data():
    chance = np.random.default_rng(1)
    X = chance.normal(size=(50, 5))
    return X, (X @ chance.normal(size=(5, 3)) + chance.normal(size=(50, 3))).argmax(1)


def objective(estimator, X, y, weights):
    scores = X @ estimator.coef_.T + estimator.intercept_
    true = scores[np.arange(len(X)), y]
    wrong = np.arange(3) != y[:, None]
    hinge = (scores + wrong - true[:, None]).max(1)
    size = (estimator.coef_**2).sum() + (estimator.intercept_**2).sum()
    return estimator.certificate_.lam / 2 * size + (weights * hinge).mean()


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("class_weight", [None, {0: 2.0, 1: 0.0, 2: 0.3}])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_the_certificate_is_of_the_objective(data, fit_intercept, class_weight, kind):
    X, y = data
    estimator = MultinomialSVC(fit_intercept=fit_intercept, class_weight=class_weight, random_state=0).fit(kind(X), y)
    weights = np.array([(class_weight or {0: 1.0, 1: 1.0, 2: 1.0})[label] for label in y])
    assert objective(estimator, X, y, weights) == pytest.approx(estimator.certificate_.primal, rel=1e-9)
    assert fit_intercept or not estimator.intercept_.any()
    assert np.array_equal(estimator.predict(kind(X)), estimator.predict(X))


@pytest.mark.parametrize("class_weight", ["balanced", {0: 2.0, 1: 0.0}])
def test_later_fits_take_other_weights(data, class_weight):
    X, y = data
    model = [MultinomialSVC(warm_start=True, class_weight={0: 0.5}).fit(X, y).set_params(class_weight=class_weight)]
    model.append(MultinomialSVC(class_weight=class_weight).fit(X, y))
    model[0].fit(X, y)
    model.append(clone(model[1]).partial_fit(X[:30], y[:30]).partial_fit(X[30:], y[30:]))
    assert max(one.certificate_.dual for one in model) <= min(one.certificate_.primal for one in model)


def test_two_classes_have_one_row(data):
    X, y = data
    estimator = MultinomialSVC(random_state=0).fit(X.astype(np.float32), y == 0)
    assert estimator.coef_.shape == (1, 5)
    assert estimator.coef_.dtype == np.float32
    assert estimator.decision_function(X).shape == (50,)
    assert np.array_equal(estimator.predict(X), estimator.decision_function(X) > 0)


@pytest.mark.parametrize("names", [None, ["b", "a", "c"], ["no", "yes"]])
def test_probabilities_are_those_of_the_best_temperature(data, names):
    X, y = data
    y = y if names is None else np.array(names, dtype=object)[y % len(names)]
    fitted = MultinomialSVC(tol=0.1).fit(X[:30], y[:30])
    assert not hasattr(fitted, "predict_proba")
    with pytest.raises(AttributeError) as error:
        fitted.predict_proba(X)
    assert "calibrate(X, y)" in str(error.value)
    wrong = y[30:].copy()
    wrong[3] = 7 if names is None else "d"
    with pytest.raises(ValueError, match=f"y has the label '?{wrong[3]}"):
        fitted.calibrate(X[30:], wrong)
    before, labels = fitted.predict(X), fitted.calibrate(X[30:], y[30:]).predict_proba(X)
    assert fitted.predict(X).tolist() == before.tolist() == fitted.classes_[labels.argmax(1)].tolist()
    scores = fitted.decision_function(X)
    scores = np.stack([0 * scores, scores], 1) if scores.ndim == 1 else scores

    def probabilities(temperature):
        weights = np.exp(scores / temperature)
        return weights / weights.sum(1, keepdims=True)

    def likelihood(temperature):
        return np.log(probabilities(temperature)[range(30, 50), fitted.classes_.searchsorted(y[30:])]).sum()

    assert labels == pytest.approx(probabilities(fitted.temperature_))
    best = likelihood(fitted.temperature_)
    assert all(best >= likelihood(fitted.temperature_ * factor) for factor in (0.9, 0.99, 1.01, 1.1))
    assert not hasattr(fitted.fit(X, y), "predict_proba")
