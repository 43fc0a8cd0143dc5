"""MultilabelSVC: scikit-learn's checks, and decisions by enumeration."""

import itertools

import numpy as np
import pytest
from scipy import sparse
from sklearn.utils.estimator_checks import check_estimator

from torchssvm.estimators import MultilabelSVC


@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn():
    found = check_estimator(MultilabelSVC(max_passes=2), on_skip=None)
    assert {one["status"] for one in found} <= {"passed", "skipped"}


def test_sets_and_decisions():
    chance = np.random.default_rng(0)
    X = chance.normal(size=(16, 3))
    y = (X @ chance.normal(size=(3, 3)) + chance.normal(size=(16, 1)) > 0).astype(int)
    estimator = MultilabelSVC(random_state=0, tol=0.1).fit(X, y)
    sets = np.array(list(itertools.product([0, 1], repeat=3)))
    pairs = np.einsum("si,ij,sj->s", sets, estimator.interactions_, sets) / 2
    scores = (X @ estimator.coef_.T + estimator.intercept_) @ sets.T + pairs
    assert np.array_equal(estimator.predict(X), sets[scores.argmax(1)])
    best = [[max(row[sets[:, k] == on]) for on in (0, 1)] for row in scores for k in range(3)]
    decisions = np.diff(best, axis=1).reshape(16, 3)
    assert estimator.decision_function(X) == pytest.approx(decisions, abs=1e-9)
    lists = MultilabelSVC(random_state=0, tol=0.1).fit(sparse.csr_matrix(X), y)
    assert lists.certificate_.dual <= estimator.certificate_.primal
    assert estimator.certificate_.dual <= lists.certificate_.primal


@pytest.mark.filterwarnings("ignore:the run ended at max_passes")
def test_many_labels_name_the_solver_without_decoding():
    x, y = np.random.default_rng(0).normal(size=(6, 2)), np.eye(6, 31, dtype=int)
    with pytest.warns(UserWarning, match=r"31 labels have 465 pairs.*GDMM") as told:
        MultilabelSVC(tol=0.9, max_passes=1).fit(x, y)
    assert sum("GDMM" in str(warning.message) for warning in told) == 1
