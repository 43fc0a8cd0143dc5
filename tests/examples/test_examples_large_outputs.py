"""The examples and the benchmark of GDMM, on small data of the same form."""

import math
import random
import re
from pathlib import Path

import pytest
from cases.benchmark_parts import measured, part_of
from cases.example_files import report_of
from cases.multilabel_files import Column, arff_text, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LABELS = ["TAG_sun", "TAG_sea", "TAG_snow", "TAG_sky", "TAG_town"]

pytest.importorskip("matplotlib")


def songs(number: int, seed: int) -> str:
    """Examples whose labels show in the features, and of which two come together."""
    chance = random.Random(seed)
    columns = [Column(f"word{f}", None) for f in range(8)] + [Column(name, ["0", "1"]) for name in LABELS]
    rows = []
    for _ in range(number):
        labels = [int(chance.random() < 0.4) for _ in LABELS]
        labels[1] = labels[0]
        words = [str(int(chance.random() < (0.9 if f < len(LABELS) and labels[f] else 0.2))) for f in range(8)]
        rows.append([*words, *map(str, labels)])
    return arff_text(columns, rows, sparse=True)


@pytest.fixture
def data(tmp_path):
    """Small files in the places of the published ones."""
    names = "".join(f'<label name="{name}"></label>\n' for name in LABELS)
    for name in ("bibtex", "scene"):
        folder = tmp_path / "data" / "multilabel" / name
        folder.mkdir(parents=True)
        write(folder / f"{name}.xml", f'<labels xmlns="http://mulan.sourceforge.net/labels">\n{names}</labels>\n')
        for seed, (split, number) in enumerate((("train", 60), ("test", 30))):
            write(folder / f"{name}-{split}.arff", songs(number, seed))
    return tmp_path / "data"


def test_label_sets(run_script, data, tmp_path):
    folder = tmp_path / "new" / "folder"
    flags = ("--data", "bibtex", "--root", data, "--lam", "0.01", "--gap", "0.05")
    out = run_script(ROOT / "examples" / "multilabel.py", *flags, "--report", folder)
    report = report_of(folder)
    assert report["relaxed_gap"] <= 0.05
    assert report["relaxed_gap"] == pytest.approx(report["relaxed_primal"] - report["relaxed_dual"], abs=1e-12)
    assert report["dual"] <= report["relaxed_dual"] <= report["relaxed_primal"]
    assert report["num_weights"] == 8 * 5 + 5 + 10
    result, nothing = re.findall(r"accuracy ([0-9.]+)", out.partition("test examples")[2])[:2]
    assert float(result) > float(nothing)
    assert report["test_loss"] == pytest.approx(1.0 - float(result), abs=1e-4)
    assert (folder / "interactions.png").stat().st_size > 10_000


def test_synthetic_chains(run_script, tmp_path):
    flags = ("--labels", "12", "--chains", "60", "--test_chains", "40", "--gap", "0.1", "--lam", "0.03")
    out = run_script(ROOT / "examples" / "large_chain.py", *flags, "--violation", "0.05", "--report", tmp_path)
    report = report_of(tmp_path)
    assert report["gap"] <= 0.1
    assert (report["n"], report["exact"]) == (60, True)
    assert "relaxed_gap" not in report  # chains are not relaxed
    assert report["num_weights"] == 12 * 12 + 12 * 12 + 12
    result, usual, truth = (float(share) for share in re.findall(r"([0-9.]+) %", out))
    assert truth < result < usual
    assert 100 * report["test_token_error"] == pytest.approx(result, abs=0.01)


def test_words(run_script, tmp_path):
    from torchssvm.datasets import CoNLL2000

    try:
        CoNLL2000("test")
    except OSError as missing:
        pytest.skip(str(missing))
    flags = ("--data", "words", "--labels", "20", "--chains", "40", "--test_chains", "10", "--max_passes", "4")
    out = run_script(ROOT / "examples" / "large_chain.py", *flags, "--rho", "2", "--report", tmp_path)
    assert report_of(tmp_path)["n"] == 40
    assert "not known" in out


@pytest.fixture
def measures():
    """The benchmark's measures."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("memory is measured on Linux only")
    return part_of("large_outputs").MEASURES


def test_the_benchmark(measures):
    _, results = measured("large_outputs", {}, quick=True)
    assert list(results["chains"]) == ["8", "20"]
    for states, one in results["chains"].items():
        assert len(one["visited"]) == len(one["pass_cpu_seconds"]) == 3
        assert 1.0 <= one["visited"][-1] <= int(states) ** 2
        assert one["gap"] >= 0.0
        assert one["dual_bytes_per_token"] >= 16.0
        assert math.isfinite(one["peak_mib"])
    for one in (one for several in results["bcfw"].values() for one in several):
        assert one["pass_cpu_seconds"] > 0.0
        assert one["kept_bytes_per_token"] >= 8.0
    for states, one in results["oracles"].items():
        assert one["brute force"]["visited"][-1] == int(states) ** 2
        assert one["sorted"]["visited"][-1] < int(states) ** 2
        assert one["sorted"]["primal"] == pytest.approx(one["brute force"]["primal"], rel=0.2)
    assert set(results["rules"]) == {"FullyCorrective", "AwayStep", "BlockGreedy"}


def test_the_benchmark_of_label_sets(measures, data):
    root = str(data)
    gdmm = measures["label_sets"](lam=0.01, passes=4, rho=0.1, root=root)
    bcfw = measures["label_sets_bcfw"](lam=0.01, passes=2, root=root)
    alone = measures["label_sets_bcfw"](lam=0.01, passes=2, root=root, interactions=False)
    assert [len(result["points"]) for result in (gdmm, bcfw, alone)] == [4, 2, 2]
    for result in (gdmm, bcfw, alone):
        assert all(0.0 <= accuracy <= 1.0 for _, accuracy in result["points"])
        assert result["reached"].keys() == {"0.983", "0.984"}
    assert gdmm["accuracy"] == gdmm["points"][-1][1]
    assert gdmm["gap"] >= 0.0
    assert gdmm["relaxed_gap"] >= 0.0
