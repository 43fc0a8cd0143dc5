"""The example and the benchmark of named entities, on a small corpus of the same form."""

import gzip
import json
import random
from pathlib import Path

import pytest
from cases.benchmark_parts import measured

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

pytest.importorskip("jsonargparse")
pytest.importorskip("matplotlib")

NAMES = {"PER": ["Anna Berg", "Kim", "Ib Holm"], "LOC": ["Aarhus", "New York"], "ORG": ["SID", "Dansk Bank"]}
WORDS = ["og", "i", "fra", "med", "til", "så", "havde", "bank", "berg"]


def corpus(sentences: int, seed: int) -> str:
    """Names among other words, in the columns of Universal NER."""
    chance, text = random.Random(seed), []
    for number in range(sentences):
        rows = []
        for _ in range(chance.randint(3, 5)):
            rows += [(word, "O") for word in chance.choices(WORDS, k=2)]
            kind = chance.choice(list(NAMES))
            words = chance.choice(NAMES[kind]).split()
            rows += [(word, f"{'I' if place else 'B'}-{kind}") for place, word in enumerate(words)]
        lines = [f"{place}\t{word}\t{tag}\t-\t-" for place, (word, tag) in enumerate(rows, 1)]
        text.append("\n".join([f"# sent_id = {number}", *lines, ""]))
    return "\n".join(text)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Small files in the place of the published ones."""
    place = tmp_path / "data" / "uner_danish_ddt"
    place.mkdir(parents=True)
    for seed, split in enumerate(("train", "dev", "test")):
        (place / f"{split}.iob2.gz").write_bytes(gzip.compress(corpus(40, seed).encode()))
    monkeypatch.setenv("TORCHSSVM_DATA", str(tmp_path / "data"))
    return tmp_path


def test_a_run_on_the_published_files(folder, run_script):
    out = run_script(ROOT / "examples" / "entities.py", "--lam", "0.01", "--report", str(folder / "new"))
    report = json.loads((folder / "new" / "report.json").read_text(encoding="utf-8"))
    assert report["gap"] <= 0.01
    assert (report["n"], report["lam"]) == (40, 0.01)
    assert report["test_f1"] > 0.8
    assert "precision" in out.partition("entities of the test sentences")[2]
    assert (folder / "new" / "convergence.png").stat().st_size > 10_000


def test_files_of_ones_own(folder, run_script, capsys):
    (folder / "train.txt").write_text("Anna S-PER\nand O\nNew B-LOC\nYork E-LOC\n\nKim S-PER\nleft O\n")
    (folder / "test.txt").write_text("Anna S-PER\nleft O\nOslo S-CITY\n")
    flags = ["--train", folder / "train.txt", "--test", folder / "test.txt", "--word", "0", "--tag", "-1"]
    out = run_script(ROOT / "examples" / "entities.py", *map(str, flags), "--report", str(folder / "own"))
    assert "CITY" in out.partition("entities of the test sentences")[2]  # of a type without training examples
    with pytest.raises(SystemExit, match=r"error: .*train.txt, line 1: .*tag=7"):
        run_script(ROOT / "examples" / "entities.py", *map(str, flags[:-1]), "7")


def test_the_benchmark(folder):
    part, results = measured("entities", {"lam": [0.2], "c2": [0.1], "iterations": [5], "seeds": 2}, quick=True)
    for loss, one in results["losses"].items():
        assert one["best"]["f1"] == max(point["f1"] for point in one["search"])
        assert len(one["search"]) == len(part.LOSSES[loss][2])
        for points in one["runs"]:
            assert points[-1]["gap"] <= 0.2 * points[-1]["primal"]
            assert len(points[-1]["counts"]) == 40
