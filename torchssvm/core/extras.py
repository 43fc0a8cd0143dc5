"""Errors that say how to install a missing optional package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(message: str, *packages: str) -> Iterator[None]:
    """Replace the error of a missing package by ``message``; other import errors pass through.

    Args:
        message: Names the feature that needs the packages, and the extra that installs them.
        packages: The packages' import names.

    Raises:
        ImportError: One of ``packages`` is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise ImportError(message) from error
