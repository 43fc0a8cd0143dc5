"""The example and the benchmark of poses, on small images of the same form."""

from pathlib import Path

import numpy as np
import pytest
import torch
from cases.benchmark_parts import measured
from cases.example_files import report_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Image = pytest.importorskip("PIL.Image")
pytest.importorskip("lightning")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """1000 images of 32 x 32 pixels: the same body somewhere, every joint a spot of its own colour."""
    folder = tmp_path_factory.mktemp("data") / "lspet"
    (folder / "images").mkdir(parents=True)
    random = np.random.default_rng(0)
    body, colours = 4 + 16 * random.random((14, 2)), random.integers(0, 256, (14, 3))
    joints = (body + 8 * random.random((1000, 1, 2))).astype(np.float32)
    for number, its in enumerate(joints.astype(int)):
        pixels = np.full((32, 32, 3), 128, np.uint8)
        for colour, (x, y) in zip(colours, its, strict=True):
            pixels[y - 1 : y + 2, x - 1 : x + 2] = colour
        Image.fromarray(pixels).save(folder / "images" / f"im{number:05d}.jpg", quality=90)
    np.savez(folder / "joints_1000.npz", image=np.arange(1000), joints=joints)
    return folder.parent


SMALL = ("--canvas", "32", "--widths", "[8,16]", "--types", "2", "--epochs", "1", "--lam", "0.5", "--gap", "0.2")


def test_joint_training_and_a_second_run(run_script, people, tmp_path):
    """Network, joint training, head; then a head on the network that was kept."""
    first, second = tmp_path / "new" / "folder", tmp_path / "second"
    script, flags = ROOT / "examples" / "pose.py", (*SMALL, "--data", people)
    out = run_script(script, *flags, "--joint", "1", "--report", first)
    wanted = {"n": 100, "num_weights": 26 + 50 + 50 * 2 * 4}
    report = report_of(first, **wanted)
    assert report["stopped_because"] in out
    assert "(network trained jointly)" in report["task"]
    assert out.count("PoseScores(") == 2
    out = run_script(script, *flags, "--network", first / "network.pt", "--report", second)
    assert report_of(second, **wanted)["task"] == "poses, a tree of springs"
    kept, again = (torch.load(folder / "network.pt", weights_only=True) for folder in (first, second))
    assert all(torch.equal(weight, again[name]) for name, weight in kept.items())


def test_the_benchmark(people):
    options = {"data": str(people), "max_seconds": 120.0, "solvers": ["gap FW", "gap corrective + cache"]}
    _, results = measured("pose", options, quick=True)
    assert results["images"] == 10
    assert list(results["oracle"]) == ["1", "2"]
    assert all(one["ms_per_image"] > 0 for one in results["oracle"].values())
    assert list(results["runs"]) == options["solvers"]
    for (one,) in results["runs"].values():
        assert one["checks"][-1]["gap"] <= 0.3
        assert one["checks"][-1]["passes"] >= 1
