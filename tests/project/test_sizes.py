"""Tensors of wrong sizes reach no kernel: kernels check no bounds, and would read and write memory of others."""

from __future__ import annotations

import importlib.util

import pytest
from cases import wrong_sizes
from cases.kernels_in_python import run_in_python


@pytest.mark.slow
def test_wrong_sizes_are_answered_or_refused(monkeypatch, capsys):
    run_in_python(monkeypatch)
    scikit = importlib.util.find_spec("sklearn") is not None
    failed = wrong_sizes.main([group for group in wrong_sizes.GROUPS if scikit or group != "estimators"])
    faults = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAULT")]
    assert not failed, faults[:20]
