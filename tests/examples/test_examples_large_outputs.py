"""The examples and the benchmark of GDMM, on small data of the same form."""

import json
import math
import random
import re
from pathlib import Path

import pytest
from multilabel_files import Column, arff_text, write

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


def report_of(folder):
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], abs=1e-12)
    assert report["gap"] >= 0.0
    assert 0.0 <= report["violation"] <= report["worst_violation"] <= 1.0
    assert len(report["pass_cpu_seconds"]) == len(report["violations"]) == report["sweeps"]
    assert report["pass_cpu_seconds"] == sorted(report["pass_cpu_seconds"])
    assert (folder / "convergence.png").stat().st_size > 10_000
    return report


def test_label_sets(run_script, data, tmp_path):
    folder = tmp_path / "new" / "folder"
    flags = ("--data", "bibtex", "--root", data, "--lams", "10", "0.01", "--gap", "0.05", "--violation", "0.05")
    out = run_script(ROOT / "examples" / "multilabel.py", *flags, "--report", folder)
    report = report_of(folder)
    assert report["relaxed_gap"] <= 0.05
    assert report["relaxed_gap"] == pytest.approx(report["relaxed_primal"] - report["relaxed_dual"], abs=1e-12)
    assert report["dual"] <= report["relaxed_dual"] <= report["relaxed_primal"]
    assert report["history"][-1]["relaxed_gap"] == report["relaxed_gap"]
    assert f"relaxed to the local polytope: primal {report['relaxed_primal']:.6f}" in out
    assert report["violation"] <= 0.05
    assert report["stopped_because"].startswith(f"certified gap of the relaxation {report['relaxed_gap']:.6g}")
    assert report["num_weights"] == 8 * 5 + 5 + 10
    for name, lam in (("interactions", report["lam"]), ("alone", report["alone_lam"])):
        found = report["held_out_accuracy"][name]
        assert found.keys() == {"10", "0.01"}
        assert lam == float(max(found, key=found.__getitem__)) == 0.01
        assert report[f"test_{name}_accuracy"] > report["test_no labels at all_accuracy"]
        assert f"{report[f'test_{name}_accuracy']:.4f}" in out
    assert report["test_loss"] == pytest.approx(1.0 - report["test_interactions_accuracy"])
    assert "test_token_error" not in report
    assert len(report["test_accuracies"]) == report["sweeps"]
    times = report["cpu_seconds_to_test_accuracy"]
    assert times.keys() == {"0.983", "0.984"}
    best = max(report["test_accuracies"])
    assert all((at["first"] is not None) == (best >= float(t)) for t, at in times.items())
    assert re.search(r"attract: \w+ \+ \w+ \+0", out)
    assert (folder / "interactions.png").stat().st_size > 10_000


def test_a_lam_that_is_given_is_not_chosen(run_script, data, tmp_path):
    flags = ("--data", "scene", "--root", data, "--lam", "0.02", "--max-passes", "3", "--report", tmp_path)
    out = run_script(ROOT / "examples" / "multilabel.py", *flags)
    report = report_of(tmp_path)
    assert report["lam"] == report["alone_lam"] == 0.02
    assert report["held_out_accuracy"] == {"interactions": {}, "alone": {}}
    assert report["cpu_seconds_to_test_accuracy"] == {}
    assert report["sweeps"] == 3
    assert "after 3 passes" in report["stopped_because"]
    assert "held-out" not in out


def test_when_an_accuracy_was_reached(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import multilabel

    points = [(1.0, 0.9), (2.0, 0.2), (3.0, 0.8), (4.0, 0.95)]
    assert multilabel.reached(points, 0.8) == {"first": 1.0, "for_good": 3.0}
    assert multilabel.reached(points, 0.1) == {"first": 1.0, "for_good": 1.0}
    assert multilabel.reached(points[:2], 0.5) == {"first": 1.0, "for_good": None}
    assert multilabel.reached(points, 0.96) == {"first": None, "for_good": None}


def test_synthetic_chains(run_script, tmp_path):
    flags = ("--labels", "12", "--chains", "60", "--test-chains", "40", "--gap", "0.1", "--lam", "0.03")
    out = run_script(ROOT / "examples" / "large_chain.py", *flags, "--violation", "0.05", "--report", tmp_path)
    report = report_of(tmp_path)
    assert report["gap"] <= 0.1
    assert report["violation"] <= 0.05
    assert (report["n"], report["test_chains"], report["labels"], report["exact"]) == (60, 40, 12, True)
    assert "relaxed_gap" not in report  # chains are not relaxed
    assert report["num_weights"] == 12 * 12 + 12 * 12 + 12
    truth, found = report["test_token_error_of_the_truth"], report["test_token_error"]
    alone, usual = report["test_token_error_alone"], report["test_token_error_of_the_most_frequent_state"]
    assert truth < found < alone < usual
    assert f"{100 * found:.2f} %" in out


def test_words(run_script, tmp_path):
    from torchssvm.datasets import CoNLL2000

    try:
        CoNLL2000("test")
    except OSError as missing:
        pytest.skip(str(missing))
    flags = ("--data", "words", "--labels", "20", "--chains", "40", "--test-chains", "10", "--max-passes", "4")
    out = run_script(ROOT / "examples" / "large_chain.py", *flags, "--rho", "2", "--report", tmp_path)
    report = report_of(tmp_path)
    assert (report["n"], report["test_chains"], report["sweeps"], report["rho"]) == (40, 10, 4, 2.0)
    assert report["test_token_error_of_the_truth"] is None
    assert "not known" in out


@pytest.mark.parametrize(
    "script, given, message",
    [
        ("multilabel", ("--data", "yeast"), "invalid choice: 'yeast'"),
        ("multilabel", ("--lams", "0.1", "-1"), "--lams: must be positive"),
        ("large_chain", ("--labels", "0"), "--labels: must be at least 1"),
        ("large_chain", ("--max-passes", "1.5"), "--max-passes: invalid count value"),
    ],
)
def test_bad_flags_are_refused(script, given, message, run_script, capsys):
    with pytest.raises(SystemExit) as stop:
        run_script(ROOT / "examples" / f"{script}.py", *given)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def benchmark(monkeypatch):
    """The benchmark's modules; measures run in this process."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("memory is measured on Linux only")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import large_outputs
    from suite import large_outputs as suite

    def asker(part, log, kept):
        return lambda measure, **options: json.loads(json.dumps(suite.MEASURES[measure](**options)))

    monkeypatch.setattr(large_outputs, "asker", asker)
    return large_outputs, suite


def test_the_benchmark(benchmark, tmp_path, capsys):
    large_outputs, _ = benchmark
    large_outputs.main(["--quick", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["found"]
    assert list(found["chains"]) == ["8", "20"]
    for states, one in found["chains"].items():
        assert len(one["visited"]) == len(one["pass_cpu_seconds"]) == 3
        assert 1.0 <= one["visited"][-1] <= int(states) ** 2
        assert one["gap"] >= 0.0
        assert one["dual_bytes_per_token"] >= 16.0
        assert math.isfinite(one["peak_mib"])
    for several in found["bcfw"].values():
        assert [(one["batch"], one["sweeps"], one["chains"]) for one in several] == [(8, 5, 8), (4, 0, 16)]
        for one in several:
            assert one["pass_cpu_seconds"] > one["oracle_pass_cpu_seconds"] > 0.0
            assert one["kept_bytes_per_token"] >= 8.0
    for states, one in found["oracles"].items():
        assert one["brute force"]["visited"][-1] == int(states) ** 2
        assert one["sorted"]["visited"][-1] < int(states) ** 2
        assert one["sorted"]["primal"] == pytest.approx(one["brute force"]["primal"], rel=0.2)
    assert set(found["rules"]) == {"FullyCorrective", "AwayStep", "BlockGreedy"}
    assert (tmp_path / "table.md").read_text(encoding="utf-8").strip() in capsys.readouterr().out
    assert (tmp_path / "large_outputs.png").stat().st_size > 5_000


def test_the_benchmark_of_label_sets(benchmark, data):
    _, suite = benchmark
    gdmm = suite.label_sets(lam=0.01, passes=4, rho=0.1, root=str(data))
    bcfw = suite.label_sets_bcfw(lam=0.01, passes=2, root=str(data))
    assert (len(gdmm["points"]), len(bcfw["points"])) == (4, 2)
    for found in (gdmm, bcfw):
        assert all(0.0 <= accuracy <= 1.0 for _, accuracy in found["points"])
        assert found["reached"].keys() == {"0.983", "0.984"}
    assert gdmm["accuracy"] == gdmm["points"][-1][1]
    assert gdmm["gap"] >= 0.0
    assert gdmm["relaxed_gap"] >= 0.0


def test_the_page_on_the_optimizer_runs():
    page = ROOT / "docs" / "large_outputs.md"
    above = page.read_text(encoding="utf-8").partition("\n## Data\n")[0]
    blocks = re.findall(r"```python\n(.*?)```", above, re.DOTALL)
    assert len(blocks) == 7
    names = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    assert names["report"].visited / names["report"].queries < 500
    assert 0.0 <= names["certificate"].gap <= 0.1
    assert names["certificate"].violation <= 0.05
    assert names["dual"].steps > 1
    assert bool((names["model"].pairwise >= 0.0).all())
    assert names["optim"].violation < 0.01
    assert names["decodings"]["search"].exact
    messages, search = (names["decodings"][name] for name in ("messages", "search"))
    assert (messages.value <= search.value + 1e-6).all()
