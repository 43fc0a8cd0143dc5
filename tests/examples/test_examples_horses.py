"""The examples and the benchmark of horses, on a few small images."""

import json
from pathlib import Path

import numpy as np
import pytest

from torchssvm import RegularizationPath

ROOT = Path(__file__).parents[2]

pytest.importorskip("lightning")
pytest.importorskip("matplotlib")
pytest.importorskip("maxflow")
imsave = pytest.importorskip("skimage.io").imsave

SMALL = ("--num-train", "8")
FEW = (*SMALL, "--held-out", "3", "--max-passes", "40", "--batch-size", "2")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Brown ellipses on green, with much noise."""
    root = tmp_path_factory.mktemp("data")
    for seed in range(11):
        random = np.random.default_rng(seed)
        y, x = np.mgrid[:40, :56]
        mask = ((y - 20) / 12) ** 2 + ((x - 28 + seed) / 14) ** 2 < 1
        image = np.where(mask[:, :, None], [150, 90, 40], [60, 140, 70]) + random.normal(0, 40, (40, 56, 3))
        for folder, array in (("rgb", image.clip(0, 255)), ("figure_ground", 255 * mask)):
            place = root / "weizmann_horse" / folder
            place.mkdir(parents=True, exist_ok=True)
            imsave(place / f"horse{seed:03}.png", array.astype(np.uint8), check_contrast=False)
    return root


@pytest.fixture
def run_here(run_script, monkeypatch, images):
    """Run a script on these images, and give back what it printed."""
    monkeypatch.setenv("TORCHSSVM_DATA", str(images))
    monkeypatch.setenv("XDG_CACHE_HOME", str(images / "cache"))
    return lambda folder, script, *flags: run_script(ROOT / folder / script, *flags)


def report_of(folder, out):
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], abs=1e-12)
    assert report["initial_gap"] == pytest.approx(1.0, abs=1e-6)
    assert report["n"] == 8
    assert report["stopped_because"] in out
    for name, found in report["test_images"].items():
        for score in ("iou", "mean_iou", "accuracy", "balanced_accuracy"):
            assert 0.0 <= found[score] <= 1.0
        assert f"\n{name:38}  {found['iou']:8.4f}" in out
    for picture in ("convergence.png", "foregrounds.png"):
        assert (folder / picture).stat().st_size > 10_000
    return report


def test_graph_cuts_beside_superpixels_alone_and_a_network(run_here, tmp_path):
    flags = ("--hold-out", "3", "100", "--cnn", "1", "--gap", "0.1", "--report", str(tmp_path))
    out = run_here("examples", "horses.py", *FEW, *flags)
    report = report_of(tmp_path, out)
    found = report["test_images"]
    assert found.keys() == {"U-Net on pixels", "superpixels alone", "graph cuts"}
    assert report["gap"] <= 0.1 * report["initial_gap"]
    assert report["num_weights"] == 2069
    for name in ("superpixels alone", "graph cuts"):
        held_out = found[name]["held_out_iou"]
        assert held_out.keys() == {"3", "100"}
        assert found[name]["lam"] == float(max(held_out, key=held_out.__getitem__))
        assert found[name]["share_of_initial_gap"] <= 0.1
        assert found[name]["iou"] > 0.5
    assert report["lam"] == found["graph cuts"]["lam"]


def test_lam_may_be_known(run_here, tmp_path):
    flags = ("--lam", "10", "--unary-lam", "3", "--gap", "0.2", "--direction", "pairwise", "--cache")
    out = run_here("examples", "horses.py", *FEW, *flags, "--report", str(tmp_path))
    report = report_of(tmp_path, out)
    assert (report["lam"], report["direction"], report["cache"]) == (10.0, "pairwise", True)
    assert report["test_images"]["superpixels alone"]["lam"] == 3.0
    assert report["test_images"]["superpixels alone"]["held_out_iou"] == {}
    assert "held-out images" not in out


def test_a_network_below_the_graph_cuts(run_here, tmp_path):
    flags = ("--hold-out", "10", "3", "--epochs", "2", "--joint", "--rounds", "1", "--gap", "0.1", "--segments", "40")
    out = run_here("examples", "horses_cnn.py", *FEW, *flags, "--report", str(tmp_path))
    report = report_of(tmp_path, out)
    found = report["test_images"]
    assert list(found) == ["U-Net on pixels", "superpixels alone", "graph cuts", "graph cuts, joint"]
    assert report["num_weights"] == 33 + 7
    assert report["gap"] <= 0.1 * report["initial_gap"]
    for name in ("superpixels alone", "graph cuts"):
        held_out = found[name]["held_out_iou"]
        assert found[name]["lam"] == float(max(held_out, key=held_out.__getitem__))
    seconds = [one["cpu_seconds"] for one in found.values()]
    assert seconds[0] < min(seconds[1:])
    assert seconds[3] > seconds[0]


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--held-out", "8"), "--held-out 8 must be less than --num-train 8"),
        (("--hold-out", "0"), "--hold-out: must be positive"),
        (("--num-train", "50"), "num_train=50"),
        (("--gap", "0.1"), "unrecognized arguments: --gap 0.1"),
    ],
)
def test_bad_flags_are_refused(run_here, capsys, flags, message):
    taken = slice(2, 3) if "--gap" in flags else slice(3) if "--num-train" in flags else slice(2)
    for script in ("horses.py", "horses_cnn.py", "horses_path.py")[taken]:
        with pytest.raises(SystemExit) as stop:
            run_here("examples", script, *SMALL, *flags)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_the_benchmark(run_here, tmp_path):
    flags = (*SMALL, "--seeds", "2", "--gap", "0.05", "--solvers", "uniform FW", "gap pairwise + cache")
    out = run_here("benchmarks", "horses.py", "--out", str(tmp_path), *flags)
    files = sorted(tmp_path.glob("*.json"))
    assert [file.stem for file in files] == [
        f"10 {name} {seed}" for name in ("gap pairwise + cache", "uniform FW") for seed in (0, 1)
    ]
    for file in files:
        checks = json.loads(file.read_text(encoding="utf-8"))["checks"]
        assert checks[0]["share"] == 1.0
        assert checks[-1]["share"] <= 0.05
        assert all(check["passes"] == pytest.approx(check["oracle_calls"] / 8) for check in checks)
        if "cache" in file.stem:
            assert checks[-1]["visits"] > checks[-1]["passes"] - len(checks)
    text = (tmp_path / "table 10.md").read_text(encoding="utf-8")
    assert text.strip() in out
    assert len(text.splitlines()) == 4
    assert (tmp_path / "horses 10.png").stat().st_size > 5_000
    before = {file: file.stat().st_mtime_ns for file in files}
    run_here("benchmarks", "horses.py", "--out", str(tmp_path), *flags)
    assert {file: file.stat().st_mtime_ns for file in files} == before


def test_the_path(run_here, tmp_path):
    flags = (*SMALL, "--epsilon", "0.3", "--lam-min", "30", "--max-passes", "300")
    out = run_here("examples", "horses_path.py", *flags, "--report", str(tmp_path))
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    rows = report["breakpoints"]
    assert len(rows) > 3
    assert all(row["gap"] <= 0.3 for row in rows)
    assert all(row["passes"] == pytest.approx(row["oracle_calls"] / 8) for row in rows)
    assert report["lowest"] <= 30
    assert f"{len(rows)} breakpoints" in out
    assert f"{max(row['iou'] for row in report['test_iou']):.4f}" in out
    path = RegularizationPath.load(tmp_path / "path.pt")
    assert path.breakpoints.tolist() == [row["lam"] for row in rows]
    assert bool((path.weights(40.0)["pairwise"] >= 0).all())
    assert (tmp_path / "path.png").stat().st_size > 10_000
