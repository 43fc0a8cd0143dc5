"""The example and the benchmark of poses, on small images of the same form."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

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


SMALL = ("--canvas", "32", "--widths", "8", "16", "--types", "2", "--pretraining", "1", "--lam", "0.5", "--gap", "0.2")


@pytest.fixture
def run_here(run_script, people):
    """Run a script on these people, and give back what it printed."""
    return lambda script, *flags: run_script(script, "--data", people, *flags)


def report_of(folder):
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], abs=1e-12)
    assert report["n"] == 100
    assert report["num_weights"] == 26 + 50 + 50 * 2 * 4
    assert (folder / "convergence.png").stat().st_size > 10_000
    return report


def test_joint_training_and_a_second_run(run_here, tmp_path):
    """Network, head, joint training, head again; then lam from held-out images on the network that was kept."""
    folder = tmp_path / "new" / "folder"
    out = run_here(ROOT / "examples" / "pose.py", *SMALL, "--joint", "--rounds", "1", "--report", str(folder))
    report = report_of(folder)
    assert report["gap"] <= 0.2
    assert report["stopped_because"] in out
    for name in ("network", "structured", "longer_network", "longer_structured", "joint_network", "joint_structured"):
        assert 0.0 <= report[f"{name}_detected_10"] <= report[f"{name}_detected_20"] <= 1.0
        assert 0.0 < report[f"{name}_median_error"] < 46.0
    share = report["structured_mean_error"] / report["network_mean_error"]
    assert report["relative_reduction"] == pytest.approx(1 - share)
    for which in ("frozen", "longer"):
        assert report[f"{which}_gap"] <= 0.2
        assert f"primal {report[f'{which}_primal']:.6f}" in out
    assert report["longer_primal"] not in (report["frozen_primal"], report["primal"])
    assert "(trained jointly)" in report["task"]
    assert report["cache_hits"] > 0

    apart, together = (
        torch.load(folder / name, weights_only=True) for name in ("network-200-800.pt", "network-joint.pt")
    )
    assert any(not torch.equal(together[name], weight) for name, weight in apart["network"].items())
    kept = (folder / "network-200-800.pt").stat().st_mtime_ns
    (flags := list(SMALL))[flags.index("--lam") : flags.index("--lam") + 2] = ["--hold-out", "2", "0.5"]
    out = run_here(ROOT / "examples" / "pose.py", *flags, "--accelerator", "cpu", "--report", str(folder))
    again = report_of(folder)
    assert (folder / "network-200-800.pt").stat().st_mtime_ns == kept
    assert again["network_mean_error"] == report["network_mean_error"]  # joint training has not touched it
    assert again["lam"] == float(min(again["held_out_error"], key=again["held_out_error"].__getitem__))
    assert again["held_out_error"].keys() == {"2", "0.5"}
    assert "joint_mean_error" not in again


def test_the_network_that_goes_on(people, tmp_path, monkeypatch):
    """It begins from the same network, fresh or kept, and leaves it alone."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import pose

    args = pose.parse([*SMALL, "--data", str(people), "--report", str(tmp_path)])
    its = pose.people(args)
    made = [pose.pretrained(args, its.head.structure, its.train, range(200, 800))[0] for _ in ("fresh", "kept")]
    held = {name: weight.clone() for name, weight in made[0].state_dict().items()}
    longer = [pose.trained_longer(args, network, its.train, range(20), 1, pose.slowly) for network in made]
    for network in (*made, *longer):
        assert not any(part.training for part in network.modules())
    for network in made:
        assert all(torch.equal(network.state_dict()[name], weight) for name, weight in held.items())
    weights = [torch.cat([p.flatten() for p in network.parameters()]) for network in longer]
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], torch.cat([p.flatten() for p in made[0].parameters()]))


@pytest.mark.parametrize(
    "given, message",
    [
        (("--lam", "0.1", "--hold-out", "0.1"), "--lam and --hold-out exclude each other"),
        (("--canvas", "30"), "--canvas 30 must be a multiple of 4"),
        (("--canvas", "16", "--widths", "8", "8", "8", "8"), "large enough for --widths"),
        (("--accelerator", "tpu"), "--accelerator: must be cpu, cuda"),
        (("--types", "0"), "--types: must be at least 1"),
    ],
)
def test_bad_flags_are_refused(given, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import pose

    with pytest.raises(SystemExit) as stop:
        pose.parse(list(given))
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_the_benchmark(run_here, tmp_path):
    flags = (
        "--canvas",
        "32",
        "--widths",
        "8",
        "16",
        "--types",
        "2",
        "--gap",
        "0.5",
        "0.3",
        "--pretraining",
        "1",
        "--images",
        "10",
    )
    flags = ("--out", str(tmp_path), "--network", str(tmp_path / "network"), *flags, "--lam", "1", "--max-seconds", "2")
    out = run_here(ROOT / "benchmarks" / "pose.py", *flags)
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert found["images"] == 10
    assert [one["threads"] for one in found["oracle"]] == [1, 2]
    assert all(one["ms_per_image"] > 0 for one in found["oracle"])
    assert len(found["solvers"]) >= 4
    for solver in found["solvers"]:
        for gap, reached in solver["reached"].items():
            assert reached is None or (reached["gap"] <= float(gap) and reached["passes"] >= 1)
    assert any(solver["reached"]["0.5"] is not None for solver in found["solvers"])
    assert (tmp_path / "table.md").read_text(encoding="utf-8").strip() in out
