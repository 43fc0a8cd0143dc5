"""The script for compute-sanitizer launches every Triton kernel of the package."""

import importlib
import re
from pathlib import Path

import pytest
import torch

import torchssvm
from torchssvm.core.triton_support import triton_available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        torch.cuda.is_available() or not triton_available(), reason="counts launches on the pretended device"
    ),
]
PACKAGE = Path(torchssvm.__file__).parent


def test_the_script_launches_every_kernel(cuda, monkeypatch):
    from cases.pretended_device import counted

    chains = importlib.import_module("torchssvm.structures.chain.triton")
    monkeypatch.setattr(chains, "_IN_REGISTERS", 2)
    monkeypatch.setattr(chains, "_MANY", 4)
    monkeypatch.setattr(importlib.import_module("torchssvm.steps.box_qp_triton"), "_ALONE", 2)
    launches = importlib.import_module("every_kernel").launches(cuda, size=3, states=(2, 3, 4), blocks=(2, 3))
    with counted() as counts:
        for launch in launches.values():
            launch()
    launched = {(where.partition(":")[0], what.split()[0]) for what, where in counts.places if "(Triton)" in what}
    sources = {file.relative_to(PACKAGE).as_posix(): file.read_text() for file in PACKAGE.rglob("*triton.py")}
    known = {(file, name) for file, text in sources.items() for name in re.findall(r"^ +(\w+)\[.*\]\(", text, re.M)}
    assert launched == known
