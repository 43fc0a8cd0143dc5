"""MultilabelSVC: scikit-learn's checks, and decisions by enumeration."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.preprocessing import MaxAbsScaler, normalize

from torchssvm import SparseFeatures
from torchssvm.datasets.multilabel.scaling import Standardised
from torchssvm.datasets.multilabel.sparse_rows import SparseRows
from torchssvm.deployment import UnitRows, load_head, load_model
from torchssvm.estimators import MultilabelSVC


def _sparse(chance, n=30, features=8):
    X = chance.normal(size=(n, features)) * (chance.random((n, features)) < 0.3) * chance.uniform(0.1, 50.0, (n, 1))
    return X, (X @ chance.normal(size=(features, 3)) > 0).astype(int)


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


@pytest.mark.parametrize(
    ("mean", "deviation"), [(1.7e12, 1e5), (48.85, 1e-6), (0.0, 1e-165), (1e200, 1e200), (-1e300, 1e290), (3.0, 1e-12)]
)
def test_columns_of_any_size_and_mean_are_learnt(mean, deviation):
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = (X[:, :1] * [1, -1] > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MultilabelSVC(random_state=0).fit(X * [deviation, 1.0] + [mean, 0.0], y)
    assert (model.predict(X * [deviation, 1.0] + [mean, 0.0]) == y).mean() > 0.9


@pytest.mark.parametrize("size", [2.0**-548, 2.0**-100, 2.0**100, 2.0**664])  # which round nothing
@pytest.mark.parametrize("made", [np.asarray, sparse.csr_array])
def test_rows_of_any_size_are_divided_by_their_length(made, size):
    X, y = _sparse(np.random.default_rng(0))
    one, two = (MultilabelSVC(random_state=0).fit(made(rows), y) for rows in (X, X * size))
    assert one.unit_rows_
    assert np.array_equal(two.coef_, one.coef_)
    rows = torch.tensor(X)
    assert torch.allclose(UnitRows()(rows * size), UnitRows()(rows))


def test_columns_that_differ_by_rounding_are_named():
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = (X[:, :2] > 0).astype(int)
    X[:, 1] = np.nextafter(7.0, 7.0 + X[:, 1])
    X[:, 2] = 0.1  # says nothing, and needs no warning
    with pytest.warns(UserWarning, match=r"columns \[1\]"):
        assert not MultilabelSVC(random_state=0).fit(X, y).coef_[:, 1:].any()
    rows = torch.tensor(X).float()
    rows[::2, 1] = torch.nextafter(torch.tensor(7.0), torch.tensor(8.0))
    with pytest.warns(UserWarning, match=r"columns \[1\]"):
        assert not Standardised().fit(SparseRows.of_dense(rows)).scale[1:].any()


def test_arrays_that_are_mostly_not_zero_are_standardised():
    """Shifted and stretched columns, and one that never varies, change nothing but the weights of these columns."""
    chance = np.random.default_rng(1)
    X = chance.normal(size=(40, 3))
    y = (X @ chance.normal(size=(3, 3)) + 0.3 > 0).astype(int)
    stretch, shift = np.array([1e-3, 1.0, 1e4]), np.array([5.0, -2.0, 1e5])
    other = np.hstack([X * stretch + shift, np.full((40, 1), 0.1)])
    one, two = (MultilabelSVC(random_state=0, tol=1e-4).fit(rows, y) for rows in (X, other))
    assert two.certificate_.primal == pytest.approx(one.certificate_.primal, rel=1e-4)
    assert two.coef_[:, :3] * stretch == pytest.approx(one.coef_, rel=0.02, abs=1e-3)
    assert not two.coef_[:, 3].any()
    assert np.array_equal(two.predict(other), one.predict(X))
    assert one.lam_ == pytest.approx(2.0 / (9.0 * 40))
    without = MultilabelSVC(random_state=0, fit_intercept=False).fit(X, y)
    assert without.lam_ == pytest.approx(1.0 / (9.0 * 40))


def test_mostly_zero_rows_have_unit_length_in_saved_models_too(tmp_path):
    X, y = _sparse(np.random.default_rng(2))
    model = MultilabelSVC(random_state=0).fit(sparse.csr_matrix(X), y)
    assert np.array_equal(model.predict(X), model.predict(7.0 * X))
    assert model.lam_ == pytest.approx((np.any(X, axis=1).mean() + 1.0) / (9.0 * len(X)))
    array = MultilabelSVC(random_state=0).fit(X, y)
    assert array.certificate_.primal == pytest.approx(model.certificate_.primal)
    array.save(tmp_path / "sets.safetensors")
    assert load_head(tmp_path / "sets.safetensors").decode(torch.tensor(X)).tolist() == model.predict(X).tolist()
    model.save(tmp_path / "sets.safetensors")
    at = torch.arange(X.shape[1]).expand(X.shape)
    lists = SparseFeatures(at.where(torch.tensor(X) != 0.0, -1), torch.tensor(X))
    assert load_head(tmp_path / "sets.safetensors").decode(lists).tolist() == model.predict(X).tolist()
    classes = MultilabelSVC(random_state=0).fit(sparse.csr_matrix(X), y.argmax(1))
    classes.save(tmp_path / "classes.safetensors")
    decoder = load_model(tmp_path / "classes.safetensors")
    assert [int(decoder.labels[code]) for code in decoder(torch.tensor(X))] == classes.predict(X).tolist()


def test_bad_choices_of_C():
    chance = np.random.default_rng(3)
    X, y = chance.normal(size=(60, 3)), chance.integers(0, 2, (60, 2))
    assert (guessed := MultilabelSVC().fit(X, y)).choice_ is None
    assert guessed.lam_ == MultilabelSVC("guess").fit(X, y).lam_
    with pytest.raises(ValueError, match="C='choose'"):
        MultilabelSVC("choose").fit(X[:1], y[:1])
    with pytest.raises(ValueError, match="C='best' must be 'guess', 'choose' or a positive number"):
        MultilabelSVC("best").fit(X, y)


@pytest.mark.parametrize("kind", ["sets", "pairs", "two classes", "classes"])
def test_probabilities_of_labels_once_they_are_calibrated(kind, tmp_path):
    chance = np.random.default_rng(4)
    X = chance.normal(size=(60, 3))
    sets = (X + chance.normal(size=(60, 3)) > 0.0).astype(int)
    y = {"two classes": sets[:, 0], "classes": sets.argmax(1)}.get(kind, sets)
    fitted = MultilabelSVC(random_state=0, interactions=kind == "pairs").fit(X[:30], y[:30])
    assert not hasattr(fitted, "predict_proba")
    before, labels = fitted.predict(X), fitted.calibrate(X[30:], y[30:]).predict_proba(X)
    assert np.array_equal(fitted.predict(X), before)
    margins = fitted.decision_function(X)
    if y.ndim == 2:
        assert labels == pytest.approx(1.0 / (1.0 + np.exp(-margins / fitted.temperature_)))
        assert np.array_equal(labels > 0.5, before == 1)
    else:
        assert labels.sum(1) == pytest.approx(np.ones(60))
        assert np.array_equal(fitted.classes_[labels.argmax(1)], before)
        fitted.save(tmp_path / "classes.safetensors")
        saved = load_head(tmp_path / "classes.safetensors").marginals(torch.tensor(X))
        assert saved.parts[next(iter(saved.parts))].numpy() == pytest.approx(labels)

    def likelihood(temperature):
        fitted.temperature_ = temperature
        mass = fitted.predict_proba(X[30:])
        right = np.where(y[30:] == 1, mass, 1.0 - mass) if y.ndim == 2 else mass[np.arange(30), y[30:]]
        return np.log(right).sum()

    best = fitted.temperature_
    assert all(likelihood(best) >= likelihood(best * factor) for factor in (0.9, 0.99, 1.01, 1.1))
    wrong = np.where(y[30:] == 1, 3, y[30:]) if y.ndim == 2 else y[30:] + 9
    with pytest.raises(ValueError, match="y must" if y.ndim == 2 else "y has the label"):
        fitted.calibrate(X[30:], wrong)


def test_a_fit_that_decides_on_no_label_says_so():
    """Columns that are far larger than the others hide them where rows are only divided by their length."""
    chance = np.random.default_rng(0)
    X = chance.normal(size=(40, 4))
    y = (X[:, :3] > 0.8).astype(int)
    hidden = sparse.csr_matrix(np.hstack([X * (abs(X) > 0.7), np.eye(2)[np.arange(40) % 2] * 1e4]))
    with pytest.warns(UserWarning, match="no label"):
        silent = MultilabelSVC(tol=0.1, random_state=0).fit(hidden, y)
    assert not silent.predict(hidden).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = MaxAbsScaler().fit_transform(hidden)
        assert MultilabelSVC(tol=0.1, random_state=0).fit(scaled, y).predict(scaled).any()
        assert not MultilabelSVC(tol=0.1, random_state=0).fit(X, np.zeros_like(y)).predict(X).any()  # as it was taught


def test_columns_that_come_twice_in_a_sparse_row_are_summed():
    """As counts of words are made; rows are divided by their length after it."""
    random = np.random.default_rng(0)
    X = sparse.random(60, 8, 0.4, "csr", random_state=0)
    y = (X @ random.normal(size=(8, 3)) > 0.2).astype(int)
    halves = sparse.csr_matrix((np.repeat(X.data, 2) / 2, np.repeat(X.indices, 2), X.indptr * 2), shape=X.shape)
    kept = halves.data.copy()
    once, twice = (MultilabelSVC(tol=0.1, random_state=0).fit(each, y) for each in (X, halves))
    for given in (X, halves):
        np.testing.assert_allclose(twice.decision_function(given), once.decision_function(X), atol=1e-9)
    assert (halves.data == kept).all()


def test_a_cost_is_the_margin_that_is_asked_for():
    chance, cost = np.random.default_rng(2), np.array([3.0, 1.0, 0.5])
    X, y = _sparse(chance)
    X = normalize(X)
    fitted = MultilabelSVC(C=2.0, interactions=False, class_weight=dict(enumerate(cost)), random_state=0)
    fitted.fit(sparse.csr_matrix(X), y)
    hinges = np.maximum(cost - (2 * y - 1) * (X @ fitted.coef_.T + fitted.intercept_), 0.0)
    squares = np.square(fitted.coef_).sum() + np.square(fitted.intercept_).sum()
    assert fitted.certificate_.primal == pytest.approx(fitted.lam_ / 2 * squares + hinges.sum(1).mean())


def test_a_saved_estimator_of_sparse_rows_takes_them_again(tmp_path):
    pytest.importorskip("safetensors")
    X = sparse.random(60, 12, density=0.2, format="csc", random_state=0)
    y = (X[:, :3].toarray() > 0.3).astype(int)
    fitted = MultilabelSVC(C=10.0, random_state=0).fit(X, y)
    fitted.save(tmp_path / "sets.safetensors")
    decoded = load_head(tmp_path / "sets.safetensors").decode(SparseFeatures.of_rows(X))
    assert decoded.tolist() == fitted.predict(X).tolist()
    assert decoded.any()
    with pytest.raises(TypeError, match="matrix must be a scipy sparse matrix"):
        SparseFeatures.of_rows(torch.ones(2, 2))
