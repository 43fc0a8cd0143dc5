"""Tensors of wrong sizes reach no kernel: kernels check no bounds, and would read and write memory of others."""

from __future__ import annotations

import importlib.util

import pytest
import wrong_sizes

from torchssvm.core.jit import Kernel


@pytest.mark.slow
def test_wrong_sizes_are_answered_or_refused(monkeypatch, capsys):
    monkeypatch.setattr(Kernel, "dispatcher", property(lambda kernel: kernel._function))  # Python checks bounds
    scikit = importlib.util.find_spec("sklearn") is not None
    failed = wrong_sizes.main([group for group in wrong_sizes.GROUPS if scikit or group != "estimators"])
    faults = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAULT")]
    assert not failed, faults[:20]
