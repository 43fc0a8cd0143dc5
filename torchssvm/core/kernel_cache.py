"""Numba's files of compiled kernels, without which everything goes on where they are damaged or cannot be written."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from numba.core import types
from numba.core.caching import FunctionCache, IndexDataCacheFile

_told = False


class KernelCache(FunctionCache):
    """Numba's cache of a function; where reading or writing it fails, the function is compiled, and that is said once.

    Code for kinds of examples that are declared outside of this package has files of its own, which are those of the
    declaring file as it stands.

    A cache that failed loses its index: the next process then writes a new one, and cannot take up a file of machine
    code that belongs to an older source.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None."""
        found = None
        with self._forgiven("read"), self._files_of(sig) as kept:
            found = super().load_overload(sig, target_context) if kept else None
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function."""
        with self._forgiven("written"), self._files_of(sig) as kept:
            if kept:
                super().save_overload(sig, data)

    @contextmanager
    def _files_of(self, sig: Any) -> Iterator[bool]:
        """Those of the files that declare the types of the arguments; whether there are any."""
        own = self._cache_file
        sources = sorted({source for kind in sig for source in _sources(kind)})
        kept = "" not in sources
        if sources and kept:
            stamps = [(path, os.stat(path).st_mtime, os.stat(path).st_size) for path in sources]
            name = hashlib.sha256(repr(sources).encode()).hexdigest()[:16]
            stamp = (self._impl.locator.get_source_stamp(), stamps)
            self._cache_file = IndexDataCacheFile(self._cache_path, f"{self._impl.filename_base}-{name}", stamp)
        try:
            yield kept
        finally:
            self._cache_file = own

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


def _sources(kind: Any) -> Iterator[str]:
    """The files outside of this package that declare the named tuples of a type; "" for a script or a notebook.

    Another process does not know the types of these.
    """
    if isinstance(kind, types.BaseTuple):
        cls = getattr(kind, "instance_class", None)
        if cls is not None and not cls.__module__.startswith("torchssvm."):
            source = getattr(sys.modules.get(cls.__module__), "__file__", None)
            yield source if source and cls.__module__ != "__main__" else ""
        for part in kind:  # type: ignore[attr-defined]
            yield from _sources(part)
