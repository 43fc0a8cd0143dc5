"""Whether heads compute in plain torch operators: no Numba, no autograd functions, no look at the numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_here = threading.local()


def plain() -> bool:
    """Whether torch traces what runs now (``torch.compile``, ``torch.export``), or plain operators were asked for."""
    return torch.compiler.is_compiling() or getattr(_here, "asked", False)


@contextmanager
def plain_operators() -> Iterator[None]:
    """Ask for plain operators in this thread, so that what runs at once is what would be traced."""
    before = getattr(_here, "asked", False)
    _here.asked = True
    try:
        yield
    finally:
        _here.asked = before
