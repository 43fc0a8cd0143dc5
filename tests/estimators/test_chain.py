"""ChainSVC: the forms of X, empty sequences, and errors that name the sentence."""

import itertools

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from torchssvm.datasets.text.tag_schemes import bio_transitions
from torchssvm.deployment import load_head
from torchssvm.estimators import ChainSVC

chance = np.random.default_rng(0)
X = [chance.normal(size=(n, 3)) * (chance.random((n, 3)) < 0.7) for n in (2, 3, 1, 4)]
y = [["ab"[int(row[0] > 0)] for row in rows] for rows in X]
y[0][0] = "a"


@pytest.mark.parametrize(("made", "dtype"), [(sparse.csr_matrix, np.float32), (sparse.coo_array, np.float64)])
def test_matrices_are_as_arrays(made, dtype):
    rows_of = [rows.astype(dtype) for rows in X]
    dense = ChainSVC(tol=1e-4, random_state=0).fit(rows_of, y)
    lists = ChainSVC(tol=1e-4, random_state=0).fit([made(rows) for rows in rows_of], y)
    assert lists.coef_.dtype == dtype
    assert lists.certificate_.dual <= dense.certificate_.primal
    assert dense.certificate_.dual <= lists.certificate_.primal
    (margins,) = lists.decision_function([made(rows_of[2])])  # a token alone, of two labels
    (scores,) = rows_of[2] @ lists.coef_.T + lists.intercept_ + lists.start_ + lists.end_
    assert margins == pytest.approx(np.array([[scores[0] - scores[1], scores[1] - scores[0]]]), abs=1e-5)
    with pytest.raises(ValueError, match="X"):
        lists.predict(rows_of)


@pytest.mark.parametrize("empty", [np.zeros((0, 3)), []])
def test_an_empty_sequence_has_no_labels(empty):
    fitted = ChainSVC(tol=0.3, random_state=0).fit(X, y)
    assert fitted.predict([X[0], empty, X[1]]) == [fitted.predict(X[:1])[0], [], fitted.predict(X[1:2])[0]]
    assert fitted.predict([empty]) == [[]]
    assert [len(scores) for scores in fitted.decision_function([empty, X[3]])] == [0, 4]
    assert fitted.score([empty, X[0]], [[], y[0]]) == fitted.score(X[:1], y[:1])


def one(place, value, of=X):
    return [value if i == place else given for i, given in enumerate(of)]


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (one(1, X[1][:, 0]), y, r"X\[1\]"),
        ([[1.0, 2.0], *X[1:]], y, r"X\[0\]"),
        (one(2, X[2][:, :2]), y, r"X\[2\]"),
        (one(3, np.full((4, 3), np.nan)), y, r"X\[3\]"),
        (one(2, sparse.csr_matrix(X[2])), y, r"X\[2\]"),
        (one(1, []), y, r"X\[1\]"),
        (X, y[:-1], "X.* y"),
        (X, one(1, ["a", "b"], y), r"y\[1\]"),
        (X, one(1, ["a", None, "b"], y), r"y\[1\]\[1\]=None"),
        (X, one(1, np.array(y[1])[:, None], y), r"y\[1\]"),
    ],
)
def test_errors_name_the_sentence(x, labels, message):
    with pytest.raises(ValueError, match=message):
        ChainSVC().fit(x, labels)


def test_tensors_are_arrays():
    as_tensors = [torch.tensor(rows) for rows in X], [torch.tensor([ord(a) for a in labels]) for labels in y]
    fitted = ChainSVC(tol=0.3, random_state=0).fit(*as_tensors)
    assert fitted.classes_.tolist() == [97, 98]
    assert fitted.predict(X) == fitted.predict(as_tensors[0])


def test_probabilities_are_there_once_they_are_calibrated(tmp_path):
    fitted = ChainSVC(tol=0.1, random_state=0).fit(X, y)
    assert not hasattr(fitted, "predict_proba")
    with pytest.raises(AttributeError, match="predict_proba"):
        fitted.predict_proba(X)
    with pytest.raises(ValueError, match="y has the label 'c'"):
        fitted.calibrate(X[:1], [["a", "c"]])
    assert fitted.calibrate([X[2]], [y[2]]).temperature_ > 0.0  # one label only
    noisy = [*y[:3], ["ab"[y[3][0] == "a"], *y[3][1:]]]  # one is wrong: no temperature makes all certain
    before, result = fitted.predict(X), fitted.calibrate(X, noisy).predict_proba([X[0], [], X[3]])
    assert fitted.predict(X) == before
    assert result[1].shape == (0, 2)
    fitted.save(tmp_path / "model")
    served = load_head(tmp_path / "model").marginals(torch.as_tensor(np.array([X[0]]), dtype=torch.float32))
    assert served.parts["emission"][0].numpy() == pytest.approx(result[0], abs=1e-6)

    def scores(rows):  # of all sequences of labels
        states = np.array(list(itertools.product(range(2), repeat=len(rows))))
        emission = rows @ fitted.coef_.T + fitted.intercept_
        emission[0] += fitted.start_
        emission[-1] += fitted.end_
        pairs = fitted.transitions_[states[:, :-1], states[:, 1:]].sum(1)
        return states, emission[np.arange(len(rows)), states].sum(1) + pairs

    for rows, margins in zip((X[0], X[3]), (result[0], result[2]), strict=True):
        states, score = scores(rows)
        weight = np.exp(score / fitted.temperature_)
        expected = np.stack([weight @ (states == state) for state in range(2)], 1) / weight.sum()
        assert margins == pytest.approx(expected, abs=1e-6)

    def likelihood(temperature):
        total = 0.0
        for rows, labels in zip(X, noisy, strict=True):
            states, score = scores(rows)
            true = (states == np.array([label == "b" for label in labels])).all(1)
            total += score[true][0] / temperature - np.log(np.exp(score / temperature).sum())
        return total

    best = likelihood(fitted.temperature_)
    assert all(best >= likelihood(fitted.temperature_ * factor) for factor in (0.9, 0.99, 1.01, 1.1))
    assert not hasattr(fitted.fit(X, y), "predict_proba")


TAGS = [["O", "B-X", "I-X"], ["B-X", "I-X", "O"], ["O", "O"], ["B-X"]]
WORDS = [[{"tag": tag} for tag in tags] for tags in TAGS]


def _obeys(predicted):
    return all(
        tag != "I-X" or before in ("B-X", "I-X")
        for tags in predicted
        for before, tag in zip(["O", *tags[:-1]], tags, strict=True)
    )


@pytest.mark.parametrize("scheme", ["BIO", bio_transitions(["B-X", "I-X", "O"])])
def test_transitions_are_obeyed_wherever_the_estimator_goes(scheme, tmp_path):
    wrong = [[{"tag": "O"}, {"tag": "I-X"}]]
    plain, model = (ChainSVC(random_state=0, transitions=given).fit(WORDS, TAGS) for given in (None, scheme))
    assert not _obeys(plain.predict(wrong))
    model.set_params(warm_start=True).fit(WORDS, TAGS).set_params(C=0.5).fit(WORDS, TAGS)
    others = [clone(model).fit(WORDS, TAGS), ChainSVC(transitions=scheme).partial_fit(WORDS, TAGS)]
    others.append(GridSearchCV(ChainSVC(transitions=scheme), {"C": [0.1, 1.0]}, cv=2).fit(2 * WORDS, 2 * TAGS))
    for fitted in [model, *others, others[1].partial_fit(WORDS[:1], TAGS[:1])]:
        assert _obeys(fitted.predict(wrong + WORDS))
    assert model.calibrate(WORDS, TAGS).predict_proba(wrong)[0][0, 1] == 0.0  # I-X begins no sentence
    assert model.decision_function(wrong)[0][0, 1] == -np.inf
    model.save(tmp_path / "model.safetensors")
    assert load_head(tmp_path / "model.safetensors").structure.same_as(model.structure_)


def test_transitions_grow_with_the_labels():
    more = [["B-Y", "I-Y"], ["O", "B-Y"]]
    model = ChainSVC(random_state=0, tol=1e-3, transitions="BIO").partial_fit(WORDS, TAGS)
    model.partial_fit([[{"tag": tag} for tag in sentence] for sentence in more], more)
    assert model.classes_.tolist() == ["B-X", "I-X", "O", "B-Y", "I-Y"]
    fresh = ChainSVC(tol=1e-3, transitions="BIO").fit(*([*a, *b] for a, b in ((WORDS, _words(more)), (TAGS, more))))
    assert model.certificate_.dual <= fresh.certificate_.primal
    assert fresh.certificate_.dual <= model.certificate_.primal


def _words(tags):
    return [[{"tag": tag} for tag in sentence] for sentence in tags]


@pytest.mark.parametrize(
    ("given", "tags", "error", "words"),
    [
        ("BIO", [["O", "I-X"]], ValueError, r"y\[4\].*'I-X'"),
        ("BIOES", [], ValueError, "E-X"),
        (bio_transitions(["O", "B-X"]), [], ValueError, "transitions"),
        (1, [], TypeError, "transitions"),
    ],
)
def test_transitions_that_do_not_fit(given, tags, error, words):
    with pytest.raises(error, match=words):
        ChainSVC(transitions=given).fit(WORDS + _words(tags), TAGS + tags)
    if tags:
        with pytest.raises(ValueError, match=words.replace("4", "0")):
            ChainSVC(transitions=given).fit(WORDS, TAGS).calibrate(_words(tags), tags)
