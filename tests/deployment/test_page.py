"""The code of the page on deployment runs as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/deployment.md"


def test_the_page_on_deployment_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime", "safetensors"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(names["few"]) == 3
    assert all(word.isalpha() for word in names["words"])
    assert names["tags"] == [["DET", "DET"]]  # zero weights: the first state
