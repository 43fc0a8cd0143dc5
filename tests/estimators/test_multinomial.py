"""MultinomialSVC beside scikit-learn's checks, its objective by hand, and lists beside dense features."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.utils.estimator_checks import check_estimator

from torchssvm.estimators import MultinomialSVC


@pytest.fixture
def data():
    chance = np.random.default_rng(1)
    X = chance.normal(size=(50, 5))
    return X, (X @ chance.normal(size=(5, 3)) + chance.normal(size=(50, 3))).argmax(1)


@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn():
    found = check_estimator(MultinomialSVC(max_passes=100), on_skip=None)
    assert {one["status"] for one in found} <= {"passed", "skipped"}


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


def test_a_class_weight_of_two_is_every_example_of_the_class_twice(data):
    X, y = data
    weighted = MultinomialSVC(class_weight={0: 2.0, 1: 1.0, 2: 1.0}, tol=1e-4, random_state=0).fit(X, y)
    again = np.concatenate([np.arange(50), np.flatnonzero(y == 0)])
    twice = MultinomialSVC(tol=1e-4, random_state=0).fit(X[again], y[again])
    scale = len(again) / 50  # the objectives are per example
    assert weighted.certificate_.primal >= scale * twice.certificate_.dual
    assert weighted.certificate_.dual <= scale * twice.certificate_.primal


def test_two_classes_have_one_row(data):
    X, y = data
    estimator = MultinomialSVC(random_state=0).fit(X.astype(np.float32), y == 0)
    assert estimator.coef_.shape == (1, 5)
    assert estimator.coef_.dtype == np.float32
    assert estimator.decision_function(X).shape == (50,)
    assert np.array_equal(estimator.predict(X), estimator.decision_function(X) > 0)
