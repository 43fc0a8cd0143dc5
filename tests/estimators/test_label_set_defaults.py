"""What MultilabelSVC decides by itself: columns that are mostly on, the pairs that are scored, and the choice of C."""

import itertools
import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.metrics import f1_score

from torchssvm import Multilabel, SparseFeatures
from torchssvm.deployment import Decoder, load_head
from torchssvm.estimators import MultilabelSVC, multilabel
from torchssvm.estimators.choose_pairs import all_pairs, choose_pairs
from torchssvm.structures.multilabel import MessagePassing


def _motifs(chance, n=240, motifs=60, labels=4):
    """A column for yes and one for no of every motif, as protein families are listed; no is on in most rows."""
    y = np.eye(labels, dtype=int)[chance.integers(0, labels, n)]
    has = chance.random((n, motifs)) < 0.02
    has[:, :labels] |= (chance.random((n, labels)) < 0.9) & (y == 1)
    return np.stack([has, ~has], 2).reshape(n, -1).astype(float), y


def _chained(chance, n=400, labels=5):
    """Each label but the last copies the one before it, mostly; the last one depends on nothing."""
    y = chance.integers(0, 2, (n, labels))
    for k in range(1, labels - 1):
        y[:, k] = np.where(chance.random(n) < 0.8, y[:, k - 1], y[:, k])
    return y


def _lists(X):
    at = torch.arange(X.shape[1]).expand(X.shape)
    return SparseFeatures(at.where(torch.tensor(X) != 0.0, -1), torch.tensor(X))


def test_columns_that_are_mostly_on_hide_nothing(tmp_path):
    X, y = _motifs(np.random.default_rng(0))
    X[:, 0] *= 0.0  # so that less than half is not zero
    train, test = slice(160), slice(160, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dense = MultilabelSVC(random_state=0).fit(X[train], y[train])
        listed = MultilabelSVC(random_state=0).fit(sparse.csr_matrix(X[train]), y[train])
    assert dense.unit_rows_
    assert f1_score(y[test], dense.predict(X[test]), average="micro") > 0.85
    decisions = dense.decision_function(X)
    assert listed.decision_function(sparse.csr_matrix(X)) == pytest.approx(decisions, abs=0.02)  # of two runs
    assert listed.decision_function(X) == pytest.approx(listed.decision_function(sparse.csr_matrix(X)), abs=1e-9)
    for fitted, given in ((dense, torch.tensor(X)), (listed, _lists(X))):
        fitted.save(tmp_path / "sets.safetensors")
        assert load_head(tmp_path / "sets.safetensors").decode(given).tolist() == fitted.predict(X).tolist()


def test_the_median_of_columns_that_are_mostly_on_is_subtracted():
    chance = np.random.default_rng(1)
    words = (chance.random((50, 20)) < 0.1) * 2.0
    sizes = np.exp(3.0 * chance.normal(size=(50, 1)))
    X, y = np.hstack([words, sizes, np.full((50, 1), 7.0)]), (words[:, :3] > 0).astype(int)
    for given in (X, sparse.csr_matrix(X)):
        fitted = MultilabelSVC(random_state=0, tol=0.1).fit(given, y)
        assert np.array_equal(fitted.shift_[:20], np.zeros(20))
        assert fitted.shift_[20:] == pytest.approx([np.sort(sizes.ravel())[24], 7.0])
        left = np.square((X - fitted.shift_) * fitted.scale_)
        assert left[:, 20].sum() / 49 == pytest.approx(4.0)  # as large as words
        assert not left[:, 21].any()
    assert MultilabelSVC(tol=0.1).fit(sparse.csr_matrix(words), y).shift_ is None
    assert MultilabelSVC(tol=0.1, fit_intercept=False).fit(sparse.csr_matrix(X), y).shift_ is None


def test_a_weight_is_a_row_that_comes_so_often():
    X, y = _motifs(np.random.default_rng(2), 40, 6)
    X = np.hstack([X, np.random.default_rng(3).normal(size=(40, 1)), np.zeros((40, 3))])
    times = np.random.default_rng(4).integers(0, 4, 40)
    once = MultilabelSVC(tol=1e-3, random_state=0).fit(sparse.csr_matrix(X), y, times)
    often = MultilabelSVC(tol=1e-3, random_state=0).fit(sparse.csr_matrix(X.repeat(times, 0)), y.repeat(times, 0))
    assert once.shift_ == pytest.approx(often.shift_)
    assert once.scale_ == pytest.approx(often.scale_)
    assert once.lam_ == pytest.approx(often.lam_)
    assert np.array_equal(once.interactions_ != 0.0, often.interactions_ != 0.0)
    assert once.certificate_.primal == pytest.approx(often.certificate_.primal, rel=2e-3)


def test_pairs_are_those_that_depend_on_each_other():
    y = _chained(np.random.default_rng(5))
    result = {tuple(pair) for pair in choose_pairs(y).tolist()}
    assert {(0, 1), (1, 2), (2, 3)} <= result <= set(itertools.combinations(range(4), 2))
    assert len(choose_pairs(np.random.default_rng(6).integers(0, 2, (200, 30)))) <= 1  # by chance
    constant = np.hstack([np.zeros((400, 1), int), y, np.ones((400, 1), int)])
    assert np.array_equal(choose_pairs(constant), choose_pairs(y) + 1)
    assert np.array_equal(all_pairs(constant), all_pairs(y) + 1)
    assert len(all_pairs(y)) == 10
    times = np.random.default_rng(7).integers(0, 3, 400)
    assert np.array_equal(choose_pairs(y, times.astype(float)), choose_pairs(y.repeat(times, 0)))


def test_each_label_has_few_pairs():
    common = np.random.default_rng(8).integers(0, 2, (300, 1))
    y = np.where(np.random.default_rng(9).random((300, 12)) < 0.5, common, 1 - common.repeat(12, 1) % 2)
    y = (y + np.random.default_rng(10).integers(0, 2, (300, 12)) + common > 1).astype(int)
    pairs = choose_pairs(y)
    assert np.bincount(pairs.ravel()).max() == 5


def test_labels_that_exclude_each_other_meet_the_frequent_ones():
    """A rare label is never on together with another one, and too rarely on for a test to say so."""
    y = np.eye(12, dtype=int)[np.minimum(np.random.default_rng(11).geometric(0.3, 200) - 1, 11)]
    pairs = {tuple(pair) for pair in choose_pairs(y).tolist()}
    assert pairs == {(i, j) for i, j in all_pairs(y).tolist() if i < 5}


@pytest.mark.parametrize("interactions", [None, True])
def test_labels_that_are_never_or_always_on_have_no_pairs(interactions):
    chance = np.random.default_rng(12)
    X = sparse.random(200, 300, 0.05, "csr", random_state=0)
    y = (X @ chance.normal(size=(300, 8)) > 0.2).astype(int)
    y[:, 0], y[:, 5] = 0, 1
    fitted = MultilabelSVC(random_state=0, tol=0.1, interactions=interactions).fit(X, y)
    if interactions:
        assert fitted.structure_.num_pairs == 15
        assert not fitted.interactions_[[0, 5]].any()
    else:
        assert fitted.interactions_ is None
    assert fitted.certificate_.exact
    assert np.array_equal(fitted.predict(X)[:, [0, 5]], y[:, [0, 5]])


def test_models_of_chosen_pairs_go_on_and_are_saved(tmp_path):
    chance = np.random.default_rng(13)
    y = chance.integers(0, 2, (400, 5))
    for k in (0, 2):
        y[:, k] = np.where(chance.random(400) < 0.7, y[:, k + 1], y[:, k])
    X = y + 2.0 * chance.normal(size=y.shape)
    fitted = MultilabelSVC(random_state=0, warm_start=True).fit(X[:300], y[:300])
    pairs = fitted.structure_.pairs
    assert pairs.tolist() == [[0, 1], [2, 3]]
    assert np.array_equal(np.argwhere(np.triu(fitted.interactions_)), pairs)
    cold = MultilabelSVC(random_state=0).fit(X, y)
    assert torch.equal(fitted.fit(X, 1 - y[::-1]).structure_.pairs, pairs)  # those that the run began with
    assert fitted.certificate_.relative_gap <= 0.01
    assert np.array_equal(pickle.loads(pickle.dumps(cold)).predict(X), cold.predict(X))
    cold.save(tmp_path / "sets.safetensors")
    saved = load_head(tmp_path / "sets.safetensors")
    assert saved.decode(torch.tensor(X)).tolist() == cold.predict(X).tolist()
    by_messages = Multilabel(5, decoder=MessagePassing(1000), pairs=saved.structure.pairs)
    decoder = Decoder(saved.head, structure=by_messages, features=saved.features)
    exported = torch.export.export(decoder, (torch.tensor(X),)).module()
    assert exported(torch.tensor(X)).tolist() == cold.predict(X).tolist()


def test_a_fit_that_goes_on_solves_the_problem_with_the_pairs_of_the_first(monkeypatch):
    """As the docstring says: a new estimator chooses pairs by the new examples, and has another objective."""
    chance = np.random.default_rng(15)
    X = chance.normal(size=(200, 4))
    first, later = (chance.integers(0, 2, (200, 4)) for _ in range(2))
    first[:, 0], later[:, 2] = first[:, 1], later[:, 3]
    options = {"lam": 0.05, "tol": 0.001, "random_state": 0}
    warm = MultilabelSVC(**options, warm_start=True).fit(X, first).fit(X, later)
    cold = MultilabelSVC(**options).fit(X, later)
    assert warm.structure_.pairs.tolist() == [[0, 1]]
    assert cold.structure_.pairs.tolist() == [[2, 3]]
    assert warm.certificate_.dual > cold.certificate_.primal  # the pair that is missing would have helped
    monkeypatch.setattr(multilabel, "choose_pairs", lambda y, times: np.array([[0, 1]]))
    same = MultilabelSVC(**options).fit(X, later)
    assert same.certificate_.dual <= warm.certificate_.primal
    assert warm.certificate_.dual <= same.certificate_.primal
    monkeypatch.undo()
    assert warm.set_params(warm_start=False).fit(X, later).structure_.pairs.tolist() == [[2, 3]]


def test_the_guess_stays_unless_another_predicts_better_by_more_than_chance(monkeypatch):
    chance = np.random.default_rng(14)
    X = chance.normal(size=(60, 3))
    y = chance.integers(0, 2, (60, 2))  # there is nothing to learn
    guessed, chosen = (MultilabelSVC(C, random_state=0).fit(X, y) for C in ("guess", "choose"))
    assert chosen.lam_ == guessed.lam_ == chosen.choice_.guess
    assert np.array_equal(chosen.coef_, guessed.coef_)
    assert [point.held_out.num_examples for point in chosen.choice_.points] == [60] * 4  # each is held out once

    monkeypatch.setattr(multilabel, "_SHARE", 3.0)  # a guess that finds few labels
    y = (X > 1.0).astype(int)
    chosen = MultilabelSVC("choose", random_state=0).fit(X, y)
    assert chosen.lam_ == chosen.choice_.best.lam == chosen.certificate_.lam < chosen.choice_.guess
    assert chosen.choice_.best.score > chosen.choice_.points[1].score


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", range(20))
def test_pairs_of_few_rows_and_of_weights_that_vanish_warn_of_nothing(seed):
    """A weight of 1e-20 is lost in the sum of all: a label that is on in this row alone then has no count."""
    random = np.random.default_rng(seed)
    for _ in range(20):
        y = (random.random((random.integers(1, 8), 4)) < random.choice([0.0, 0.2, 0.8, 1.0], 4)).astype(int)
        times = random.choice([1.0, 1 / 3, 1e-20, 1e20], len(y))
        pairs = choose_pairs(y, times)
        assert pairs.shape[1] == 2
        assert {tuple(pair) for pair in pairs.tolist()} <= {tuple(pair) for pair in all_pairs(y).tolist()}
    lost = np.array([[1, 1], [0, 0], [1, 0], [0, 1]] * 30)
    weights = np.where(lost.all(1) | ~lost.any(1), 1.0, 1e-20)
    assert choose_pairs(lost, weights).tolist() == choose_pairs(lost[lost[:, 0] == lost[:, 1]]).tolist() == [[0, 1]]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_of_very_different_sizes_have_finite_weights(dtype):
    X = np.zeros((8, 3), dtype)
    X[:, 0] = np.arange(1, 9) * np.finfo(dtype).tiny * 1e3
    X[0, 1] = X[1, 2] = np.sqrt(np.finfo(dtype).max) * dtype(1e10)
    model = MultilabelSVC(tol=0.1).fit(X, np.arange(16).reshape(8, 2) // 3 % 2)
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.scale_).all()
