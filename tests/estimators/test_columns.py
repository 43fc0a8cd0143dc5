"""Tables: columns of other names, or in another order than in fit, are refused as scikit-learn refuses them."""

import warnings

import numpy as np
import pytest

from torchssvm.deployment import load_head, load_model
from torchssvm.estimators import (
    ChainSVC,
    GraphSVC,
    MultilabelSVC,
    MultinomialSVC,
    PredictThenOptimize,
    RankingSVC,
    SegmentSVC,
)
from torchssvm.structures import Selection

pd = pytest.importorskip("pandas")

chance = np.random.default_rng(0)
NAMES = ["height", "width", "ink"]
ROWS = [chance.normal(size=(n, 3)) for n in (3, 2, 4, 3)]
LABELS = [["ab"[int(row[0] > 0)] for row in rows] for rows in ROWS]
LABELS[0][:2] = "ab"
MATRIX, CLASSES = np.concatenate(ROWS), [label for labels in LABELS for label in labels]
SETS = (MATRIX[:, :2] > 0).astype(int)
QUICK = {"tol": 0.5, "random_state": 0}


def _path(rows):
    return rows, np.stack([np.arange(len(rows) - 1), np.arange(1, len(rows))], 1)


def _table(rows, names=NAMES):
    return pd.DataFrame(rows, columns=names)


def _turned(table):
    return table[table.columns[::-1]]


def _each(change):
    return lambda tables: [change(table) for table in tables]


SEQUENCES = list(map(_table, ROWS))
CASES = {
    "chain": (ChainSVC(**QUICK), SEQUENCES, LABELS, _each(_turned)),
    "segments": (SegmentSVC(**QUICK), SEQUENCES, LABELS, _each(_turned)),
    "graph": (
        GraphSVC(**QUICK),
        list(map(_path, SEQUENCES)),
        LABELS,
        _each(lambda graph: (_turned(graph[0]), graph[1])),
    ),
    "classes": (MultinomialSVC(**QUICK), _table(MATRIX), CLASSES, _turned),
    "sets": (MultilabelSVC(**QUICK), _table(MATRIX), SETS, _turned),
    "rankings": (RankingSVC(**QUICK), _table(MATRIX).assign(qid=3), np.arange(len(MATRIX)) % 3, _turned),
    "decisions": (PredictThenOptimize(Selection(3, 1), 0.1, **QUICK), _table(MATRIX), MATRIX, _turned),
}


@pytest.mark.parametrize(("model", "X", "y", "turn"), CASES.values(), ids=CASES)
def test_another_order_is_refused_everywhere(model, X, y, turn):
    model.fit(X, y)
    assert model.feature_names_in_.tolist() == NAMES
    others = {"score": (turn(X), y), "predict": (turn(X),)}
    others |= {name: (turn(X),) for name in ("decision_function", "decide") if hasattr(model, name)}
    others |= {name: (turn(X), y) for name in ("calibrate", "partial_fit") if hasattr(model, name)}
    for name, given in others.items():
        with pytest.raises(ValueError, match="order"):
            getattr(model, name)(*given)
    if "warm_start" in model.get_params():
        with pytest.raises(ValueError, match="order"):
            model.set_params(warm_start=True).fit(turn(X), y)
        model.set_params(warm_start=False)
    model.fit(turn(X), y)
    assert model.feature_names_in_.tolist() == NAMES[::-1]


@pytest.mark.parametrize("name", ["chain", "segments", "graph"])
def test_one_fit_takes_one_order(name):
    model, X, y, turn = CASES[name]
    with pytest.raises(ValueError, match="order"):
        model.fit([X[0], *turn(X[1:])], y)


@pytest.mark.parametrize("name", CASES)
def test_arrays_after_tables_warn_as_in_scikit_learn(name):
    model, X, y, _ = CASES[name]
    model.fit(X, y)
    bare = {"graph": list(map(_path, ROWS)), "chain": ROWS, "segments": ROWS}.get(name, MATRIX)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(bare)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X)


@pytest.mark.parametrize(("part", "columns"), [(1, ["from", "to"]), (2, ["near", "dark"])])
def test_tables_of_edges_have_one_order_too(part, columns):
    def graphs(change):
        made = [[rows, edges, chance.normal(size=(len(edges), 2))] for rows, edges in map(_path, ROWS)]
        for graph in made:
            graph[part] = change(pd.DataFrame(graph[part], columns=columns))
        return made

    model = GraphSVC(**QUICK).fit(graphs(lambda table: table), LABELS)
    with pytest.raises(ValueError, match="a table of edge"):
        model.predict(graphs(_turned))


def test_tables_of_targets_have_one_order_too():
    sets, costs = pd.DataFrame(SETS, columns=["red", "blue"]), _table(MATRIX)
    model = MultilabelSVC(**QUICK).fit(MATRIX, sets)
    for call in (model.calibrate, model.score):
        with pytest.raises(ValueError, match="y has columns"):
            call(MATRIX, _turned(sets))
    with pytest.raises(ValueError, match="costs has columns"):
        PredictThenOptimize(Selection(3, 1), 0.1, **QUICK).fit(MATRIX, costs).regret(MATRIX, _turned(costs))


@pytest.mark.parametrize("name", ["chain", "segments", "classes", "sets"])
def test_files_have_the_names_and_saved_models_refuse_tables(name, tmp_path):
    pytest.importorskip("safetensors")
    model, X, y, _ = CASES[name]
    model.fit(X, y).save(tmp_path / "model.safetensors")
    saved = load_head(tmp_path / "model.safetensors")
    assert saved.feature_names == NAMES
    with pytest.raises(TypeError, match="feature_names"):
        saved.decode(_table(MATRIX))
    if name != "sets":
        server = load_model(tmp_path / "model.safetensors")
        assert server.feature_names == NAMES
        with pytest.raises(TypeError, match="feature_names"):
            server(_table(MATRIX))


def test_tables_of_several_types_are_arrays():
    tables = [table.assign(tall=table["height"] > 0) for table in SEQUENCES]
    arrays = [table.to_numpy(np.float32) for table in tables]
    for model in (ChainSVC(**QUICK), SegmentSVC(**QUICK)):
        assert model.fit(tables, LABELS).predict(tables) == model.fit(arrays, LABELS).predict(arrays)
    whole = [table.convert_dtypes() for table in SEQUENCES]
    assert ChainSVC(**QUICK).fit(whole, LABELS).predict(whole)
