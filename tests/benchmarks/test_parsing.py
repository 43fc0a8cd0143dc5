"""The benchmark of parsing on a treebank of a little grammar."""

import gzip

import pytest
from cases.benchmark_parts import measured
from cases.treebanks import treebank

pytestmark = pytest.mark.slow


def test_both_sides_learn_the_grammar(tmp_path):
    pytest.importorskip("conllu")
    for seed, (part, count) in enumerate((("train", 60), ("dev", 20), ("test", 20))):
        with gzip.open(tmp_path / f"{part}.conllu.gz", "wt", encoding="utf-8") as file:
            file.write(treebank(seed, count))
    options = {"data": str(tmp_path), "num_features": 2**14, "collisions": 2**8, "lam": [200.0, 50.0], "epochs": 3}
    _, results = measured("parsing", {**options, "lam_normalized": [500.0], "gap": 0.05, "max_passes": 500.0})
    perceptron, narrow, *ours, last = results["rows"]
    assert [row["side"] for row in results["rows"]] == ["perceptron"] * 2 + ["BCFW"] * 4
    assert perceptron["wrong"][-1] < perceptron["wrong"][0]
    assert 0.8 < perceptron["test"] <= 1.0
    assert narrow["columns"] == last["columns"] == 2**8
    for row in (*ours, last):
        end = row["points"][-1]
        assert 0.0 <= end["gap"] <= 0.05 * end["primal"]
        assert row["test"] > 0.8
    assert results["best"]["dev"] == max(row["dev"] for row in ours if not row["normalize"])
