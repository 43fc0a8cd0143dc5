"""Whether a structure is one that a head can have."""

from __future__ import annotations

from typing import TypeVar

from torchssvm.structures import Structure

Kind = TypeVar("Kind", bound=Structure)


def check_structure(structure: Kind | None, such: str, *settings: str) -> Kind | None:
    """The structure that a head was given, or None if it was given none.

    Args:
        structure: What was given.
        such: One that would do, for messages.
        settings: What the head reads of it.

    Raises:
        TypeError: It is no structure, or one without these settings.
    """
    if structure is not None:
        missing = [name for name in settings if not hasattr(structure, name)]
        if not isinstance(structure, Structure) or missing:
            why = f": it has no {' and no '.join(missing)}" if isinstance(structure, Structure) else ""
            raise TypeError(f"structure={structure!r} must be one such as {such}{why}")
    return structure
