"""How loops that allocate nothing are compiled. Import it only where Numba is installed."""

from __future__ import annotations

from typing import Any

import numba

from torchssvm.core.jit import SUMS

# Numba counts references to arrays, with an atomic operation whenever one is taken out of a tuple: that took a third of
# all time. Nothing here makes arrays or keeps them, so that the runtime that counts is left out.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}

njit: Any = numba.njit(**_OPTIONS)
"""In the written order of operations."""

njit_fastmath: Any = numba.njit(fastmath=set(SUMS), **_OPTIONS)
"""Sums of products may be contracted and reordered."""
