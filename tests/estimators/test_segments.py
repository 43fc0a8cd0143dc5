"""SegmentSVC: spans and labels of frames, what it reads, and errors that name the sequence."""

import numpy as np
import pytest
import torch

from torchssvm.estimators import SegmentSVC

chance = np.random.default_rng(0)
X = [chance.normal(size=(n, 2)) for n in (4, 3, 5)]
FRAMES = [["a", "a", "b", "b"], ["b", "a", "a"], ["a", "b", "b", "a", "a"]]
SPANS = [
    [(0, 2, "a"), (2, 4, "b")],
    [(0, 1, "b"), (1, 3, "a")],
    [(0, 1, "a"), (1, 3, "b"), (3, 5, "a")],
]


@pytest.mark.parametrize("options", [{}, {"boundary": True, "span_loss": True, "max_duration": 4}])
def test_labels_of_frames_are_their_runs(options):
    fitted = [SegmentSVC(C=3.0, random_state=0, **options).fit(X, y) for y in (SPANS, FRAMES)]
    assert np.array_equal(fitted[0].coef_, fitted[1].coef_)
    assert fitted[0].durations_.shape == (options.get("max_duration", 2), 2)
    labels = fitted[0].predict([X[0], np.zeros((0, 2)), X[2]])
    assert labels[1] == []
    assert [spans[-1][1] for spans in (labels[0], labels[2])] == [4, 5]
    lists = [[list(span) for span in spans] for spans in SPANS]  # as JSON has them
    assert fitted[0].score(X, SPANS) == fitted[0].score(X, FRAMES) == fitted[0].score(X, lists) > 0.5
    assert fitted[0].certificate_.exact


def one(place, value, of=X):
    return [value if i == place else given for i, given in enumerate(of)]


@pytest.mark.parametrize(
    ("options", "x", "y", "message"),
    [
        ({}, X, SPANS[:2], "X.* y"),
        ({}, X, one(1, [(0, 1, "b")], SPANS), r"y\[1\]"),
        ({}, X, one(1, [(0, 1, "b"), (2, 3, "a")], SPANS), r"y\[1\]"),
        ({}, X, one(1, [(0, 1.5, "b"), (1.5, 3, "a")], SPANS), r"y\[1\]"),
        ({}, X, [[(0, len(x), "a")] for x in X], "y has"),
        ({}, one(1, []), SPANS, r"X\[1\]"),
        ({"max_duration": 1}, X, SPANS, "max_duration=1"),
        ({"min_duration": 2}, X, SPANS, "min_duration"),
    ],
)
def test_what_does_not_fit_is_refused(options, x, y, message):
    with pytest.raises(ValueError, match=message):
        SegmentSVC(**options).fit(x, y)


def test_segments_are_not_shorter_than_asked_for():
    long = [[(0, 2, "a"), (2, 4, "b")], [(0, 3, "a")], [(0, 2, "b"), (2, 5, "a")]]
    for least in (2, [2, 2]):
        model = SegmentSVC(min_duration=least, random_state=0).fit(X, long).predict(X)
        assert all(end - start >= 2 for spans in model for start, end, _ in spans)
    with pytest.raises(ValueError, match="example 2"):
        SegmentSVC(min_duration=2).fit(X, long).predict([*X[:2], X[0][:1]])


@pytest.mark.parametrize("options", [{}, {"boundary": True}])
def test_probabilities_are_sums_over_all_segmentations(options):
    fitted = SegmentSVC(tol=0.1, max_duration=3, random_state=0, **options).fit(X, SPANS)
    assert not hasattr(fitted, "predict_proba")
    with pytest.raises(ValueError, match="y has the label 'c'"):
        fitted.calibrate(X[:1], [[(0, 4, "c")]])
    with pytest.raises(ValueError, match="3"):  # the longest duration
        fitted.calibrate(X[:1], [[(0, 4, "a")]])
    assert torch.is_grad_enabled()
    noisy = [[(0, 1, "b"), (1, 4, "a")], *SPANS[1:]]
    for margins, segments in zip(fitted.decision_function(X), fitted.predict(X), strict=True):
        labels = [label for start, end, label in segments for _ in range(start, end)]
        assert np.array_equal(margins > 0.0, np.array(labels)[:, None] == fitted.classes_)
    before, result = fitted.predict(X), fitted.calibrate(X, noisy).predict_proba([X[0], np.zeros((0, 2)), X[1]])
    assert fitted.predict(X) == before
    assert result[1].shape == (0, 2)
    temperature = fitted.temperature_
    assert fitted.calibrate(X, [frames(labeled) for labeled in noisy]).temperature_ == temperature

    def likelihood(temperature):
        total = 0.0
        for rows, labeled in zip(X, noisy, strict=True):
            every, scores = segmentations(fitted, rows)
            true = [(start, end, "ab".index(label)) for start, end, label in labeled]
            total += scores[every.index(true)] / temperature - np.log(np.exp(scores / temperature).sum())
        return total

    best = likelihood(fitted.temperature_)
    assert all(best >= likelihood(fitted.temperature_ * factor) for factor in (0.9, 0.99, 1.01, 1.1))
    for rows, probabilities in ((X[0], result[0]), (X[1], result[2])):
        every, scores = segmentations(fitted, rows)
        weights = np.exp(scores / fitted.temperature_)
        expected = np.zeros((len(rows), 2))
        for spans, weight in zip(every, weights / weights.sum(), strict=True):
            for start, end, label in spans:
                expected[start:end, label] += weight
        assert probabilities == pytest.approx(expected, abs=1e-6)
    assert not hasattr(fitted.fit(X, SPANS), "predict_proba")


def frames(spans):
    return [label for start, end, label in spans for _ in range(start, end)]


def segmentations(fitted, rows):
    """All lists of spans, and their scores."""
    each = rows @ fitted.coef_.T + fitted.intercept_  # of frames, and of boundaries behind them

    def extend(spans, score):
        at = spans[-1][1] if spans else 0
        if at == len(rows):
            return [(spans, score)]
        results = []
        for end in range(at + 1, min(at + 3, len(rows)) + 1):
            for label in range(2):
                total = score + each[at:end, label].sum() + fitted.durations_[end - at - 1, label]
                total += each[at, 2 + label] if each.shape[1] == 4 else 0.0
                total += fitted.transitions_[spans[-1][2], label] if spans else 0.0
                results += extend([*spans, (at, end, label)], total)
        return results

    every, scores = zip(*extend([], 0.0), strict=True)
    return list(every), np.array(scores)


def test_class_weights_multiply_the_costs_of_frames():
    given = {"tol": 1e-3, "random_state": 0}
    weighted = SegmentSVC(C=3.0, class_weight={"a": 3.0, "b": 3.0}, **given).fit(X, SPANS).certificate_
    plain = SegmentSVC(C=1.0, **given).fit(X, SPANS).certificate_  # costs and scores scale together
    assert weighted.primal == pytest.approx(3.0 * plain.primal, rel=2e-3)
    balanced = SegmentSVC(class_weight="balanced", **given).fit(X, SPANS).structure_.class_weight
    assert balanced.tolist() == pytest.approx([12 / 14, 12 / 10])  # 7 frames of a, 5 of b
    with pytest.raises(ValueError, match="class_weight="):
        SegmentSVC(class_weight={"a": 2.0, "z": 1.0}).fit(X, SPANS)
    with pytest.raises(ValueError, match="class_weight="):
        SegmentSVC(class_weight={"a": 2.0}, span_loss=True).fit(X, SPANS)


@pytest.mark.parametrize("options", [{}, {"boundary": True}, {"class_weight": "balanced"}])
@pytest.mark.parametrize("weight", [None, np.array([1.0, 3.0, 2.0, 1.0])], ids=["once", "weighted"])
def test_a_warm_start_takes_longer_segments_and_keeps_them(options, weight):
    part, whole = (() if weight is None else (weight[:size],) for size in (2, 4))
    chance = np.random.default_rng(0)
    lengths = [[2, 1], [1, 2], [4, 1], [2, 3]]
    y = [[("ab"[i % 2], size) for i, size in enumerate(series)] for series in lengths]
    y = [[label for label, size in series for _ in range(size)] for series in y]
    X = [np.array([[label == "a", label == "b"] for label in series]) for series in y]
    X = [rows + 0.5 * chance.normal(size=rows.shape) for rows in X]
    estimator = SegmentSVC(tol=0.01, warm_start=True, random_state=0, **options).fit(X[:2], y[:2], *part)
    assert estimator.structure_.max_duration == 2
    estimator.fit(X, y, *whole)
    fresh = SegmentSVC(tol=0.01, random_state=0, **options).fit(X, y, *whole)
    assert estimator.durations_.shape == fresh.durations_.shape == (4, 2)
    assert estimator.certificate_.dual <= fresh.certificate_.primal
    assert fresh.certificate_.dual <= estimator.certificate_.primal
    assert estimator.fit(X[:2], y[:2], *part).structure_.max_duration == 4
    with pytest.raises(ValueError, match="warm_start"):
        estimator.set_params(boundary=not estimator.boundary).fit(X[:2], y[:2], *part)
