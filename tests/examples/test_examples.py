"""The examples, as users run them: each in a process of its own, on few passes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchssvm import (
    Away,
    CacheOracle,
    Corrective,
    FrankWolfe,
    Hybrid,
    Labelings,
    MaxOracle,
    MeanParts,
    Pairwise,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = {
    *("task", "n", "num_weights", "lam", "primal", "dual", "gap", "oracle_calls", "passes", "seconds"),
    *("train_loss", "test_loss", "stopped_because", "seed", "device", "versions"),
    *("letter_error", "word_error", "history"),
}

pytest.importorskip("lightning")
pytest.importorskip("matplotlib")


def start(script, *flags):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, str(EXAMPLES / f"{script}.py"), *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def run(script, folder, *flags):
    """The report of a run, after the checks that every report must pass."""
    done = start(script, "--report", str(folder), *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    return checked(folder, done.stdout)


def checked(folder, output):
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report.keys() >= KEYS
    for name in ("primal", "dual", "gap", "seconds", "train_loss", "test_loss", "letter_error", "word_error"):
        assert math.isfinite(report[name]), name
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], abs=1e-12)
    assert report["passes"] == pytest.approx(report["oracle_calls"] / report["n"])
    assert report["n"] == 626
    assert report["device"] == "cpu"
    last = report["history"][-1]
    assert all(last[name] == report[name] for name in ("primal", "dual", "gap", "passes"))
    # The loss is each word's share of wrong letters, and a word of at most 14 letters with an error has one or more.
    assert report["test_loss"] <= report["word_error"] <= 14 * report["test_loss"]
    assert (folder / "convergence.png").stat().st_size > 10_000
    for name in ("gap", "stopped because", "letter error"):  # the table
        assert f"\n{name} " in output
    assert report["stopped_because"] in output
    return report


@pytest.fixture
def run_here(run_script):
    """As ``run``, in this process."""

    def run_here(script, folder, *flags):
        return checked(folder, run_script(EXAMPLES / f"{script}.py", "--report", folder, *flags))

    return run_here


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ocr_loop") / "new" / "folder"
    return run("ocr_loop", folder, "--lam", "0.01", "--gap", "0.3", "--seed", "5")


def test_the_loop_stops_on_the_certified_gap(loop):
    assert loop["gap"] <= 0.3
    assert all(entry["gap"] > 0.3 for entry in loop["history"][:-1])
    assert loop["stopped_because"].startswith("certified gap")
    assert loop["num_weights"] == 4082
    assert (loop["lam"], loop["seed"]) == (0.01, 5)
    assert loop["letter_error"] < 0.5


def test_lightning_proves_the_same_optimum(loop, tmp_path):
    other = run("ocr", tmp_path, "--lam", "0.01", "--gap", "0.3", "--seed", "6", "--batch-size", "16")
    assert other["gap"] <= 0.3
    assert other["stopped_because"].startswith("certified gap")
    assert other["batch_size"] == 16
    assert max(loop["dual"], other["dual"]) <= min(loop["primal"], other["primal"])


def test_the_loop_is_repeatable_and_says_that_passes_ran_out(tmp_path, run_here):
    flags = ("--max-passes", "2", "--gap", "0.001")
    first, second = run("ocr_loop", tmp_path / "1", *flags), run_here("ocr_loop", tmp_path / "2", *flags)
    assert first["gap"] > 0.001
    assert first["stopped_because"].startswith("2 passes")
    assert 2 <= first["passes"] < 4
    assert first["lam"] == 1 / 626
    assert [first[k] for k in ("primal", "dual", "test_loss")] == [second[k] for k in ("primal", "dual", "test_loss")]


def test_the_loop_goes_on_from_its_checkpoint(tmp_path, run_here):
    flags = ("--lam", "0.01", "--gap")
    whole = run_here("ocr_loop", tmp_path / "whole", *flags, "0.15")
    first = run_here("ocr_loop", tmp_path / "parts", *flags, "0.3")
    second = run_here("ocr_loop", tmp_path / "parts", *flags, "0.15", "--resume")
    assert len(first["history"]) < len(second["history"]) == len(whole["history"])
    for a, b in zip(second["history"], whole["history"], strict=True):
        assert [a[name] for name in ("primal", "dual", "passes")] == [b[name] for name in ("primal", "dual", "passes")]
    assert second["test_loss"] == whole["test_loss"]


@pytest.mark.parametrize("script", ["ocr_loop", "ocr"])
def test_direction_cache_and_order_are_flags(script, tmp_path, run_here, loop):
    flags = ("--direction", "corrective", "--cache", "--order", "permutation")
    report = run_here(script, tmp_path, *flags, "--lam", "0.01", "--max-passes", "4", "--gap", "1e-5")
    assert (report["direction"], report["cache"], report["order"]) == ("corrective", True, "permutation")
    assert report["cache_hits"] > 0
    assert report["dual"] <= loop["primal"]
    assert report["primal"] >= loop["dual"]
    assert (loop["direction"], loop["cache"], loop["order"], loop["cache_hits"]) == ("fw", False, "gap", 0)


@pytest.mark.parametrize(
    "flags, direction, oracle, storage",
    [
        ((), FrankWolfe, MaxOracle, MeanParts),
        (("--cache",), FrankWolfe, CacheOracle, Labelings),
        (("--direction", "pairwise"), Pairwise, MaxOracle, Labelings),
        (("--direction", "away"), Away, MaxOracle, Labelings),
        (("--direction", "hybrid", "--cache"), Hybrid, CacheOracle, Labelings),
        (("--direction", "corrective"), Corrective, MaxOracle, Labelings),
    ],
)
def test_the_storage_is_the_one_that_direction_and_oracle_need(flags, direction, oracle, storage, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import common

    args = common.parse(common.add_rules(common.parser("", report="runs/test")), list(flags))
    assert [type(rule) for rule in common.rules(args)] == [direction, oracle, storage]


def test_chain_on_a_cnn(tmp_path):
    """With joint training before the CNN is frozen: everything that is done without it is done here too."""
    flags = ("--pretraining", "1", "--joint", "--rounds", "1")
    report = run("ocr_cnn", tmp_path, *flags, "--max-passes", "3", "--gap", "1e-5")
    assert report["stopped_because"].startswith("max_passes=3 reached")
    assert report["num_weights"] == 64 * 26 + 26 * 26 + 3 * 26
    assert report["letter_error"] < 0.7  # guessing: 0.96
    assert "jointly" in report["task"]


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--lam", "0"), "--lam: must be positive and finite, not 0"),
        (("--lam", "nan"), "--lam: must be positive"),
        (("--gap", "-1"), "--gap: must be positive"),
        (("--max-passes", "inf"), "--max-passes: must be positive and finite"),
        (("--batch-size", "0"), "--batch-size: must be at least 1"),
        (("--batch-size", "2.5"), "--batch-size: invalid count value"),
        (("--seed", "-1"), "--seed: must lie between"),
        (("--device", "gpu"), "--device: must be cpu, cuda"),
        (("--device", "cuda:99"), "CUDA devices, so no cuda:99"),
        (("--size", "medium"), "--size: invalid choice"),
        (("--report", __file__), "is not a folder"),
        (("--direction", "steepest"), "--direction: invalid choice"),
        (("--order", "alphabetical"), "--order: invalid choice"),
    ],
)
def test_bad_flags_are_refused(flags, message, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import common

    with pytest.raises(SystemExit) as stop:
        common.parse(common.add_rules(common.parser("", report="runs/test")), list(flags))
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_scripts_refuse_bad_flags():
    done = start("ocr_loop", "--gap", "0")
    assert done.returncode == 2
    assert "--gap: must be positive" in done.stderr
    assert "Traceback" not in done.stderr
