"""The OCR examples, on few passes."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = {
    *("task", "n", "num_weights", "lam", "primal", "dual", "gap", "oracle_calls", "passes", "seconds"),
    *("train_loss", "test_loss", "stopped_because", "seed", "device", "versions"),
    *("test_token_error", "test_example_error", "history"),
}

pytest.importorskip("lightning")
pytest.importorskip("jsonargparse")
pytest.importorskip("matplotlib")


def start(script, *flags):
    """An example as users run it, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, str(EXAMPLES / f"{script}.py"), *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def checked(folder, output):
    """The report of a run, after the checks that every report must pass."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report.keys() >= KEYS
    for name in ("primal", "dual", "gap", "seconds", "train_loss", "test_loss", "test_token_error"):
        assert math.isfinite(report[name]), name
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], abs=1e-12)
    assert report["passes"] == pytest.approx(report["oracle_calls"] / report["n"])
    assert report["n"] == 626
    assert report["device"] == "cpu"
    last = report["history"][-1]
    assert all(last[name] == report[name] for name in ("primal", "dual", "gap", "passes"))
    # The loss is each word's share of wrong letters, and a word of at most 14 letters with an error has one or more.
    assert report["test_loss"] <= report["test_example_error"] <= 14 * report["test_loss"]
    assert (folder / "convergence.png").stat().st_size > 10_000
    for name in ("gap", "stopped because", "test token error"):  # the table
        assert f"\n{name} " in output
    assert report["stopped_because"] in output
    return report


@pytest.fixture
def run_here(run_script):
    """Run an example in this process; its report."""

    def run_here(script, folder, *flags):
        return checked(folder, run_script(EXAMPLES / f"{script}.py", "--report", folder, *flags))

    return run_here


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ocr_loop") / "new" / "folder"
    done = start("ocr_loop", "--report", str(folder), "--lam", "0.01", "--gap", "0.3", "--seed", "5")
    assert done.returncode == 0, done.stderr[-3000:]
    return checked(folder, done.stdout)


def test_the_loop_stops_on_the_certified_gap(loop):
    assert loop["gap"] <= 0.3
    assert all(entry["gap"] > 0.3 for entry in loop["history"][:-1])
    assert loop["stopped_because"].startswith("certified gap")
    assert loop["num_weights"] == 4082
    assert (loop["lam"], loop["seed"]) == (0.01, 5)
    assert loop["test_token_error"] < 0.5


def test_lightning_proves_the_same_optimum(loop, tmp_path, run_here):
    flags = ("--lam", "0.01", "--gap", "0.3", "--seed", "6", "--batch_size", "16")
    other = run_here("ocr", tmp_path, *flags)
    assert other["gap"] <= 0.3
    assert other["stopped_because"].startswith("certified gap")
    assert max(loop["dual"], other["dual"]) <= min(loop["primal"], other["primal"])


def test_the_loop_goes_on_from_its_checkpoint(tmp_path, run_here):
    flags = ("--lam", "0.01", "--gap")
    whole = run_here("ocr_loop", tmp_path / "whole", *flags, "0.15")
    first = run_here("ocr_loop", tmp_path / "parts", *flags, "0.3")
    second = run_here("ocr_loop", tmp_path / "parts", *flags, "0.15", "--resume", "true")
    assert len(first["history"]) < len(second["history"]) == len(whole["history"])
    for a, b in zip(second["history"], whole["history"], strict=True):
        assert [a[name] for name in ("primal", "dual", "passes")] == [b[name] for name in ("primal", "dual", "passes")]
    assert second["test_loss"] == whole["test_loss"]


@pytest.mark.parametrize("joint", [0, 1])
def test_chain_on_a_cnn(joint, tmp_path, run_here):
    """On a frozen CNN, or after joint training."""
    flags = ("--pretraining", "1", "--joint", str(joint), "--max_passes", "3", "--gap", "1e-5")
    report = run_here("ocr_cnn", tmp_path, *flags)
    assert report["stopped_because"].startswith("max_passes=3 reached")
    assert report["num_weights"] == 64 * 26 + 26 * 26 + 3 * 26
    assert report["test_token_error"] < 0.7  # guessing: 0.96
    assert ("jointly" in report["task"]) == bool(joint)


def test_the_path(tmp_path, run_script):
    from torchssvm.path import RegularizationPath

    flags = ("--epsilon", "0.6", "--lam_min", "1", "--max_passes", "100", "--report", tmp_path)
    out = run_script(EXAMPLES / "reg_path.py", *flags)
    path = RegularizationPath.load(tmp_path / "path.pt")
    assert path.lowest <= 1.0
    assert all(point.gap <= 0.6 for point in path.points)
    assert f"{len(path.points)} breakpoints; smallest letter error" in out
    assert (tmp_path / "path.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "script, flags, name",
    [
        ("ocr", ("--lam", "0"), "lam"),
        ("ocr_loop", ("--gap", "0"), "gap"),
        ("ocr_cnn", ("--joint", "-1"), "joint"),
        ("alignment", ("--gap", "x"), "gap"),
        ("conll", ("--min_count", "0"), "min_count"),
        ("large_chain", ("--labels", "0"), "labels"),
        ("horses", ("--num_train", "0"), "num_train"),
        ("horses_path", ("--epsilon", "0"), "epsilon"),
        ("pose", ("--types", "0"), "types"),
    ],
)
def test_bad_flags_are_refused(script, flags, name, run_script, capsys):
    with pytest.raises(SystemExit) as stop:
        run_script(EXAMPLES / f"{script}.py", *flags)
    assert stop.value.code == 2
    assert name in capsys.readouterr().err


def test_routes_by_spo_are_shorter_than_by_least_squares(run_script, tmp_path):
    out = run_script(EXAMPLES / "decisions.py", "--size", 4, "--count", 200, "--gap", 0.1, "--report", tmp_path)
    squares, spo = (float(share) for share in re.findall(r"([0-9.]+) %", out.partition("mean regret")[2]))
    assert spo < squares
    assert (tmp_path / "routes.png").stat().st_size > 10_000
