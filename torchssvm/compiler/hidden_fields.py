"""Fields of named tuples that kernels read through a pointer.

A kernel need not know the types of these fields: it is compiled once, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

hidden_fields: dict[type, tuple[str, ...]] = {}
"""By class of named tuples, the names of these fields."""


def with_hidden(*names: str) -> Callable[[type], Any]:
    """A decorator of a class of named tuples: kernels read these fields through a pointer."""

    def note(kind: type) -> type:
        hidden_fields[kind] = names
        return kind

    return note
