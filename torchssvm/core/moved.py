"""Names that stood at the top level of the package: where they are now."""

from __future__ import annotations

import importlib
from typing import Any

from torchssvm.core.caller import warn

MOVED: dict[str, str] = {}
"""The modules that have names which still exist. They are found by ``torchssvm.NAME`` too, with a warning."""

_BASELINE = "is a baseline to compare with, and lies in benchmarks/baselines of the repository; train by solve(...)"
LEFT = {
    "CuttingPlane": _BASELINE,
    "ExponentiatedGradient": _BASELINE,
    "NSlack": _BASELINE,
    "OneSlack": _BASELINE,
    "Subgradient": "is a baseline to compare with, and lies in benchmarks/baselines of the repository; train by "
    "StructuredHinge and an optimizer of torch",
}
"""What became of names that the package has no longer."""


def find(name: str) -> Any:
    """The object of a name that the top level has no longer.

    Raises:
        ImportError: It has left the package; not an AttributeError, of which ``from torchssvm import`` drops the words.
        AttributeError: There was never such a name.
    """
    if name in LEFT:
        raise ImportError(f"torchssvm.{name} {LEFT[name]}")
    if name not in MOVED:
        raise AttributeError(f"module 'torchssvm' has no attribute {name!r}")
    place = MOVED[name]
    warn(f"torchssvm.{name} is {place}.{name} now", DeprecationWarning)
    return getattr(importlib.import_module(place), name)
