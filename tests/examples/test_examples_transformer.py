"""The example of taggers on a pretrained encoder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples/transformer.py"

for package in ("transformers", "accelerate", "all_minilm_l6_v2"):
    pytest.importorskip(package)


def test_trained_solved_calibrated_saved_and_read_in_another_process(tmp_path, run_script, monkeypatch):
    import transformers.trainer

    # transformers takes any folder of this name for the package
    monkeypatch.setattr(transformers.trainer, "is_datasets_available", lambda: False)
    data = Path(os.environ.get("TORCHSSVM_DATA", "")) / "conll2000/train.txt.gz"
    if not data.exists():
        pytest.skip("CoNLL-2000 is not in the folder that TORCHSSVM_DATA names")
    few = ("--data", data, "--sentences", "80", "--out", tmp_path)
    printed = run_script(SCRIPT, *few, "--epochs", "1")
    assert "the new head is kept" in printed
    assert float(printed.split("F1 of held-out sentences ")[1]) > 0.6
    assert (tmp_path / "model.safetensors").stat().st_size > 1_000_000
    text = "Rockwell said the agreement calls for 200 parts."
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--text", text]
    assert "the agreement" in subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
