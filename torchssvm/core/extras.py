"""What to install where an optional package is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(message: str, *packages: str) -> Iterator[None]:
    """Say so where one of these packages cannot be imported in this block; what they miss themselves is another matter.

    Args:
        message: What needs them, and which extra brings them.
        packages: Their names in ``import``.

    Raises:
        ImportError: With the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise ImportError(message) from error
