"""Numba's files of compiled kernels, without which everything goes on where they are damaged or cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from numba.core.caching import FunctionCache

_told = False


class KernelCache(FunctionCache):
    """Numba's cache of a function; where reading or writing it fails, the function is compiled, and that is said once.

    A cache that failed loses its index: the next process then writes a new one, and cannot take up a file of machine
    code that belongs to an older source.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None."""
        found = None
        with self._forgiven("read"):
            found = super().load_overload(sig, target_context)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function."""
        with self._forgiven("written"):
            super().save_overload(sig, data)

    @contextmanager
    def _forgiven(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a damaged pickle may raise anything
            with suppress(OSError):
                os.unlink(self._cache_file._index_path)
            if isinstance(error, AttributeError | ImportError):
                return  # the index of an older version, whose types are gone
            _tell(f"the compiled kernels in {self.cache_path} cannot be {what} ({type(error).__name__}: {error})")


def _tell(message: str) -> None:
    global _told
    if not _told:
        _told = True
        print(
            f"torchssvm: {message}, and are compiled anew; if this comes again, empty the folder, make room on its "
            "disk, or set NUMBA_CACHE_DIR to another folder",
            file=sys.stderr,
            flush=True,
        )
