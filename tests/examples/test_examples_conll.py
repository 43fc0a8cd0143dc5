"""The example and the benchmark of text chunking, on a small corpus of the same form."""

import json
import math
import random
from pathlib import Path

import pytest
from chunking_problems import write

from torchssvm import CompiledBCFW
from torchssvm.core.figures import new_figure
from torchssvm.datasets import CoNLL2000
from torchssvm.datasets.text import conll2000
from torchssvm.datasets.text.chunking_drawing import Tagged, draw_chunks
from torchssvm.datasets.text.conll2000 import SPLITS

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


def report_of(folder):
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], abs=1e-12)
    assert report["n"] == 60
    assert report["num_weights"] == 22 * report["attributes"] + 22 * 22 + 3 * 22
    for name in ("train_chunk_f1", "test_chunk_f1", "test_chunk_precision", "test_chunk_recall", "test_token_error"):
        assert 0.0 <= report[name] <= 1.0
    assert (folder / "convergence.png").stat().st_size > 10_000
    return report


def test_a_run_to_a_gap(run_here, tmp_path, monkeypatch):
    visit, visited = CompiledBCFW.visit, []
    monkeypatch.setattr(CompiledBCFW, "visit", lambda self, index: visited.append(len(index)) or visit(self, index))
    folder = tmp_path / "new" / "folder"
    out = run_here(ROOT / "examples" / "conll.py", "--lam", "0.05", "--gap", "0.1", "--report", str(folder))
    report = report_of(folder)
    assert report["gap"] <= 0.1
    assert report["stopped_because"].startswith("certified gap")
    assert report["stopped_because"] in out
    assert (report["lam"], report["direction"], report["cache"], report["min_count"]) == (0.05, "fw", False, 3)
    assert report["test_chunk_f1"] > 0.5
    assert report["train_chunk_f1"] > 0.7
    assert f"{100 * report['test_chunk_f1']:.2f}" in out.partition("chunks of the test sentences")[2]
    assert report["peak_mib"] > 50
    assert sum(visited) >= 60  # StructuredSVM took the compiled loop by itself


def test_lam_is_chosen_on_held_out_sentences_and_crfsuite_stands_beside(run_here, tmp_path):
    pytest.importorskip("pycrfsuite")
    rules = ("--direction", "pairwise", "--cache", "--order", "uniform", "--min-count", "1", "--max-passes", "8")
    lams = ("--hold-out", "100", "0.02", "--crfsuite")
    out = run_here(ROOT / "examples" / "conll.py", *lams, *rules, "--gap", "0.001", "--report", str(tmp_path))
    report = report_of(tmp_path)
    assert report["held_out_f1"].keys() == {"100", "0.02"}
    assert report["lam"] == float(max(report["held_out_f1"], key=report["held_out_f1"].__getitem__))
    assert (report["direction"], report["cache"], report["order"], report["min_count"]) == (
        "pairwise",
        True,
        "uniform",
        1,
    )
    assert report["cache_hits"] > 0
    assert report["crfsuite_test_chunk_f1"] > 0.5
    assert report["crfsuite_seconds"] > 0
    assert 1 <= report["crfsuite_iterations"] <= 80
    assert f"CRFsuite, {report['crfsuite_iterations']} iterations" in out


@pytest.mark.parametrize(
    "given, message",
    [
        (("--lam", "0.1", "--hold-out", "0.1"), "--lam and --hold-out exclude each other"),
        (("--min-count", "0"), "--min-count: must be at least 1"),
        (("--hold-out", "-1"), "--hold-out: must be positive"),
        (("--size", "small"), "unrecognized arguments"),
    ],
)
def test_bad_flags_are_refused(given, message, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import conll

    with pytest.raises(SystemExit) as stop:
        conll.parse(list(given))
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_crfsuite_that_is_missing_is_named_before_the_work_begins(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import conll

    monkeypatch.setattr(conll.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        conll.parse(["--crfsuite"])
    assert "torchssvm[bench]" in capsys.readouterr().err


def test_the_benchmark(run_here, tmp_path):
    flags = ("--min-count", "1", "--lam", "100", "0.02", "--gap", "0.1", "--iterations", "2", "10")
    out = run_here(ROOT / "benchmarks" / "conll.py", "--out", str(tmp_path), *flags)
    (found,) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["found"]
    assert [one["lam"] for one in found["search"]] == [100.0, 0.02]
    assert found["lam"] == max(found["search"], key=lambda one: one["f1"])["lam"]
    for points in found["runs"].values():
        assert all(0.0 <= p["f1"] <= 1.0 and math.isfinite(p["seconds"]) for p in points)
    for side in ("BCFW", "BCFW, weighted average"):
        assert found["runs"][side][-1]["gap"] <= 0.1
        assert found["runs"][side][-1]["f1"] > 0.5
    if "CRFsuite" in found["runs"]:
        assert [p["iterations"] for p in found["runs"]["CRFsuite"]] == [2, 10]
    assert (tmp_path / "table.md").read_text(encoding="utf-8").strip() in out
    assert (tmp_path / "conll.png").stat().st_size > 5_000


def test_a_picture_of_chunks():
    words = ["In", "addition", "to", "debt", "x" * 130, "."]
    true = ["B-PP", "I-PP", "I-PP", "B-NP", "I-NP", "O"]
    found = ["B-PP", "B-NP", "B-PP", "B-NP", "I-NP", "O"]
    figure = new_figure((10, 3))
    draw_chunks(figure, [Tagged(words, true, found)])
    (axes,) = figure.axes
    texts = [(text.get_text(), text.get_color()) for text in axes.texts]
    assert {word for word, _ in texts} == {*words, "PP", "NP"}
    frames = [patch for patch in axes.patches if not patch.get_fill()]
    assert len(frames) == 3  # PP, NP and PP, which are wrong
    assert len(axes.patches) - len(frames) == 5  # boxes: the long NP goes on on the next line
    assert len(axes.lines) == 1  # the PP of three words, which was missed
    assert texts.count(("PP", "red")) == 3  # two wrong ones, and the missed one
    figure.canvas.draw()
