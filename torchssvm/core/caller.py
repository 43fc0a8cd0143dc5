"""Warnings that name the line of the program that called the library, and not a line of the library."""

from __future__ import annotations

import sys
import warnings

_BETWEEN = ("torchssvm", "torch", "lightning", "lightning_fabric", "pytorch_lightning", "jsonargparse", "contextlib")
"""The modules, with all that is in them, that may stand between the caller and the line that warns."""


def warn(message: str) -> None:
    """Warn, at the innermost line that is neither the library's nor of torch or Lightning.

    ``warnings.warn`` counts frames, and how many there are depends on the way that led here: a plain loop, a solver, a
    callback. (``skip_file_prefixes`` would do the same from Python 3.12 on.)

    Args:
        message: What to say.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_between(module: str) -> bool:
    return module.partition(".")[0] in _BETWEEN
