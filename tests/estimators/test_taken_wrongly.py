"""What estimators must not take: other kinds of numbers, generators, missing labels, lists of sets."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.preprocessing import MultiLabelBinarizer

from torchssvm.datasets import NamedChains, RankedLists
from torchssvm.deployment import load_head
from torchssvm.estimators import (
    ChainSVC,
    GraphSVC,
    MultilabelSVC,
    MultinomialSVC,
    PredictThenOptimize,
    RankingSVC,
    SegmentSVC,
)
from torchssvm.structures import Selection, Situations

chance = np.random.default_rng(0)
ROWS = chance.normal(size=(12, 3))
EDGES = np.array([[0, 1], [1, 2]])
WORDS = [ROWS[:3], ROWS[3:5], ROWS[5:9], ROWS[9:]]
TAGS = [(rows[:, 0] > 0).astype(int) for rows in WORDS]
GRAPHS = [(ROWS[:3], EDGES), (ROWS[3:6], EDGES)]
COLOURS = [[0, 1, 1], [1, 0, 1]]
QUICK = {"tol": 0.5, "random_state": 0}


def complex_ones(rows):
    return rows + 1j


def dates(rows):
    return (1e3 * rows).astype("datetime64[D]")


def masked(rows):
    return np.ma.array(rows, mask=np.arange(rows.size).reshape(rows.shape) == 1)


FITS = {
    "chain": lambda kind: ChainSVC(**QUICK).fit(list(map(kind, WORDS)), TAGS),
    "graph": lambda kind: GraphSVC(**QUICK).fit([(kind(x), edges) for x, edges in GRAPHS], COLOURS),
    "edges": lambda kind: GraphSVC(**QUICK).fit([(x, edges, kind(x[:2])) for x, edges in GRAPHS], COLOURS),
    "classes": lambda kind: MultinomialSVC(**QUICK).fit(kind(ROWS), np.arange(12) % 2),
    "label sets": lambda kind: MultilabelSVC(**QUICK).fit(kind(ROWS), np.eye(2, dtype=int)[np.arange(12) % 2]),
    "decisions": lambda kind: PredictThenOptimize(Selection(3, 1)).fit(kind(ROWS), ROWS),
    "costs": lambda kind: PredictThenOptimize(Selection(3, 1)).fit(ROWS, kind(ROWS)),
    "rankings": lambda kind: RankingSVC(**QUICK).fit(kind(ROWS), np.arange(12) % 3, group=[6, 6]),
    "classes, to predict": lambda kind: MultinomialSVC(**QUICK).fit(ROWS, np.arange(12) % 2).predict(kind(ROWS)),
}


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize("kind", [complex_ones, dates, masked])
def test_numbers_that_a_cast_would_take_in_silence(fit, kind):
    with pytest.raises(ValueError, match=r"omplex|datetime64|masked"):
        fit(kind)


CODES = np.arange(12) % 2
ARRAYS = {
    "labels": lambda kind: ChainSVC(**QUICK).fit(WORDS, [*TAGS[:3], kind(TAGS[3])]),
    "frames": lambda kind: SegmentSVC(**QUICK).fit(WORDS, [*TAGS[:3], kind(TAGS[3])]),
    "nodes": lambda kind: GraphSVC(**QUICK).fit(GRAPHS, [COLOURS[0], kind(np.array(COLOURS[1]))]),
    "ends": lambda kind: GraphSVC(**QUICK).fit([(x, kind(edges)) for x, edges in GRAPHS], COLOURS),
    "classes": lambda kind: MultinomialSVC(**QUICK).fit(ROWS, kind(CODES)),
    "sets": lambda kind: MultilabelSVC(**QUICK).fit(ROWS, kind(ONES)),
    "weights": lambda kind: MultinomialSVC(**QUICK).fit(ROWS, CODES, kind(np.ones(12))),
    "true classes": lambda kind: MultinomialSVC(**QUICK).fit(ROWS, CODES).score(ROWS, kind(CODES)),
    "known costs": lambda kind: PredictThenOptimize(Selection(3, 1)).fit(Situations(ROWS, fixed=kind(ROWS)), ROWS),
    "grades": lambda kind: RankingSVC(**QUICK).fit(ROWS, kind(CODES), group=[6, 6]),
    "queries": lambda kind: RankingSVC(**QUICK).fit(ROWS, CODES, qid=kind(np.arange(12) % 3)),
    "queries' weights": lambda kind: RankingSVC(**QUICK).fit(ROWS, CODES, None, [6, 6], kind(np.ones(2))),
    "documents": lambda kind: RankedLists.of_queries(kind(ROWS), CODES, CODES),
}


@pytest.mark.parametrize("call", ARRAYS.values(), ids=ARRAYS)
def test_masked_values_are_refused_and_masks_that_hide_nothing_are_not(call):
    with pytest.raises(ValueError, match="masked"):
        call(masked)
    call(lambda rows: np.ma.array(rows))


NAMED = [[{"w": "a"}, {"w": "b"}, {"w": "c"}]] * 4
UNORDERED = {
    "labels": lambda kind: ChainSVC(**QUICK).fit(NAMED, [kind(["x", "y", "z"])] * 4),
    "tokens": lambda kind: ChainSVC(**QUICK).fit([kind([("a",), ("b",), ("c",)])] * 4, [["x", "y", "z"]] * 4),
    "sequences": lambda kind: ChainSVC(**QUICK).fit(kind([(("a",),), (("b",),)]), [["x"], ["y"]]),
    "spans": lambda kind: SegmentSVC(**QUICK).fit([ROWS], [kind([(0, 3, "a"), (3, 12, "b")])]),
    "nodes": lambda kind: GraphSVC(**QUICK).fit(GRAPHS[:1], [kind([0, 1, 2])]),
    "states": lambda kind: NamedChains(NAMED, [["x", "y", "z"]] * 4, labels=kind(["x", "y", "z"])),
}


@pytest.mark.parametrize("call", UNORDERED.values(), ids=UNORDERED)
@pytest.mark.parametrize("kind", [set, frozenset, dict.fromkeys, lambda items: dict.fromkeys(items).keys()])
def test_what_has_no_order_is_refused(call, kind):
    with pytest.raises(ValueError, match=r"list|sequence"):
        call(kind)
    call(list)


def test_tokens_may_be_sets_of_names():
    assert ChainSVC(**QUICK).fit([[{"a", "b"}, {"c"}]] * 3, [["x", "y"]] * 3).predict([[{"c"}]]) == [["y"]]


@pytest.mark.parametrize("missing", [-1, -100, -1.0])
def test_missing_labels_are_refused_with_their_place(missing):
    y = [[0, 1, 1], [1, missing, 1]]
    with pytest.raises(ValueError, match=rf"y\[1\]\[1\]={missing}"):
        ChainSVC(**QUICK).fit([ROWS[:3], ROWS[3:6]], y)
    with pytest.raises(ValueError, match=rf"y\[1\]\[1\]={missing}"):
        GraphSVC(**QUICK).fit(GRAPHS, y)
    assert GraphSVC(**QUICK).fit(GRAPHS, [[str(label) for label in row] for row in y]).predict(GRAPHS)


@pytest.mark.parametrize("kind", [MultinomialSVC, MultilabelSVC])
def test_a_missing_class_is_refused_and_two_classes_may_be_minus_1_and_1(kind):
    y = np.where(ROWS[:, 0] > 0, 1, -1)
    assert set(kind(**QUICK).fit(ROWS, y).classes_) == {-1, 1}
    y[7] = -100
    with pytest.raises(ValueError, match=r"y\[7\]=-100"):
        kind(**QUICK).fit(ROWS, y)
    with pytest.raises(ValueError, match=r"y\[7\]=-100"):
        kind(**QUICK).fit(ROWS, abs(y)).score(ROWS, y)
    assert set(kind(**QUICK).fit(ROWS, y.astype(str)).classes_) == {"-1", "1", "-100"}


@pytest.mark.parametrize(
    "y",
    [
        [(0, 2), (1,), (), (0,)] * 3,
        [{"red"}, {"blue", "red"}, set()] * 4,
        [["red", "blue"], ["blue", "green"]] * 6,
    ],
)
def test_lists_of_label_sets_are_refused(y):
    with pytest.raises(ValueError):
        MultilabelSVC(**QUICK).fit(ROWS, y)
    MultilabelSVC(**QUICK).fit(ROWS, MultiLabelBinarizer().fit_transform(y))


def table(values):
    return pd.DataFrame(values, columns=list("abc")[: values.shape[1]]) if values.ndim == 2 else pd.Series(values)


NAMES = np.array(["red", "blue"] * 6)
ONES = np.eye(2, dtype=int)[np.arange(12) % 2]


@pytest.mark.parametrize(
    ("y", "same"),
    [
        ([(name,) for name in NAMES], NAMES),
        ([[name] for name in NAMES], NAMES),
        (table(NAMES.astype(object)), NAMES),
        (table(np.arange(12) % 2), np.arange(12) % 2),
        (table(ONES), ONES),
    ],
)
def test_columns_of_classes_and_tables_are_taken(y, same):
    model = MultilabelSVC(**QUICK).fit(ROWS, y)
    assert np.array_equal(model.predict(ROWS), MultilabelSVC(**QUICK).fit(ROWS, same).predict(ROWS))
    if same.ndim == 1 and isinstance(y, pd.Series):
        assert MultinomialSVC(**QUICK).fit(table(ROWS), y).score(ROWS, same) > 0.0


SEGMENTS = [[(0, 1, "a"), (1, len(rows), "b")] for rows in WORDS]
REFITS = {
    "chain": (ChainSVC, (WORDS, TAGS), (WORDS, TAGS[:3]), (WORDS[:1], TAGS[:1])),
    "classes": (MultinomialSVC, (ROWS, np.arange(12) % 2), (ROWS[:, :2], np.zeros(12)), (ROWS[:2], [0, 1])),
    "segments": (SegmentSVC, (WORDS, SEGMENTS), ([x[:, :2] for x in WORDS], SEGMENTS[::-1]), None),
    "graph": (GraphSVC, (GRAPHS, COLOURS), ([(ROWS[:3, :2], EDGES)], [[1, 1, 1]]), None),
    "label sets": (MultilabelSVC, (ROWS, np.eye(2, dtype=int)[np.arange(12) % 2]), (ROWS[:, :2], np.zeros(12)), None),
}


@pytest.mark.parametrize("case", REFITS)
def test_a_fit_that_is_refused_changes_nothing(case):
    kind, good, bad, more = REFITS[case]
    model = kind(**QUICK).fit(*good)
    if more is not None:
        model.partial_fit(*more)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="y"):
        model.fit(*bad)
    assert vars(model).keys() == before.keys()
    assert all(value is before[name] for name, value in vars(model).items())
    if more is not None:
        assert model.partial_fit(*more).certificate_.num_examples == len(good[0]) + 2 * len(more[0])


def test_pairs_of_many_labels_are_left_out_unless_asked_for():
    sets = np.eye(61, dtype=int)[np.arange(12) % 61]
    with pytest.warns(UserWarning, match="1830 pairs"):
        assert MultilabelSVC(**QUICK).fit(ROWS, sets).interactions_ is None
    assert MultilabelSVC(**QUICK).fit(ROWS, np.eye(4, dtype=int)[np.arange(12) % 4]).interactions_ is not None


def test_the_columns_of_a_table_of_sets_are_named_in_the_file(tmp_path):
    sets = np.eye(12, 3, dtype=int)
    MultilabelSVC(**QUICK).fit(ROWS, table(sets)).save(tmp_path / "sets.safetensors")
    assert load_head(tmp_path / "sets.safetensors").labels == ["a", "b", "c"]


SEQUENCES = [
    (ChainSVC(**QUICK), WORDS, [tags.tolist() for tags in TAGS]),
    (SegmentSVC(**QUICK), WORDS, [tags.tolist() for tags in TAGS]),
    (GraphSVC(**QUICK), [(rows, [[0, 1]]) for rows in WORDS], [tags.tolist() for tags in TAGS]),
]


def series(values):
    """A Series whose labels count backwards."""
    return pd.Series(list(values), index=range(len(values))[::-1])


@pytest.mark.parametrize(("model", "X", "y"), SEQUENCES, ids=lambda case: type(case).__name__)
def test_series_are_read_by_place(model, X, y):
    weights = [1.0, 0.0, 1.0, 2.0]
    same = clone(model).fit(X, y, weights)
    result = clone(model).fit(series(X), series(y), weights)
    assert np.array_equal(result.coef_, same.coef_)
    assert list(map(list, result.predict(series(X)))) == list(map(list, same.predict(X)))
    assert result.score(series(X), series(y)) == same.score(X, y)
    assert result.score(X, [series(labels) for labels in y]) == same.score(X, y)


@pytest.mark.parametrize(("model", "X", "y"), SEQUENCES, ids=lambda case: type(case).__name__)
def test_labels_of_the_other_kind_are_refused_by_score(model, X, y):
    fitted = clone(model).fit(X, y)
    with pytest.raises(ValueError, match="y has"):
        fitted.score(X, [[str(label) for label in labels] for labels in y])


@pytest.mark.parametrize("kind", [MultinomialSVC, MultilabelSVC])
def test_a_model_without_intercepts_does_not_go_on_from_one_with_them(kind):
    X, y = sparse.csr_matrix(ROWS), np.arange(12) % 3
    model = kind(**QUICK, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="warm_start"):
        model.set_params(fit_intercept=False).fit(X, y)
    assert not model.set_params(warm_start=False).fit(X, y).intercept_.any()
    model = kind(**QUICK, warm_start=True).fit(ROWS.astype(np.float32), y)
    with pytest.raises(ValueError, match="warm_start"):
        model.fit(ROWS.astype(np.float32).astype(np.float64), y)


SETS = np.eye(3, dtype=int)[np.arange(12) % 3]
OPTIONS = {
    "C of label sets": (
        lambda: MultilabelSVC(C="chose").fit(ROWS, SETS),
        "C='chose' .*'guess', 'choose' or a",
    ),
    "C, an array": (lambda: MultilabelSVC(C=np.ones(2)).fit(ROWS, SETS), "C=array.* must be a number"),
    "C of classes": (lambda: MultinomialSVC(C="guess").fit(ROWS, CODES), "C='guess' must be a number"),
    "C of chains": (lambda: ChainSVC(C="choose").fit(WORDS, TAGS), "C='choose' must be a number"),
    "lam": (lambda: GraphSVC(lam="choose").fit(GRAPHS, COLOURS), "lam='choose' must be a number"),
    "interactions": (lambda: MultilabelSVC(interactions="all").fit(ROWS, SETS), "interactions='all' must be True or"),
    "class_weight": (
        lambda: MultilabelSVC(class_weight="balance").fit(ROWS, SETS),
        "class_weight='balance' must be None, 'balanced' or",
    ),
    "transitions": (lambda: ChainSVC(transitions="BOI").fit(WORDS, TAGS), "transitions .*'BIO' or 'BIOES', not 'BOI'"),
    "transitions, a number": (
        lambda: ChainSVC(transitions=3).fit(WORDS, TAGS),
        "transitions=3 must be None, 'BIO', 'BIOES' or Transitions",
    ),
    "anchor": (
        lambda: PredictThenOptimize(Selection(3, 1), anchor="zer0").fit(ROWS, ROWS),
        "anchor must be 'zero' or 'least-squares', not 'zer0'",
    ),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_misspelt_option_is_refused_with_what_is_accepted(option):
    fit, words = OPTIONS[option]
    with pytest.raises((ValueError, TypeError), match=words):
        fit()


SHORT = [*TAGS[:2], TAGS[2][:-1], TAGS[3]]
NAMES = [[{"word": "a"}] * len(rows) for rows in WORDS]
RAGGED = [[0, 1, 0]] * 7 + [[1, 1]] + [[0, 0, 1]] * 4
RAGGED_SETS = [["sky"], ["sky"], ["sky", "sea"]] * 4
UNEVEN = {
    "tags": (lambda: ChainSVC(**QUICK).fit(WORDS, SHORT), r"X\[2\] has 4 tokens and y\[2\] has 3 labels"),
    "tags of names": (lambda: ChainSVC(**QUICK).fit(NAMES, SHORT), r"X\[2\] has 4 tokens and y\[2\] has 3"),
    "tags to score": (lambda: ChainSVC(**QUICK).fit(WORDS, TAGS).score(WORDS, SHORT), r"X\[2\] .* y\[2\] has 3"),
    "frames": (lambda: SegmentSVC(**QUICK).fit(WORDS, SHORT), r"X\[2\] has 4 frames and y\[2\] has 3"),
    "nodes": (lambda: GraphSVC(**QUICK).fit(GRAPHS, [COLOURS[0], [1, 0]]), r"X\[1\] has 3 nodes and y\[1\] has 2"),
    "rows of words": (lambda: ChainSVC(**QUICK).fit([[[0.1, 1.0], [1.0]]], [[0, 1]]), r"X\[0\]\[1\]=.* has 1 entry"),
    "sets": (lambda: MultilabelSVC().fit(ROWS, RAGGED), r"y\[7\]=\[1, 1\] has 2 entries, and y\[0\] has 3.*Binarizer"),
    "sets of names": (lambda: MultilabelSVC().fit(ROWS, RAGGED_SETS), r"y\[2\]=\['sky', 'sea'\] has 2 .*Binarizer"),
    "Python's sets": (lambda: MultilabelSVC().fit(ROWS, [{"sky"}] * 12), r"y\[0\]=\{'sky'\} is a set.*Binarizer"),
    "an array of lists": (
        lambda: MultilabelSVC().fit(ROWS, np.array(RAGGED_SETS, dtype=object)),
        r"y\[2\]=\['sky', 'sea'\] has 2 entries",
    ),
    "sets to score": (lambda: MultilabelSVC(**QUICK).fit(ROWS, SETS).score(ROWS, RAGGED), r"y\[7\]=\[1, 1\] has 2"),
    "sets to calibrate": (
        lambda: MultilabelSVC(**QUICK).fit(ROWS, SETS).calibrate(ROWS, RAGGED),
        r"y\[7\]=\[1, 1\] has 2",
    ),
    "features of sets": (lambda: MultilabelSVC().fit(RAGGED, SETS), r"X\[7\]=\[1, 1\] has 2 entries, and X\[0\] has 3"),
    "features": (lambda: MultinomialSVC().fit(RAGGED, CODES), r"X\[7\]=\[1, 1\] has 2 entries, and X\[0\] has 3"),
    "classes": (lambda: MultinomialSVC().fit(ROWS, [*CODES[:3], [1, 2], *CODES[4:]]), r"y\[3\]=\[1, 2\] has 2 entries"),
}


@pytest.mark.parametrize("where", UNEVEN)
def test_lists_of_several_lengths_are_refused_with_the_number_of_the_example(where):
    fit, words = UNEVEN[where]
    with pytest.raises(ValueError, match=words):
        fit()
