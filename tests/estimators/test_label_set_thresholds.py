"""Thresholds of MultilabelSVC: the highest F1 of held-out margins, kept as a shift of the intercepts."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV
from sklearn.utils import check_random_state

from torchssvm.deployment import load_head
from torchssvm.estimators import MultilabelSVC, choose_threshold, multilabel
from torchssvm.estimators.choose_threshold import choose_thresholds, held_out_margins


def _rare(seed, n=400, labels=5):
    """Labels that are on in a tenth of the rows, and noise that hides many of them."""
    chance = np.random.default_rng(seed)
    X = chance.normal(size=(n, 6))
    scores = X @ chance.normal(size=(6, labels)) + 3.0 * chance.normal(size=(n, labels))
    return X, (scores > np.quantile(scores, 0.9, axis=0)).astype(int)


def _f1(margins, y, weight, cuts):
    taken = margins > cuts
    return 2.0 * (weight * (taken & (y == 1))).sum() / (weight * (taken + y)).sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_one_threshold_has_the_highest_micro_f1(weighted):
    chance = np.random.default_rng(0)
    margins, y = chance.normal(size=(30, 3)).round(1), chance.integers(0, 2, (30, 3))  # with ties
    times = chance.integers(1, 4, 30).astype(float) if weighted else None
    weight = np.ones((30, 1)) if times is None else times[:, None]
    chosen = choose_thresholds(margins, y, times, by_label=False)
    assert len(set(chosen.tolist())) == 1
    tried = [_f1(margins, y, weight, cut) for cut in np.arange(-4.05, 4.0, 0.1)]
    assert _f1(margins, y, weight, chosen) == pytest.approx(max(tried))
    if weighted:
        often = choose_thresholds(margins.repeat(times.astype(int), 0), y.repeat(times.astype(int), 0), None, False)
        np.testing.assert_allclose(chosen, often)


def test_thresholds_by_label_of_frequent_labels_have_the_highest_f1_and_rare_ones_the_common():
    chance = np.random.default_rng(1)
    n = 20_000
    y = (chance.random((n, 3)) < [0.3, 0.5, 0.0]).astype(int)
    y[0, 2] = 1
    margins = y * 2.0 + chance.normal(size=(n, 3)) + [0.0, 3.0, 0.0]
    margins[:, 2] = np.linspace(1.0, -5.0, n)  # its only positive stands on top
    chosen, one = (choose_thresholds(margins, y, None, by_label) for by_label in (True, False))
    for k in (0, 1):
        best = max(_f1(margins[:, k], y[:, k], 1.0, cut) for cut in np.linspace(-3, 7, 200))
        assert _f1(margins[:, k], y[:, k], 1.0, chosen[k]) > best - 1e-3
    few, rare = slice(0, 200), margins[:200, 2:]
    alone = choose_thresholds(rare, y[few, 2:], None, True)
    assert alone == choose_thresholds(rare, y[few, 2:], None, False)  # of one label there is one threshold
    y[0, 2] = 0
    assert choose_thresholds(margins, y, None, True)[2] == 0.0
    assert choose_thresholds(margins, y, None, False)[2] == one[2]
    assert not choose_thresholds(margins, 0 * y, None, True).any()


def test_a_label_with_few_positives_has_a_threshold_near_the_common_one():
    """Alone, the only positive at rank 150 of 200 would make it predict three quarters of all rows."""
    chance = np.random.default_rng(2)
    y = (chance.random((200, 4)) < 0.4).astype(int)
    margins = y * 2.0 + chance.normal(size=(200, 4)) - 1.0
    y[:, 3] = 0
    margins[:, 3] = np.linspace(1.0, -3.0, 200)
    y[150, 3] = 1
    one, each = (choose_thresholds(margins, y, None, by_label) for by_label in (False, True))
    assert margins[150, 3] < -1.5
    assert abs(each[3] - one[3]) < 1.0 < abs(margins[150, 3] - one[3])


@pytest.mark.parametrize("threshold", ["f1", "f1-by-label"])
@pytest.mark.parametrize("interactions", [False, True])
def test_rare_labels_are_predicted(threshold, interactions, tmp_path):
    X, y = _rare(2)
    plain = MultilabelSVC(random_state=0, interactions=interactions).fit(X[:200], y[:200])
    fitted = MultilabelSVC(random_state=0, interactions=interactions, threshold=threshold).fit(X[:200], y[:200])
    before, after = (f1_score(y[200:], model.predict(X[200:]), average="micro") for model in (plain, fitted))
    assert after > before + 0.1
    assert (fitted.thresholds_ < 0.0).all()
    assert plain.thresholds_ is None
    np.testing.assert_array_equal(fitted.coef_, plain.coef_)
    np.testing.assert_allclose(fitted.intercept_, plain.intercept_ - fitted.thresholds_)
    assert fitted.certificate_.primal == plain.certificate_.primal  # of the weights before
    margins, sets = fitted.decision_function(X), fitted.predict(X)
    np.testing.assert_array_equal(margins > 0.0, sets == 1)
    if not interactions:
        np.testing.assert_allclose(margins, plain.decision_function(X) - fitted.thresholds_)
    fitted.save(tmp_path / "sets.safetensors")
    assert load_head(tmp_path / "sets.safetensors").decode(torch.tensor(X)).tolist() == sets.tolist()
    for other in (pickle.loads(pickle.dumps(fitted)), clone(fitted).fit(X[:200], y[:200])):
        np.testing.assert_array_equal(other.predict(X), sets)
    probable = fitted.calibrate(X[200:], y[200:]).predict_proba(X)
    np.testing.assert_array_equal(probable > 0.5, sets == 1)


def test_margins_are_of_weights_that_have_not_seen_the_example(monkeypatch):
    """They are of the fit on two thirds, at the same C; a weight counts an example as often."""
    X, y = _rare(3, 90)
    X, seen = sparse.csr_matrix(np.where(abs(X) > 1.0, X, 0.0)), []  # rows are scaled one by one

    def watched(*given, **options):
        seen.append(held_out_margins(*given, **options))
        return seen[-1]

    monkeypatch.setattr(multilabel, "held_out_margins", watched)
    monkeypatch.setattr(choose_threshold, "COARSE", 0.001)
    options = {"C": 3.0, "random_state": 5, "interactions": False, "tol": 0.001}
    fold = np.array_split(np.random.RandomState(check_random_state(5).randint(2**31 - 1)).permutation(90), 3)[0]
    rest = np.setdiff1d(np.arange(90), fold)
    times = np.random.default_rng(0).integers(1, 4, 90)
    for weights in (None, times):
        MultilabelSVC(**options, threshold="f1").fit(X, y, weights)
        alone = MultilabelSVC(**options).fit(X[rest], y[rest], None if weights is None else weights[rest])
        np.testing.assert_allclose(seen[-1][fold], alone.decision_function(X[fold]), atol=0.05)
    assert abs(seen[1] - seen[0]).max() > 0.5


@pytest.mark.parametrize("made", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("threshold", ["f1", "f1-by-label"])
def test_labels_with_fewer_positives_than_parts(threshold, made):
    X, y = _rare(4, 40)
    y[:, 0] = y[:, 2] = 0
    y[7, 0] = 1  # on in one row, label 2 in none, label 3 in all
    y[:, 3] = 1
    X = np.where(abs(X) > 1.0, X, 0.0) if made is sparse.csr_matrix else X
    fitted = MultilabelSVC(random_state=0, threshold=threshold).fit(made(X), y)
    assert np.isfinite(fitted.thresholds_).all()
    assert fitted.predict(made(X))[:, 3].all()
    three = MultilabelSVC(random_state=0, threshold=threshold).fit(made(X[:3]), y[:3])
    assert np.isfinite(three.intercept_).all()
    assert not MultilabelSVC(random_state=0, threshold=threshold).fit(made(X), 0 * y).thresholds_.any()


def test_it_goes_with_weights_warm_starts_and_searches():
    X, y = _rare(5, 200)
    times = np.random.default_rng(0).integers(0, 3, 200)
    weighted = MultilabelSVC(random_state=0, interactions=False, threshold="f1").fit(X, y, times)
    assert len(set(weighted.thresholds_.tolist())) == 1
    warm, plain = (MultilabelSVC(random_state=0, warm_start=True, threshold=each) for each in ("f1", None))
    once = warm.fit(X[:150], y[:150]).thresholds_
    for model in (plain.fit(X[:150], y[:150]), warm):
        model.fit(X, y)
    assert warm.thresholds_[0] != once[0]
    np.testing.assert_array_equal(warm.coef_, plain.coef_)  # the run's weights are not shifted
    np.testing.assert_allclose(warm.intercept_ + warm.thresholds_, plain.intercept_)
    balanced = MultilabelSVC(random_state=0, warm_start=True, class_weight="balanced").fit(X[:150], y[:150])
    balanced.set_params(threshold="f1").fit(X, y)
    chosen = MultilabelSVC("choose", random_state=0, threshold="f1").fit(X, y)
    assert chosen.choice_ is not None
    assert chosen.thresholds_[0] < 0.0
    grid = {"threshold": [None, "f1", "f1-by-label"]}
    search = GridSearchCV(MultilabelSVC(random_state=0, interactions=False), grid, cv=3, scoring="f1_micro").fit(X, y)
    assert search.best_params_["threshold"] is not None


@pytest.mark.parametrize("threshold", ["f1", "f1-by-label"])
def test_labels_that_are_always_on_are_predicted_where_margins_are_equal(threshold):
    X, y = np.zeros((30, 4)), np.array([[1, 0, 1]] * 30)
    fitted = MultilabelSVC(random_state=0, threshold=threshold).fit(X, y)
    np.testing.assert_array_equal(fitted.predict(X), y)
    np.testing.assert_allclose(choose_thresholds(np.ones((5, 2)), np.ones((5, 2)), None, threshold == "f1-by-label"), 0)


def test_what_is_refused():
    X, y = _rare(6, 30)
    with pytest.raises(ValueError, match="threshold='f2' must be None, 'f1' or 'f1-by-label'"):
        MultilabelSVC(threshold="f2").fit(X, y)
    with pytest.raises(ValueError, match="fit_intercept=False"):
        MultilabelSVC(threshold="f1", fit_intercept=False).fit(X, y)
    for given in (y[:, 0], y.argmax(1)):
        with pytest.raises(ValueError, match="y is a vector: give label sets"):
            MultilabelSVC(threshold="f1").fit(X, given)
    with pytest.raises(ValueError, match="y has 2 examples: give label sets"):
        MultilabelSVC(threshold="f1").fit(X[:2], y[:2])


def test_sets_stay_the_best_of_all_sets():
    """With pairs the shift is of the labels' scores, not of the margins: sets are decoded together."""
    X, y = _rare(7, 100, 4)
    y[:, 1] = y[:, 0]
    fitted = MultilabelSVC(random_state=0, interactions=True, threshold="f1-by-label").fit(X, y)
    sets = np.array(list(itertools.product([0, 1], repeat=4)))
    pairs = np.einsum("si,ij,sj->s", sets, fitted.interactions_, sets) / 2
    scores = (X @ fitted.coef_.T + fitted.intercept_) @ sets.T + pairs
    assert np.array_equal(fitted.predict(X), sets[scores.argmax(1)])
