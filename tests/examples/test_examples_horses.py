"""The examples and the benchmark of horses, on a few small images."""

import re
from pathlib import Path

import numpy as np
import pytest
from cases.benchmark_parts import measured
from cases.example_files import report_of

from torchssvm.path import RegularizationPath

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

pytest.importorskip("lightning")
pytest.importorskip("matplotlib")
pytest.importorskip("maxflow")
imsave = pytest.importorskip("skimage.io").imsave

SMALL = ("--num_train", "8")
FEW = (*SMALL, "--max_passes", "40", "--batch_size", "2")


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


@pytest.mark.parametrize("edges", ["true", "false"])
def test_graph_cuts_and_superpixels_alone(run_here, tmp_path, edges):
    out = run_here("examples", "horses.py", *FEW, "--edges", edges, "--gap", "0.1", "--report", str(tmp_path))
    report = report_of(tmp_path, n=8)
    assert report["gap"] <= 0.1
    assert report["num_weights"] == 2069  # those of the edges stay 0 where there are none
    assert float(re.search(r"pixels: SegmentationScores\(iou=([0-9.]+)", out)[1]) > 0.5


def test_a_network_below_the_graph_cuts(run_here, tmp_path):
    flags = ("--lam", "10", "--epochs", "2", "--joint", "1", "--gap", "0.1", "--segments", "40")
    out = run_here("examples", "horses_cnn.py", *FEW, *flags, "--report", str(tmp_path))
    report = report_of(tmp_path, n=8)
    assert report["num_weights"] == 33 + 7
    assert report["gap"] <= 0.1
    assert "jointly" in report["task"]
    assert out.count("SegmentationScores(iou=") == 2


def test_the_benchmark(run_here):
    options = {"num_train": 8, "seeds": 2, "gap": 0.05, "solvers": ["uniform FW", "gap pairwise + cache"]}
    _, results = measured("horses", options)
    assert {name: len(several) for name, several in results["runs"].items()} == dict.fromkeys(options["solvers"], 2)
    for name, several in results["runs"].items():
        for one in several:
            checks = one["checks"]
            assert checks[0]["gap"] == pytest.approx(1.0, abs=1e-6)
            assert checks[-1]["gap"] <= 0.05
            assert all(check["passes"] == pytest.approx(check["oracle_calls"] / 8) for check in checks)
            if "cache" in name:
                assert checks[-1]["visits"] > checks[-1]["passes"] - len(checks)


def test_the_path(run_here, tmp_path):
    flags = (*SMALL, "--epsilon", "0.3", "--lam_min", "30", "--max_passes", "300")
    out = run_here("examples", "horses_path.py", *flags, "--report", str(tmp_path))
    path = RegularizationPath.load(tmp_path / "path.pt")
    assert len(path.points) > 3
    assert all(point.gap <= 0.3 for point in path.points)
    assert path.lowest <= 30
    assert f"{len(path.points)} breakpoints" in out
    assert bool((path.weights(40.0)["pairwise"] >= 0).all())
    assert (tmp_path / "path.png").stat().st_size > 10_000
