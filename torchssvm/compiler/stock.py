"""The switch: kernels through stock Numba, as ``numba.njit`` compiles any function."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import warnings
from typing import Any

NEWEST = (0, 68)
"""The newest version of Numba that this room was tested with; newer ones are used as stock Numba."""


@functools.cache
def is_on() -> bool:
    """Whether kernels go through stock Numba: by ``TORCHSSVM_STOCK_NUMBA``, or as the version was not tested."""
    if setting := os.environ.get("TORCHSSVM_STOCK_NUMBA"):
        return setting != "0"
    version = importlib.metadata.version("numba")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) <= NEWEST:
        return False
    tested = ".".join(map(str, NEWEST))
    message = f"numba={version} is newer than {tested}, the newest one tested: kernels compile slowly, in every process"
    warnings.warn_explicit(message, UserWarning, __file__, 1, module=__name__)
    return True


def compiled(kernel: Any, **options: Any) -> Any:
    """A kernel as a function of stock Numba."""
    import numba

    chosen: Any = {"no_cfunc_wrapper": True, **options, **kernel.targetoptions}
    del chosen["_nrt"]
    return numba.njit(**chosen)(kernel.py_func)
