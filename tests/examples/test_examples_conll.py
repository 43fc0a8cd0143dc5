"""The example and the benchmark of text chunking, on a small corpus of the same form."""

import math
import random
from pathlib import Path

import pytest
from cases.benchmark_parts import measured
from cases.chunking_problems import write
from cases.example_files import report_of

from torchssvm import CompiledBCFW
from torchssvm.datasets import CoNLL2000
from torchssvm.datasets.text import conll2000
from torchssvm.datasets.text.conll2000 import SPLITS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

pytest.importorskip("lightning")
pytest.importorskip("matplotlib")

WORDS = {"DT": ["the", "a"], "NN": ["cat", "dog", "mat"], "VBD": ["sat", "ran"], "IN": ["on", "near"], "RB": ["fast"]}
PHRASES = [("NP", ["DT", "NN"]), ("VP", ["VBD"]), ("PP", ["IN"]), ("NP", ["NN", "NN"]), ("ADVP", ["RB"])]


def corpus(sentences: int, seed: int) -> str:
    """Phrases one after another; every word may be of a wrong part of speech, which makes mistakes likely."""
    chance = random.Random(seed)
    text = []
    for _ in range(sentences):
        for kind, pos in chance.choices(PHRASES, k=chance.randint(5, 7)):
            for place, its in enumerate(pos):
                seen = chance.choice(list(WORDS)) if chance.random() < 0.2 else its
                text.append(f"{chance.choice(WORDS[seen])} {seen} {'I' if place else 'B'}-{kind}")
        text.append(". . O\n")
    return "\n".join(text) + "\n"


@pytest.fixture
def small_corpus(monkeypatch, tmp_path):
    """Small files in the place of the published ones."""
    files = {split: write(tmp_path, corpus(60, seed), name=split) for seed, split in enumerate(SPLITS)}
    monkeypatch.setattr(conll2000, "fetch", lambda path, *_: files[Path(path).name.partition(".")[0]])
    assert len(CoNLL2000("train", min_count=1)) == 60


@pytest.fixture
def run_here(run_script, small_corpus):
    """Run a script on it."""
    return run_script


def test_a_run_to_a_gap(run_here, tmp_path, monkeypatch):
    step, visited = CompiledBCFW.step, []
    monkeypatch.setattr(CompiledBCFW, "step", lambda self, visits: visited.append(visits) or step(self, visits))
    folder = tmp_path / "new" / "folder"
    out = run_here(ROOT / "examples" / "conll.py", "--lam", "0.05", "--gap", "0.1", "--report", str(folder))
    report = report_of(folder, n=60, lam=0.05)
    assert report["gap"] <= 0.1
    assert report["num_weights"] == 22 * CoNLL2000("train").in_features + 22 * 22 + 3 * 22
    assert report["stopped_because"].startswith("certified gap")
    assert report["stopped_because"] in out
    assert "precision" in out.partition("chunks of the test sentences")[2]
    assert report["test_token_error"] < 0.5
    assert sum(visited) >= 60  # StructuredSVM took the compiled loop by itself


def test_the_estimator(run_here):
    out = run_here(ROOT / "examples" / "chain_svc.py")
    assert "% of the primal" in out
    assert "precision" in out


def test_the_benchmark(small_corpus):
    options = {"min_count": [1], "lam": [10.0, 0.01], "share": 0.1, "iterations": [2, 10]}
    _, results = measured("conll", options)
    (one,) = results["found"]
    assert [point["lam"] for point in one["losses"]["wrong tags"]["search"]] == [10.0, 0.01]
    assert [point["lam"] for point in one["losses"]["divided by the length"]["search"]] == [200.0, 0.2]
    for run in one["losses"].values():
        assert run["lam"] == max(run["search"], key=lambda point: point["f1"])["lam"]
        assert all(0.0 <= p["f1"] <= 1.0 and math.isfinite(p["seconds"]) for p in run["points"])
        assert run["points"][-1]["gap"] <= 0.1 * run["points"][-1]["primal"]
        assert run["points"][-1]["f1"] > 0.5
    assert [p["iterations"] for p in one["CRFsuite"]] in ([], [2, 10])
