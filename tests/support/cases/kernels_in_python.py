"""Kernels as plain Python functions.

NumPy checks the bounds of every index there, which compiled kernels do not. Vector operations run as the plain loops
that :mod:`torchssvm.compiler.vectors` declares; one example is enough for a test, as loops of Python are slow.
"""

from __future__ import annotations

import pytest

from torchssvm.compiler import stock
from torchssvm.compiler.jit import Kernel


def python_function(kernel: Kernel):
    """What a kernel was declared as."""
    return kernel.py_func


def run_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all kernels in Python from here to the end of the test."""
    monkeypatch.setattr(Kernel, "dispatcher", property(python_function))
    monkeypatch.setattr(stock, "is_on", lambda: True)  # no hidden fields
