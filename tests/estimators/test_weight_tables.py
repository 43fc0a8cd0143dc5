"""Tables of weights by name: with them a reader adds up every score by hand, before and after a file."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.exceptions import NotFittedError

from torchssvm import LinearChain, LinearTree
from torchssvm.deployment import Decoder, SavedModel, batch_of_names, load_head, load_model, save_model
from torchssvm.estimators import ChainSVC, GraphSVC, MultilabelSVC, MultinomialSVC, RankingSVC, SegmentSVC
from torchssvm.structures.graph_cut.head import Graphs
from torchssvm.structures.tree.forest import ForestFeatures

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("safetensors")

chance = np.random.default_rng(3)
SIZES = chance.integers(2, 6, 12)
ROWS = [chance.normal(size=(size, 2)) for size in SIZES]
LABELS = [["abc"[int(abs(row[0]) * 2) % 3] for row in rows] for rows in ROWS]
TAGS = [
    ["B-X" if row[0] > 0 else "I-X" if i and rows[i - 1][0] > 0 else "O" for i, row in enumerate(rows)] for rows in ROWS
]
WORDS = [[{"word": f"w{int(row[1] * 2)}", "big": bool(row[0] > 0), "bias": 1.0} for row in rows] for rows in ROWS]
MATRIX = chance.normal([0.0, 5.0, 0.0], size=(40, 3))
CLASSES = np.array(["low", "high", "middle"])[(MATRIX[:, 0] * 2).astype(int) % 3]
SETS = (MATRIX[:, :1] + chance.normal(size=(40, 3)) > [0.0, 0.3, -0.3]).astype(int)
Names = Mapping[tuple[str, str], float]


def values(table: Any) -> Names:
    """The weights by names, the largest first; there are no two of the same names."""
    results = {(feature, label): weight for feature, label, weight in table}
    assert len(results) == len(table)
    assert 0.0 not in results.values()
    sizes = [abs(weight) for *_, weight in table]
    assert sizes == sorted(sizes, reverse=True)
    return results


def tables(model: Any, tmp_path: Any, load: Callable[[Any], Any] = load_head) -> tuple[Names, Names]:
    """The weights of features and of neighbours, which a loaded model has too."""
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.top_features(None) == model.top_features(None)
    assert loaded.top_transitions(None) == model.top_transitions(None)
    return values(model.top_features(None)), values(model.top_transitions(None))


def named(row: Any, before: str = "") -> dict[str, float]:
    return {f"{before}x{place}": value for place, value in enumerate(row)} | {f"{before}(bias)": 1.0}


def total(weights: Names, features: Mapping[str, float], label: str) -> float:
    return sum(weights.get((name, label), 0.0) * value for name, value in features.items())


def chain_score(features: Names, pairs: Names, tokens: Sequence[Mapping[str, float]], labels: Sequence[str]) -> float:
    neighbours = pairwise(["(start)", *labels, "(end)"])
    return sum(map(total, [features] * len(labels), tokens, labels)) + sum(pairs.get(pair, 0.0) for pair in neighbours)


def best(model: Any, *inputs: Any) -> float:
    """The score of the best output, by head and structure."""
    with torch.no_grad():
        return float(model.structure_.argmax(model.head_(*inputs)).value[0])


@pytest.mark.parametrize(("y", "options"), [(LABELS, {}), (TAGS, {"transitions": "BIO"})], ids=["all", "BIO"])
def test_named_features_of_a_sentence(y, options, tmp_path):
    model = ChainSVC(C=5.0, random_state=0, **options).fit(WORDS, y)
    features, pairs = tables(model, tmp_path, load_model)
    for tokens, labels in zip(WORDS, model.predict(WORDS), strict=True):
        by_name = [
            {f"word={token['word']}": 1.0, "big": float(token["big"]), "bias": 1.0, "(bias)": 1.0} for token in tokens
        ]
        value = best(model, *batch_of_names([tokens], model.vocabulary_))
        assert chain_score(features, pairs, by_name, labels) == pytest.approx(value, abs=1e-5)
    assert {name for name, _ in features} <= {*model.vocabulary_, "(bias)"}
    if options:
        assert not {("(start)", "I-X"), ("O", "I-X")} & pairs.keys()
        assert ("B-X", "I-X") in pairs


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_of_a_sequence(sparse, tmp_path):
    X = [csr_matrix(rows) for rows in ROWS] if sparse else ROWS
    model = ChainSVC(C=5.0, random_state=0).fit(X, LABELS)
    features, pairs = tables(model, tmp_path, load_model)
    assert [features["x1", k] for k in "abc"] == pytest.approx(model.coef_[:, 1])
    for rows, labels in zip(ROWS, model.predict(X), strict=True):
        states = [model.classes_.tolist().index(label) for label in labels]
        scores = rows @ model.coef_.T + model.intercept_
        value = scores[range(len(rows)), states].sum() + model.transitions_[states[:-1], states[1:]].sum()
        value += model.start_[states[0]] + model.end_[states[-1]]
        assert chain_score(features, pairs, list(map(named, rows)), labels) == pytest.approx(value)


@pytest.mark.parametrize("boundary", [False, True])
def test_segments(boundary, tmp_path):
    model = SegmentSVC(C=5.0, boundary=boundary, max_duration=4, random_state=0).fit(ROWS, LABELS)
    features, pairs = tables(model, tmp_path, load_model)
    for rows, spans in zip(ROWS, model.predict(ROWS), strict=True):
        score = sum(pairs.get((a, b), 0.0) for (*_, a), (*_, b) in pairwise(spans))
        for start, end, label in spans:
            once = {f"duration {end - start}": 1.0} | (named(rows[start], "first frame: ") if boundary else {})
            score += total(features, once, label) + sum(total(features, named(row), label) for row in rows[start:end])
        assert score == pytest.approx(best(model, torch.tensor(rows)[None], torch.tensor([len(rows)])))


@pytest.mark.parametrize("edge_features", [1, 2])
def test_forests(edge_features, tmp_path):
    edges = [np.array([(i, i - 1) if i % 2 else (i - 1, i) for i in range(1, size)]) for size in SIZES]
    X = [(rows, ends, chance.uniform(size=(len(ends), edge_features))) for rows, ends in zip(ROWS, edges, strict=True)]
    model = GraphSVC(C=5.0, random_state=0).fit(X, LABELS)
    features, pairs = tables(model, tmp_path)
    for (rows, ends, given), labels in zip(X, model.predict(X), strict=True):
        score = sum(total(features, named(row), label) for row, label in zip(rows, labels, strict=True))
        for (p, q), row in zip(ends, given, strict=True):
            places = [f", edge x{place}" for place in range(edge_features)] if edge_features > 1 else [""]
            score += sum(pairs.get((labels[p] + at, labels[q]), 0.0) * v for at, v in zip(places, row, strict=True))
        size = len(rows)
        links = torch.tensor(np.r_[np.zeros((1, edge_features)), given])[None]
        forward = torch.tensor([i % 2 == 0 for i in range(size)])[None]
        forest = ForestFeatures(torch.tensor(rows)[None], links, torch.arange(-1, size - 1)[None], forward)
        assert score == pytest.approx(best(model, forest))


@pytest.mark.parametrize("edge_features", [1, 2])
def test_graphs_with_cycles(edge_features, tmp_path):
    pytest.importorskip("maxflow")
    ends = np.array([(0, 1), (1, 2), (0, 2)])
    X = [(chance.normal(size=(3, 2)), ends, chance.uniform(size=(3, edge_features))) for _ in range(12)]
    y = [["up" if row[0] + chance.normal() > 0 else "down" for row in nodes] for nodes, *_ in X]
    model = GraphSVC(C=1.0, random_state=0).fit(X, y)
    features, pairs = tables(model, tmp_path)
    assert {label for _, label in features} == {"up"}  # the first label scores 0
    assert values(model.top_features(None, "down")) == {(name, "down"): -w for (name, _), w in features.items()}
    places = [f", edge x{place}" for place in range(edge_features)] if edge_features > 1 else [""]

    for (nodes, _, given), labels in zip(X, model.predict(X), strict=True):
        up = [total(features, named(row), "up") for row in nodes]
        differ = [labels[p] != labels[q] for p, q in ends] @ given
        score = sum(pairs.get(("down" + at, "up"), 0.0) * v for at, v in zip(places, differ, strict=True))
        score += sum(value for value, label in zip(up, labels, strict=True) if label == "up")
        graph = Graphs(
            torch.tensor(np.c_[nodes, np.ones(3)])[None], torch.tensor(given)[None], torch.tensor(ends)[None]
        )
        assert score == pytest.approx(best(model, graph) + sum(up) / 2)  # the head gives half to each label


def test_classes(tmp_path):
    table = pd.DataFrame(MATRIX, columns=["speed", "mass", "x"])
    model = MultinomialSVC(random_state=0).fit(table, CLASSES)
    features, pairs = tables(model, tmp_path, load_model)
    assert not pairs
    assert repr(model.top_transitions()) == "(no weights)"
    for row, scores in zip(MATRIX, model.decision_function(table), strict=True):
        by_name = dict(zip(table.columns, row, strict=True)) | {"(bias)": 1.0}
        assert [total(features, by_name, k) for k in model.classes_] == pytest.approx(scores)


@pytest.mark.parametrize("estimator", [MultinomialSVC, MultilabelSVC])
@pytest.mark.parametrize("y", [CLASSES == "low", np.where(CLASSES == "low", 3, 7)], ids=["bool", "numbers"])
def test_two_classes(estimator, y, tmp_path):
    model = estimator(random_state=0).fit(MATRIX, y)
    features, _ = tables(model, tmp_path, load_model)
    first, second = model.classes_
    assert {label for _, label in features} == {str(second)}
    scores = [total(features, named(row), str(second)) for row in MATRIX]
    assert scores == pytest.approx(model.decision_function(MATRIX))
    assert model.top_features(None, second) == model.top_features(None)
    assert [-row.weight for row in model.top_features(None, first)] == [row.weight for row in model.top_features(None)]


@pytest.mark.parametrize("sparse", [False, True])
def test_sets_of_labels(sparse, tmp_path):
    X, y = csr_matrix(MATRIX) if sparse else MATRIX, pd.DataFrame(SETS, columns=["sun", "rain", "wind"])
    model = MultilabelSVC(interactions=True, random_state=0).fit(X, y)
    features, pairs = tables(model, tmp_path)
    assert len(pairs) == 3
    assert ("sun", "wind") in pairs
    rows = model._unit_rows(X).toarray() if sparse else MATRIX
    for row, on in zip(rows, model.predict(X), strict=True):
        labels = [name for name, one in zip(y.columns, on, strict=True) if one]
        score = sum(total(features, named(row), label) for label in labels)
        score += sum(pairs[pair] for pair in combinations(labels, 2))
        states = on.astype(bool)
        value = (row @ model.coef_.T + model.intercept_)[states].sum() + model.interactions_[states][
            :, states
        ].sum() / 2
        assert score == pytest.approx(value)


def test_pairs_that_are_not_scored_are_left_out(tmp_path):
    model = MultilabelSVC(interactions=False, random_state=0).fit(MATRIX, SETS)
    assert tables(model, tmp_path)[1] == {}
    assert {label for _, label in tables(model, tmp_path)[0]} == {"0", "1", "2"}


def test_classes_by_a_multilabel_estimator(tmp_path):
    model = MultilabelSVC(random_state=0).fit(MATRIX, CLASSES)
    features, _ = tables(model, tmp_path, load_model)
    for row, scores in zip(MATRIX, model.decision_function(MATRIX), strict=True):
        assert [total(features, named(row), k) for k in model.classes_] == pytest.approx(scores)


@pytest.mark.parametrize("cycles", [False, True])
def test_names_of_the_columns_of_tables(cycles, tmp_path):
    if cycles:
        pytest.importorskip("maxflow")
    nodes = [pd.DataFrame(chance.normal(size=(3, 2)), columns=["speed", "mass"]) for _ in range(8)]
    ends = np.array([(0, 1), (1, 2), (0, 2)][: 2 + cycles])
    y = [np.where(table["speed"] > 0, "up", "down") for table in nodes]
    for model, X in (
        (GraphSVC(random_state=0), [(table, ends) for table in nodes]),
        (ChainSVC(random_state=0), nodes),
        (SegmentSVC(random_state=0, max_duration=3), nodes),
    )[: 1 if cycles else 3]:
        features, _ = tables(model.fit(X, y), tmp_path)
        assert {name for name, _ in features} - {f"duration {d}" for d in (1, 2, 3)} == {"speed", "mass", "(bias)"}


def test_a_matrix_for_each_position(tmp_path):
    head = LinearChain(2, 2, positions=3, boundary=False, bias=False)
    with torch.no_grad():
        head.transition[1, 0, 1] = -2.0
        head.emission[1, 0] = 1.0
    save_model(tmp_path / "model", head, labels=["a", "b"])
    for model in (Decoder(head), load_head(tmp_path / "model")):
        names = model.labels or ["0", "1"]
        assert model.top_transitions() == [(f"{names[0]} at 1", names[1], -2.0)]
        assert model.top_features() == [("x0", names[1], 1.0)]


def test_a_table_prints_and_goes_into_a_frame():
    model = ChainSVC(C=5.0, random_state=0).fit(WORDS, LABELS)
    table = model.top_features(5, label="b")
    frame = pd.DataFrame(table)
    assert frame.columns.tolist() == ["feature", "label", "weight"]
    assert len(table) == len(frame) == 5
    assert set(frame.label) == {"b"}
    assert table == [row for row in model.top_features(None) if row.label == "b"][:5]
    lines = str(table).splitlines()
    assert len({line.index(" -> ") for line in lines}) == 1
    assert len(set(map(len, lines))) == 1
    assert model.top_features(3) == model.top_features(None)[:3]
    assert len(model.top_features()) == 20


def test_wrong_arguments():
    with pytest.raises(NotFittedError):
        ChainSVC().top_features()
    model = ChainSVC(random_state=0).fit(WORDS, LABELS)
    with pytest.raises(ValueError, match=r"^label='B-ORG' was not in training: give one of a, b, c$"):
        model.top_features(label="B-ORG")
    for n in (0, -1):
        with pytest.raises(ValueError, match=f"n={n}"):
            model.top_transitions(n)
    tree = LinearTree(3, 2, [-1, 0])
    with pytest.raises(TypeError, match=r"^LinearTree has no weights by label"):
        SavedModel(tree, tree.structure, None, None).top_features()


def test_a_ranking_has_one_score():
    ranking = RankingSVC(random_state=0).fit([[1.0, 0.0], [0.0, 0.5], [0.0, 0.0]], [1, 0, 0], group=[3])
    assert {(row.feature, row.label) for row in ranking.top_features()} == {("x0", "score"), ("x1", "score")}
    assert not ranking.top_transitions()
