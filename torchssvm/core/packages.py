"""Tests of a class's package, and warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings
from typing import Any


def is_ours(kind: Any) -> bool:
    """Whether a class or function is defined in this package."""
    return kind.__module__.startswith("torchssvm.")


_BETWEEN = (
    *("torchssvm", "torch", "lightning", "lightning_fabric", "pytorch_lightning", "jsonargparse"),
    *("contextlib", "importlib"),
)
"""Packages whose frames may lie between the user's line and the line that warns."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that belongs to none of the packages ``_BETWEEN``.

    ``warnings.warn`` takes a number of frames, which here depends on the caller: a plain loop, a solver or a callback.
    (From Python 3.12 on, ``skip_file_prefixes`` would do the same.)
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
