"""The command ``torchssvm info``, by its function, from a shell, and without extras."""

import importlib.metadata
import platform
import runpy
import sys

import numba
import numpy as np
import pytest
import torch

import torchssvm
from torchssvm import info


def said() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in info.describe_installation().splitlines()[2:])


def test_versions_come_first():
    first, second, *_ = info.describe_installation().splitlines()
    assert first == f"torchssvm {torchssvm.__version__}"
    versions = f"torch {importlib.metadata.version('torch')}, numpy {np.__version__}, numba {numba.__version__}"
    assert second == f"Python {platform.python_version()}, {versions}"


def test_an_extra_is_listed_if_all_its_packages_are_installed(monkeypatch):
    requires = [
        "torch>=2.6",
        "numpy[x]>=1 ; extra == 'both'",
        'torch>=2; extra == "both"',
        'no-such-package; extra == "half"',
        'torch>=2; extra == "half"',
        "no-such-package; platform_system == 'Other' and extra == 'both'",
        "torchssvm[both]; extra == 'all'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    assert said()["extras"] == "both"


def test_without_an_installation_it_still_says_the_rest(monkeypatch):
    def missing(name):
        if name == "torchssvm":
            raise importlib.metadata.PackageNotFoundError
        return "1.0"

    for each in ("requires", "version"):
        monkeypatch.setattr(importlib.metadata, each, missing)
    assert info.describe_installation().startswith("torchssvm is not installed\nPython ")
    assert said()["extras"] == "none"


def test_every_extra_is_known():
    known = importlib.metadata.metadata("torchssvm").get_all("Provides-Extra")
    assert {*info._extras(), "all", "triton"} == {*known}  # triton is for Linux alone


def test_kernels_are_counted(monkeypatch, tmp_path):
    (tmp_path / "room").mkdir()
    for name in ("a.kernel", "room/b.kernel", "c.other"):
        (tmp_path / name).write_bytes(b"0" * 150_000)
    monkeypatch.setattr(info, "folder_of_kernels", lambda: tmp_path)
    assert said()["kernels"] == f"2 files, 0.3 MB, in {tmp_path}"


def test_stock_numba_keeps_none(monkeypatch):
    monkeypatch.setattr("torchssvm.compiler.stock.is_on", lambda: True)
    assert said()["stock Numba"] == "yes"
    assert said()["kernels"].startswith("stock Numba keeps no kernels on disk")


def test_threads_and_devices(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert said()["threads"] == f"{torch.get_num_threads()} of torch, OMP_NUM_THREADS=3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert said()["threads"].endswith("OMP_NUM_THREADS is not set")
    for name, value in (("is_available", True), ("device_count", 2), ("get_device_name", "a card")):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert said()["CUDA"] == "13.0, a card, a card"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert said()["CUDA"] == "no device for torch's CUDA 13.0"


def test_from_a_shell_without_lightning(monkeypatch, capsys):
    for name in ("lightning", "jsonargparse"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["torchssvm", "info"])
    runpy.run_module("torchssvm", run_name="__main__")
    assert capsys.readouterr().out == info.describe_installation() + "\n"


def test_an_argument_is_refused(capsys):
    from torchssvm.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["info", "more"])
    assert ended.value.code == 2
    assert "unrecognized arguments: more" in capsys.readouterr().err
