"""How loops that allocate nothing are compiled; without Numba they run as they are written, slowly.

Import it where a kernel is first needed: Numba takes a while to be imported.
"""

from __future__ import annotations

from typing import Any

try:
    import numba
except ImportError:
    numba = None  # type: ignore[assignment]

from torchssvm.core.jit import SUMS

# Numba counts references to arrays, with an atomic operation whenever one is taken out of a tuple: that took a third of
# all time. Nothing here makes arrays or keeps them, so that the runtime that counts is left out.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}

njit: Any = numba.njit(**_OPTIONS) if numba else lambda kernel: kernel
"""In the written order of operations."""

njit_fastmath: Any = numba.njit(fastmath=set(SUMS), **_OPTIONS) if numba else njit
"""Sums of products may be contracted and reordered."""
