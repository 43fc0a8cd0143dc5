"""What all estimators do: parameters, certificates, copies, searches and errors."""

import io
import json
import pickle
import warnings

import joblib
import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch.nn.utils.rnn import pad_sequence

from torchssvm.deployment import batch_of_names, load_head, load_model
from torchssvm.estimators import ChainSVC, GraphSVC, MultilabelSVC, MultinomialSVC, SegmentSVC
from torchssvm.structures import ForestFeatures

chance = np.random.default_rng(0)


def _classes():
    X = chance.normal(size=(60, 4))
    return X, np.array(["a", "b", "c"])[(X @ chance.normal(size=(4, 3))).argmax(1)]


def _sequences():
    X = [chance.normal(size=(n, 3)) for n in chance.integers(1, 6, 20)]
    weight = chance.normal(size=(3, 3))
    return X, [np.array(["x", "y", "z"])[(rows @ weight).argmax(1)].tolist() for rows in X]


def _words():
    X, y = _sequences()
    tokens = [[{"up": bool(r[0] > 0), "kind": "ab"[int(r[1] > 0)], "size": r[2]} for r in rows] for rows in X]
    return tokens, y


def _label_sets():
    X = chance.normal(size=(16, 4))
    return X, (X @ chance.normal(size=(4, 3)) > 0).astype(int)


def _forests():
    X, y = (part[:10] for part in _sequences())
    return [(rows, np.array([(i, i - 1) for i in range(1, len(rows))])) for rows in X], [np.array(row) for row in y]


@pytest.mark.parametrize("made", [_classes, _sequences, _words])
def test_a_saved_model_predicts_the_same(made, tmp_path):
    X, y = made()
    kind = MultinomialSVC if made is _classes else ChainSVC
    fitted = kind(tol=0.3).fit(X, y)
    fitted.save(tmp_path / "model.safetensors")
    decoder = load_model(tmp_path / "model.safetensors")
    assert decoder.labels == [str(label) for label in fitted.classes_]
    if made is _words:
        labels = decoder(*batch_of_names(X, fitted.vocabulary_))
    elif made is _sequences:
        labels = decoder(
            pad_sequence([torch.tensor(rows) for rows in X], True), torch.tensor([len(rows) for rows in X])
        )
    else:
        labels = decoder(torch.tensor(X))
    if kind is ChainSVC:
        assert [[decoder.labels[state] for state in row if state >= 0] for row in labels] == fitted.predict(X)
    else:
        assert [decoder.labels[code] for code in labels] == fitted.predict(X).tolist()


def test_a_saved_head_of_label_sets_predicts_the_same(tmp_path):
    X, y = _label_sets()
    fitted = MultilabelSVC(tol=0.3).fit(X, y)
    fitted.save(tmp_path / "model.safetensors")
    saved = load_head(tmp_path / "model.safetensors")
    assert saved.labels == [str(label) for label in fitted.classes_]
    assert saved.structure.decode(saved.head(torch.tensor(X))).tolist() == fitted.predict(X).tolist()


@pytest.mark.parametrize("count", [2, 3])
def test_label_sets_of_one_class_each_are_saved_as_classes(count, tmp_path):
    X, y = _classes()
    fitted = MultilabelSVC(tol=0.3).fit(X, np.where(y == "c", "b", y) if count == 2 else y)
    fitted.save(tmp_path / "model.safetensors")
    decoder = load_model(tmp_path / "model.safetensors")
    assert [decoder.labels[code] for code in decoder(torch.tensor(X))] == fitted.predict(X).tolist()


def test_a_saved_head_of_forests_predicts_the_same(tmp_path):
    """A chain's first node is its root, and edges lead from each node to its parent, the one before."""
    X, y = _forests()
    fitted = GraphSVC(tol=0.3, class_weight="balanced").fit(X, y)
    fitted.save(tmp_path / "model.safetensors")
    saved = load_head(tmp_path / "model.safetensors")
    for (nodes, _), expected in zip(X, fitted.predict(X), strict=True):
        parent = torch.arange(-1, len(nodes) - 1)[None]
        x = ForestFeatures(torch.tensor(nodes)[None], (parent >= 0)[..., None], parent, torch.zeros(parent.shape))
        states = saved.structure.decode(saved.head(x)).labels[0]
        assert [saved.labels[state] for state in states] == expected.tolist()


CASES = {
    "classes": (MultinomialSVC, _classes),
    "arrays": (ChainSVC, _sequences),
    "words": (ChainSVC, _words),
    "segments": (SegmentSVC, _sequences),
    "label sets": (MultilabelSVC, _label_sets),
    "forests": (GraphSVC, _forests),
}


@pytest.fixture(params=CASES)
def case(request):
    kind, make = CASES[request.param]
    given = {MultilabelSVC: {"C": 1.0}, SegmentSVC: {"max_duration": 5}}
    return kind(random_state=0, **given.get(kind, {})), *make()


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_fit_is_certified(case):
    estimator, X, y = case
    assert estimator.fit(X, y) is estimator
    certificate = estimator.certificate_
    assert certificate.primal - certificate.dual == pytest.approx(certificate.gap, abs=1e-12)
    assert certificate.gap <= 0.01 * certificate.primal
    assert certificate.lam == pytest.approx(1 / len(X))
    assert estimator.history_[-1]["gap"] == certificate.gap
    assert estimator.n_passes_ == certificate.passes
    assert estimator.coef_.shape == (len(estimator.classes_), estimator.n_features_in_)
    assert estimator.score(X, y) > 0.6


def test_lam_is_one_over_C_n(case):
    estimator, X, y = case
    estimator.set_params(tol=0.1)
    one = clone(estimator).set_params(C=0.5).fit(X, y)
    other = clone(estimator).set_params(C=None, lam=2 / len(X)).fit(X, y)
    assert np.array_equal(one.coef_, other.coef_)
    with pytest.raises(ValueError, match="lam="):
        clone(estimator).set_params(C=0.5, lam=0.1).fit(X, y)
    if not isinstance(estimator, MultilabelSVC):
        default = clone(estimator).set_params(C=None).fit(X, y)
        assert np.array_equal(default.coef_, clone(estimator).set_params(C=1.0).fit(X, y).coef_)


def test_copies_predict_the_same(case):
    estimator, X, y = case
    model = estimator.set_params(tol=0.1).fit(X, y).predict(X)
    assert same(pickle.loads(pickle.dumps(estimator)).predict(X), model)
    file = io.BytesIO()
    joblib.dump(estimator, file)
    file.seek(0)
    assert same(joblib.load(file).predict(X), model)
    with pytest.raises(NotFittedError):
        clone(estimator).predict(X)
    assert same(clone(estimator).fit(X, y).predict(X), model)


def test_searches_and_pipelines(case):
    estimator, X, y = case
    estimator.set_params(tol=0.1)
    search = GridSearchCV(estimator, {"C": [0.5, 1.0]}, cv=2).fit(X, y)
    assert 0.2 < search.best_score_ <= 1.0
    assert len(cross_val_score(estimator, X, y, cv=3)) == 3
    pipeline = make_pipeline(FunctionTransformer(), clone(estimator).set_params(**search.best_params_)).fit(X, y)
    assert same(pipeline.predict(X), search.best_estimator_.predict(X))


def test_the_end_of_max_passes_warns(case):
    estimator, X, y = case
    with pytest.warns(ConvergenceWarning, match="max_passes="):
        estimator.set_params(max_passes=0.1, tol=1e-4, C=100.0).fit(X, y)
    assert estimator.certificate_.gap > 1e-4 * estimator.certificate_.primal


def test_a_warm_start_goes_on(case):
    estimator, X, y = case
    estimator.set_params(warm_start=True, tol=0.2).fit(X, y)
    first = estimator.certificate_
    estimator.set_params(tol=0.02).fit(X, y)
    assert estimator.certificate_.dual >= first.dual
    assert estimator.certificate_.passes > first.passes
    estimator.set_params(C=3.0, tol=0.05).fit(X, y)
    cold = clone(estimator).fit(X, y).certificate_
    warm = estimator.certificate_
    assert warm.gap <= 0.05 * warm.primal
    assert warm.dual <= cold.primal  # the same optimum
    assert cold.dual <= warm.primal


def test_an_interrupted_warm_start_leaves_the_weights_of_the_certificate(case, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    estimator, X, y = case
    estimator.set_params(warm_start=True, tol=0.2).fit(X, y)
    certificate, before = estimator.certificate_, [p.detach().clone() for p in estimator.head_.parameters()]
    estimator.set_params(C=3.0, tol=0.02)
    with monkeypatch.context() as patched:
        patched.setattr(type(estimator), "_note", interrupt)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(X, y)
    assert estimator.certificate_ is certificate
    assert all(map(torch.equal, before, estimator.head_.parameters()))
    _same_optimum(estimator.fit(X, y), clone(estimator).fit(X, y))


@pytest.mark.parametrize("chosen", [slice(0, -2), slice(None, None, -1), slice(4, None)])
def test_a_warm_start_takes_other_examples(case, chosen):
    estimator, X, y = case
    estimator.set_params(warm_start=True, tol=0.05).fit(X[chosen], y[chosen]).fit(X, y)
    _same_optimum(estimator, clone(estimator).fit(X, y))
    estimator.fit(X[chosen], y[chosen])
    _same_optimum(estimator, clone(estimator).fit(X[chosen], y[chosen]))


def test_a_warm_start_with_balanced_classes_takes_other_examples(case):
    estimator, X, y = case
    if "class_weight" not in estimator.get_params():
        return
    estimator.set_params(warm_start=True, tol=0.05, class_weight="balanced").fit(X[4:], y[4:]).fit(X, y)
    _same_optimum(estimator, clone(estimator).fit(X, y))
    run = estimator._run
    estimator.set_params(tol=0.04).fit(X, y)
    assert estimator._run[0] is run[0]  # the same examples: it goes on


def test_a_warm_start_takes_weights_and_none(case):
    estimator, X, y = case
    if "interactions" in estimator.get_params():
        estimator.set_params(interactions=True)  # else a warm start keeps the pairs that the weights chose
    weight = np.arange(1.0, 1.0 + len(y))
    estimator.set_params(warm_start=True, tol=0.05).fit(X, y, sample_weight=weight).fit(X, y)
    _same_optimum(estimator, clone(estimator).fit(X, y))


def _same_optimum(one, other):
    assert one.certificate_.dual <= other.certificate_.primal
    assert other.certificate_.dual <= one.certificate_.primal


def test_sequences_are_added_with_new_features_and_labels():
    X, y = _words()
    more = [[{"up": True, "kind": "new"}, {"kind": "b", "other": "word"}], [{"kind": "new"}]]
    labels = [["w", "x"], ["w"]]
    tagger = ChainSVC(tol=0.02, random_state=0).partial_fit(X, y)
    before = tagger.vocabulary_
    assert tagger.partial_fit(more, labels).classes_.tolist() == ["x", "y", "z", "w"]
    assert dict(list(tagger.vocabulary_.items())[: len(before)]) == before
    fresh = ChainSVC(tol=0.02, random_state=0).fit(X + more, y + labels)
    _same_optimum(tagger, fresh)
    assert sorted(tagger.vocabulary_) == sorted(fresh.vocabulary_)
    assert tagger.predict(more[1:]) == [["w"]]
    with pytest.raises(ValueError, match=r"y\[1\]"):  # counted from the first sequence of the call
        tagger.partial_fit(more, [["w", "x"], ["w", "x"]])
    _same_optimum(tagger.partial_fit(more, labels), ChainSVC(tol=0.02).fit(X + 2 * more, y + 2 * labels))


def test_a_new_label_has_the_weight_that_it_was_given():
    X, y = _words()
    weights = {"class_weight": {"w": 3.0, "x": 2.0, "y": 1.0, "z": 1.0}}
    more, labels = [[{"kind": "new"}, {"kind": "b"}]], [["w", "x"]]
    tagger = ChainSVC(tol=0.02, random_state=0, **weights).partial_fit(X, y)
    run = tagger._run[0]
    assert tagger.partial_fit(more, labels).classes_.tolist() == ["x", "y", "z", "w"]
    assert tagger._run[0] is not run
    _same_optimum(tagger, ChainSVC(tol=0.02, **weights).fit(X + more, y + labels))
    with pytest.raises(ValueError, match="warm_start"):
        tagger.set_params(class_weight=None).partial_fit(more, labels)


@pytest.mark.parametrize("kind", ["names", "arrays", "matrices"])
def test_what_is_added_is_all_that_is_read(kind):
    X, y = _words() if kind == "names" else _sequences()
    if kind == "names":  # most are too rare for a weight until the last call
        X = [[{**token, "rare": str((place + at) % 9)} for at, token in enumerate(row)] for place, row in enumerate(X)]
    elif kind == "matrices":
        X = [sparse.csr_matrix(row) for row in X]
    least = sum(token["rare"] == "0" for row in X for token in row) if kind == "names" else 1
    tagger = ChainSVC(tol=0.02, min_count=least).fit(X[:12], y[:12])
    for part in (slice(12, -1), slice(len(X) - 1, None)):
        tagger.partial_fit(X[part], y[part])
    fresh = ChainSVC(tol=0.02, min_count=least).fit(X, y)
    _same_optimum(tagger, fresh)
    assert sorted(tagger.vocabulary_ or ()) == sorted(fresh.vocabulary_ or ())
    assert tagger.certificate_.num_examples == len(X)
    with pytest.raises(ValueError, match=r"X\["):
        tagger.partial_fit([np.ones((1, 2))] if kind != "arrays" else [[{"a": 1.0}]], [y[0][:1]])
    assert tagger.partial_fit(X[:1], [[y[0][0]] * len(y[0])]).certificate_.num_examples == len(X) + 1  # of one label


def test_rows_are_added_with_the_classes_of_the_first_call():
    X, y = _classes()
    rows = (y == "a").argsort(kind="stable")  # class a comes last
    X, y = X[rows], y[rows]
    model = MultinomialSVC(tol=0.02).partial_fit(X[:30], y[:30], classes=["a", "b", "c"]).partial_fit(X[30:], y[30:])
    _same_optimum(model, MultinomialSVC(tol=0.02).fit(X, y))
    with pytest.raises(ValueError, match="warm_start"):
        model.partial_fit(X[:1], ["d"])
    _same_optimum(model.partial_fit(X[:5], y[:5]), MultinomialSVC(tol=0.02).fit([*X, *X[:5]], [*y, *y[:5]]))
    for X_, options, argument in ((X[:1, :2], {}, "X"), (X[:1], {"classes": ["a", "d"]}, "classes=")):
        with pytest.raises(ValueError, match=argument):
            model.partial_fit(X_, y[:1], **options)
    assert model.partial_fit(X[:1], y[:1], classes=["c", "b", "a"]).certificate_.num_examples == len(X) + 6


@pytest.mark.parametrize("forms", [(np.asarray, sparse.csr_matrix), (sparse.csr_matrix, np.asarray)])
def test_dense_rows_and_sparse_ones_follow_one_another(forms):
    X, y = _classes()
    before, after = forms
    fresh = MultinomialSVC(tol=0.02).fit(X, y)
    model = MultinomialSVC(tol=0.02).partial_fit(before(X[:30]), y[:30])
    _same_optimum(model.partial_fit(after(X[30:]), y[30:]), fresh)
    _same_optimum(MultinomialSVC(tol=0.02, warm_start=True).fit(before(X), y).fit(after(X), y), fresh)


def test_arrays_may_be_filled_again_between_calls():
    X, y = _classes()
    rows, labels = X[:20].copy(), y[:20].copy()
    model = MultinomialSVC(tol=0.02, warm_start=True).partial_fit(rows, labels)
    rows[:], labels[:] = X[20:40], y[20:40]
    model.partial_fit(rows, labels)
    rows[:] = 9.0
    _same_optimum(model, MultinomialSVC(tol=0.02).fit(X[:40], y[:40]))
    _same_optimum(model.partial_fit(X[40:], y[40:]), MultinomialSVC(tol=0.02).fit(X, y))
    X, y = _sequences()
    changed = [rows.copy() for rows in X[:15]]
    tagger = ChainSVC(tol=0.02).partial_fit(changed, y[:15])
    for rows in changed:
        rows[:] = 9.0
    _same_optimum(tagger.partial_fit(X[15:], y[15:]), ChainSVC(tol=0.02).fit(X, y))


def test_partial_fit_adds_to_fit_and_refuses_a_copy():
    X, y = _sequences()
    tagger = ChainSVC(tol=0.05).fit(X[:15], y[:15]).partial_fit(X[15:], y[15:])
    _same_optimum(tagger, ChainSVC(tol=0.05).fit(X, y))
    with pytest.raises(ValueError, match="partial_fit"):
        pickle.loads(pickle.dumps(tagger)).partial_fit(X, y)


def test_margins_of_tokens_agree_with_the_labels():
    for X, y in (_sequences(), _words()):
        tagger = ChainSVC(tol=0.1, C=10.0).fit(X, y)
        margins = tagger.decision_function(X)
        assert [tagger.classes_[rows.argmax(1)].tolist() for rows in margins] == tagger.predict(X)
        assert all((rows.max(1) >= 0.0).all() and (rows.min(1) <= 0.0).all() for rows in margins)


@pytest.mark.parametrize(
    ("kind", "made", "changed"),
    [
        (ChainSVC, _sequences, {"class_weight": {"x": 5.0, "y": 1.0, "z": 1.0}}),
        (ChainSVC, _sequences, {"normalize": True}),
        (GraphSVC, _forests, {"class_weight": "balanced"}),
    ],
)
def test_a_warm_start_refuses_another_loss(kind, made, changed):
    X, y = made()
    estimator = kind(tol=0.3, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="warm_start"):
        estimator.set_params(**changed).fit(X, y)


def test_parameters_out_of_range(case):
    estimator, X, y = case
    wrong = {"C": 0.0, "lam": -1.0, "tol": -1, "max_passes": 0, "class_weight": "foo"}
    wrong |= dict.fromkeys(("fit_intercept", "interactions", "normalize", "verbose", "warm_start"), "no")
    for name, value in wrong.items():
        if name in estimator.get_params():
            with pytest.raises((ValueError, TypeError), match=f"{name}={value!r}"):
                clone(estimator).set_params(**{name: value}).fit(X, y)
    with pytest.raises(ValueError):
        estimator.fit(X, y[:-1])
    with pytest.raises(ValueError, match="class"):
        estimator.fit(
            X, ["a"] * len(y) if isinstance(y[0], str | np.integer) else [["a"] * len(labels) for labels in y]
        )


def test_nothing_warns(case):
    estimator, X, y = case
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator.set_params(tol=0.1).fit(X, y)
        estimator.predict(X)


@pytest.mark.parametrize("model", [ChainSVC(tol=0.5, random_state=0), SegmentSVC(tol=0.5, random_state=0)])
@pytest.mark.parametrize("equal", [True, False])
def test_scikit_learn_joins_the_predictions_of_sequences(model, equal):
    lengths = np.full(9, 3) if equal else np.arange(2, 11)
    X = [chance.normal(size=(n, 3)) for n in lengths]
    y = [["a", "b", *["ab"[int(row[0] > 0)] for row in rows[2:]]] for rows in X]
    labels = cross_val_predict(model, X, y, cv=3)
    assert labels.shape == (9,)
    assert labels[0] == model.fit(X[3:], y[3:]).predict(X[:1])[0]
    margins = cross_val_predict(model, X, params={"y": y}, cv=3, method="decision_function")
    assert [rows.shape for rows in margins] == [(n, 2) for n in lengths]
    assert margins[0] == pytest.approx(model.fit(X[3:], y[3:]).decision_function(X[:1])[0])
    assert isinstance(json.loads(json.dumps(model.predict(X))), list)
