"""Compiled kernels in files: one for each kernel and types of arguments, named by what it was made from."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numba.core import types
from numba.core.caching import CompileResultCacheImpl
from numba.core.serialize import dumps

from torchssvm.compiler.kernel_sources import NotConstant, describe_class, digest_of

_told = False
_UNUSED = 90 * 86400.0  # seconds after which a file that no process has read is removed


class KernelCache:
    """The files of one kernel; where reading or writing fails, the kernel is compiled, and that is said once.

    A file's name ends in two digests: of the types of the arguments, and of everything the machine code is made from
    (:func:`.digest_of`). A new file replaces the one with other code for the same types.
    """

    def __init__(self, kernel: Any) -> None:
        """RuntimeError if no folder can be written to."""
        self._kernel, self._numba = kernel, CompileResultCacheImpl(kernel.py_func)
        self.cache_path = self._numba.locator.get_cache_path()

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled function, or None."""
        target_context.refresh()
        path = self._path(signature, target_context.codegen())
        with self._forgiven("read", path):
            if path is not None and path.exists():
                content = path.read_bytes()
                if hashlib.sha256(content[32:]).digest() != content[:32]:
                    raise ValueError("the checksum does not match")
                with suppress(OSError):
                    os.utime(path)
                restype, parts = pickle.loads(content[32:])
                parts[1].argtypes = tuple(signature)
                parts[3] = restype(*signature)
                return self._numba.rebuild(target_context, parts)
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep a compiled function."""
        path = self._path(signature, result.codegen)
        with self._forgiven("written", path):
            if path is not None and self._numba.check_cachable(result):
                parts = list(self._numba.reduce(result))
                # Types of arguments are left out: pickle would make another class of one that a script declares.
                parts[1], parts[3] = copy.copy(parts[1]), None
                parts[1].argtypes = None
                _write(path, dumps((result.signature.return_type, parts)))
                _remove_old(path)

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        """The file for these types of arguments; None if what the code depends on may differ in another process."""
        classes = list(_classes(signature))
        texts = [str(signature), *codegen.magic_tuple(), *map(describe_class, classes), *map(_file_of, classes)]
        if any("<locals>" in text for text in texts):
            return None
        try:
            made_from = digest_of(self._kernel, classes)
        except NotConstant:
            return None
        function = self._kernel.py_func
        name = f"{function.__module__}.{function.__qualname__}".translate({ord("<"): None, ord(">"): None})
        arguments = hashlib.sha256("\n".join(texts).encode()).hexdigest()
        python = "".join(map(str, sys.version_info[:2]))
        return Path(self.cache_path) / f"{name}-py{python}-{arguments[:16]}-{made_from[:32]}.kernel"

    @contextmanager
    def _forgiven(self, what: str, path: Path | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a damaged pickle may raise anything
            with suppress(OSError, AttributeError):
                path.unlink()  # type: ignore[union-attr]
            _tell(f"the compiled kernels in {self.cache_path} cannot be {what} ({type(error).__name__}: {error})")


def _classes(kinds: Any) -> Iterator[Any]:
    """The classes of the named tuples among these types, and within them."""
    for kind in kinds:
        if isinstance(kind, types.TypeRef):
            yield from _classes((kind.instance_type,))
        if isinstance(kind, types.BaseTuple):
            if hasattr(kind, "instance_class"):
                yield kind.instance_class
            yield from _classes(kind)


def _file_of(kind: Any) -> str:
    """The file that declares a class: scripts share the name ``__main__``."""
    return str(getattr(sys.modules.get(kind.__module__), "__file__", None))


def _write(path: Path, content: bytes) -> None:
    """Write a file with its checksum; other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(hashlib.sha256(content).digest() + content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _remove_old(path: Path) -> None:
    """Remove files with other code for the same types of arguments, and files that no process has read for long."""
    same, _, _ = path.name.rpartition("-")
    for other in path.parent.glob("*.kernel"):
        with suppress(OSError):
            replaced = other.name.startswith(f"{same}-") and other != path
            if replaced or time.time() - other.stat().st_mtime > _UNUSED:
                other.unlink()


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
