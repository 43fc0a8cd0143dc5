"""The command line, from a shell."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("jsonargparse")

from torchssvm.cli import main
from torchssvm.lightning import StructuredSVM

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ocr.yaml"


def torchssvm(*args: str, cwd: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = Path(sys.executable).with_name("torchssvm")
    start = [str(command)] if command.exists() else [sys.executable, "-m", "torchssvm.cli"]
    result = subprocess.run([*start, *args], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The example, cut short."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    folder = tmp_path_factory.mktemp("cli")
    output = torchssvm("fit", f"--config={EXAMPLE}", "--trainer.max_epochs=5", "--model.lam=0.02", cwd=folder)
    (folder / "output.txt").write_text(output)
    return folder


def test_fit_shows_a_table_and_writes_the_report(folder):
    output = (folder / "output.txt").read_text()
    assert re.search("stopped because +max_epochs=5 reached, certified gap", output)
    assert "oracle_calls: " not in output  # Lightning's own bar wrapped its figures
    report = json.loads((folder / "runs" / "ocr" / "report.json").read_text())
    assert report["task"] == "OCR-small"
    assert report["n"] == 626
    assert report["num_weights"] == 4082
    assert report["lam"] == 0.02
    assert report["seed"] == 0
    assert report["primal"] - report["dual"] == pytest.approx(report["gap"])
    assert 0.0 < report["gap"] < 0.7  # 1 at zero weights; some 0.5, by the ties of the corrective steps
    assert 0.0 < report["train_loss"] < report["test_loss"] < 0.4
    assert report["test_token_error"] > 0.0
    assert (folder / "runs" / "ocr" / "convergence.png").read_bytes().startswith(b"\x89PNG")


def test_fit_writes_logs_and_a_checkpoint(folder):
    with next((folder / "runs" / "ocr" / "csv").rglob("metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    gaps, estimates = ([float(row[name]) for row in rows if row[name]] for name in ("gap", "gap_estimate"))
    assert len(gaps) == 1  # of the pass after the last epoch
    assert len(estimates) == 6
    assert all(map(math.isfinite, gaps + estimates))
    assert next((folder / "runs" / "ocr" / "tensorboard").rglob("events.*")).stat().st_size > 0
    content = torch.load(folder / "runs" / "ocr" / "checkpoints" / "last.ckpt", weights_only=True)
    assert content["hyper_parameters"]["lam"] == 0.02
    model = StructuredSVM.load_from_checkpoint(folder / "runs" / "ocr" / "checkpoints" / "last.ckpt")
    assert torch.equal(model.head.emission, content["state_dict"]["head.emission"])


def test_validate_and_predict(folder, monkeypatch, capsys):
    """In this process: the command itself has been started by now."""
    monkeypatch.chdir(folder)
    checkpoint = "--ckpt_path=runs/ocr/checkpoints/last.ckpt"
    main(["validate", f"--config={EXAMPLE}", checkpoint, "--weights_only=true"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "val_loss" in line]
    report = json.loads((folder / "runs" / "ocr" / "report.json").read_text())
    assert float(line.split("│")[2]) == pytest.approx(report["test_loss"], abs=1e-6)
    main(["predict", f"--config={EXAMPLE}", checkpoint])
    lines = (folder / "runs" / "ocr" / "predictions.jsonl").read_text().splitlines()
    assert len(lines) == 6251
    first = json.loads(lines[0])
    assert first["index"] == 0
    assert all(0 <= label < 26 for label in first["labeling"])


def test_a_joint_model_from_a_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "joint.yaml").write_text(
        """
model:
  head: {class_path: torchssvm.LinearChain, init_args: {in_features: 16, num_states: 26}}
  lam: 0.1
  features: {class_path: torchssvm.models.LetterFeatures, init_args: {width: 16}}
  joint: {epochs: 1, lr: 0.001}
  solver: {storage: {class_path: torchssvm.MeanParts}}
trainer: {accelerator: cpu, max_epochs: 2, limit_train_batches: 3, limit_val_batches: 1, logger: false}
"""
    )
    main(["fit", "--config=joint.yaml"])
    content = torch.load(next(tmp_path.rglob("*.ckpt")), weights_only=True)
    assert len(content["optimizer_states"]) == 2
    assert content["torchssvm_joint"]["weights"]


RULES = """
model:
  head: {class_path: torchssvm.LinearChain, init_args: {in_features: 128, num_states: 26}}
  lam: 0.1
  solver:
    direction: {class_path: torchssvm.Corrective, init_args: {steps: 7}}
    oracle: {class_path: torchssvm.CacheOracle, init_args: {factor: 0.5}}
    storage: {class_path: torchssvm.Labelings, init_args: {capacity: 5}}
    line_search: torchssvm.steps.ShortStep
trainer: {accelerator: cpu, max_epochs: 1, limit_train_batches: 3, limit_val_batches: 1, logger: false}
"""


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """Runs ``torchssvm fit`` on a configuration with rules; returns the model that was trained."""
    trained = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(StructuredSVM, "on_train_end", lambda self: trained.append(self), raising=False)
    (tmp_path / "rules.yaml").write_text(RULES)

    def fit(*flags: str) -> StructuredSVM:
        main(["fit", "--config=rules.yaml", *flags])
        return trained[-1]

    return fit


def test_direction_oracle_and_storage_from_a_configuration(rules, tmp_path):
    model = rules()
    assert repr(model.rules.direction) == "Corrective(steps=7, tolerance=0.01)"
    assert repr(model.rules.oracle) == "CacheOracle(factor=0.5, floor=0.01)"
    assert model.dual.storage.capacity == 5
    assert repr(model.rules.line_search) == "ShortStep()"
    content = torch.load(next(tmp_path.rglob("*.ckpt")), weights_only=True)
    assert content["optimizer_states"][0]["dual"]["storage"]["sets"]["capacity"] == 5
