"""The switch: the same labels from stock Numba, without a private module of Numba behind it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from torchssvm.compiler import stock

PROGRAM = """
import sys
import torch
from torchssvm import Solver, solve
from torchssvm.datasets import PaddedDataset
from torchssvm.structures import LinearChain, LinearMulticlass, LinearMultilabel

chance = torch.Generator().manual_seed(0)
x, lengths = torch.randn(12, 5, 4, generator=chance), torch.full((12,), 5)
labels = x[:, :, :3].argmax(2)
problems = {
    "chain": (LinearChain(4, 3), PaddedDataset(x, labels, lengths)),
    "classes": (LinearMulticlass(4, 3), PaddedDataset(x[:, 0], labels[:, 0])),
    "label sets": (LinearMultilabel(4, 3), PaddedDataset(x[:, 0], (x[:, 0, :3] > 0).long())),
}
compiled = sys.argv[1] == "compiled"
for name in sys.argv[2:]:
    head, dataset = problems[name]
    certificate = solve(head, dataset, lam=0.1, solver=Solver(compiled=compiled), progress=False)
    batch = dataset.collate([dataset[i] for i in range(12)])
    with torch.no_grad():
        best = head.structure.argmax(head(x, lengths) if name == "chain" else head(x[:, 0]))
    print(name, best.labeling.tolist(), round(certificate.primal, 2))
print([name for name in sys.modules if name.startswith("torchssvm.compiler.") and "kernel" in name])
"""


def output(*arguments: str, switch: str) -> list[str]:
    environment = {**os.environ, "TORCHSSVM_STOCK_NUMBA": switch}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize(
    "arguments",
    [("torch", "classes", "label sets"), pytest.param(("compiled", "classes"), marks=pytest.mark.slow)],
    ids=lambda arguments: arguments[0],
)
def test_stock_numba_learns_the_same_labels(arguments):
    *labels, private = output(*arguments, switch="1")
    assert private == "[]"
    assert output(*arguments, switch="0")[:-1] == labels


def is_on(monkeypatch, version, setting=None):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    if setting is None:
        monkeypatch.delenv("TORCHSSVM_STOCK_NUMBA", raising=False)
    else:
        monkeypatch.setenv("TORCHSSVM_STOCK_NUMBA", setting)
    stock.is_on.cache_clear()
    try:
        return stock.is_on()
    finally:
        stock.is_on.cache_clear()


def test_the_switch(monkeypatch):
    tested = f"{stock.NEWEST[0]}.{stock.NEWEST[1]}.9"
    newer = f"{stock.NEWEST[0]}.{stock.NEWEST[1] + 1}.0rc1"
    assert not is_on(monkeypatch, tested)
    assert is_on(monkeypatch, tested, "1")
    assert not is_on(monkeypatch, newer, "0")
    with pytest.warns(UserWarning, match="numba="):
        assert is_on(monkeypatch, newer)


def test_the_dependency_is_capped_at_the_newest_version_tested():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (numba,) = [text for text in project["dependencies"] if text.startswith("numba")]
    assert numba.endswith(f"<{stock.NEWEST[0]}.{stock.NEWEST[1] + 1}")
