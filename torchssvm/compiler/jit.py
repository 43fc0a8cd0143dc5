"""Kernels of the CPU: functions that Numba compiles at their first call."""

from __future__ import annotations

import functools
import os
import re
import sys
import time
import weakref
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any

from torchssvm.compiler import stock

_spent = 0.0  # seconds, all compilations that have ended
_since: list[float] = []  # when those under way began; kernels compile the kernels that they call
_told = False
_dispatchers = weakref.WeakSet[Any]()  # of kernels that Python calls


def clock() -> float:
    """Seconds of a clock that stands still while kernels are compiled; only differences have a meaning."""
    now = time.perf_counter()
    return now - _spent - (now - _since[0] if _since else 0.0)


def compiling_seconds() -> float:
    """Seconds that this process has spent on compiling kernels, those under way included."""
    return _spent + (time.perf_counter() - _since[0] if _since else 0.0)


@functools.cache
def watch() -> None:
    """Stop the clock during compilations from now on; the first one is announced on stderr."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            dispatcher = event.data["dispatcher"]
            if dispatcher in _dispatchers:  # programs may have kernels of their own
                _announce(_place(dispatcher))
            _since.append(time.perf_counter())

        def on_end(self, event: Any) -> None:
            global _spent
            began = _since.pop()
            if not _since:
                _spent += time.perf_counter() - began

    event.register("numba:compile", Listener())


def _place(dispatcher: Any) -> str:
    folder = getattr(getattr(dispatcher, "_cache", None), "cache_path", None)
    if folder:
        return f"once for each kernel of this installation (kept in {folder})"
    return "in every process: no folder can be written to, so set NUMBA_CACHE_DIR to one that can"


def _announce(kept: str) -> None:
    global _told
    if not _told:
        _told = True
        print(f"torchssvm compiles kernels, which takes 10 to 60 seconds, {kept}", file=sys.stderr, flush=True)


class _Timed:
    """A dispatcher of stock Numba whose calls that compile stop the clock."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    def __call__(self, *arguments: Any) -> Any:
        global _spent
        known, began = len(self._dispatcher.signatures), time.perf_counter()
        result = self._dispatcher(*arguments)
        if len(self._dispatcher.signatures) > known:
            _spent += time.perf_counter() - began
        return result


class Kernel:
    """A function that Numba compiles when it is first called; other kernels may call it too.

    Numba is imported at that call, since it takes half a second. Kernels release the GIL. They make and keep no arrays:
    they write to those that they are given.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        # Numba's runtime is left out: it counts references, with an atomic operation whenever an array is taken out of
        # a tuple, and that took a third of all time.
        self.py_func, self.targetoptions = function, {"nogil": True, "_nrt": False, **options}  # Numba's names

    @functools.cached_property
    def dispatcher(self) -> Any:
        """What Python calls; its code is cached on disk."""
        import numba

        if stock.is_on():
            _announce("in every process, as stock Numba keeps no files here")
            return _Timed(stock.compiled(self))
        from torchssvm.compiler.kernel_cache import KernelCache
        from torchssvm.compiler.kernel_compiler import KernelCompiler

        watch()
        options: Any = {"no_cfunc_wrapper": True, **self.targetoptions}  # C code calls none of them
        made = numba.njit(pipeline_class=KernelCompiler, **options)(self.py_func)
        _dispatchers.add(made)
        with suppress(RuntimeError):  # there is no folder that it could be written to: compile in every process
            made._cache = KernelCache(self)
        return made

    @property
    def _numba_type_(self) -> Any:
        """Numba asks for it where another kernel calls this one."""
        return self.callee._numba_type_

    @functools.cached_property
    def callee(self) -> Any:
        """What other kernels call, whose code takes it up: without the calls from Python and C, and without files."""
        import numba

        if stock.is_on():
            return stock.compiled(self, no_cpython_wrapper=True)
        from torchssvm.compiler.kernel_compiler import InlinedCompiler

        options: Any = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **self.targetoptions}
        return numba.njit(pipeline_class=InlinedCompiler, **options)(self.py_func)

    def __reduce__(self) -> str:
        """Copies and pickles refer to it by its name in its module."""
        return self.py_func.__qualname__

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled function; TypeError if it makes arrays."""
        try:
            return self.dispatcher(*arguments)
        except Exception as error:
            if (place := _allocation(error)) is not None:
                raise TypeError(
                    f"{place}: kernels can neither make nor return arrays or lists: make them once in "
                    "Form(room=function), and use scratch.room"
                ) from None
            raise


def _allocation(error: Exception) -> str | None:
    """Where a kernel makes an array, if Numba refused that; Numba's own page does not name it."""
    refused = ("NRT required but not enabled", "Only accept returning of array passed into the function as argument")
    text = str(error)
    if not (type(error).__module__ == "numba.core.errors" and any(reason in text for reason in refused)):
        return None
    places = re.findall(r" at (.+) \((\d+)\)$", text, re.MULTILINE)  # from the innermost call on
    return next((f"{file}, line {line}" for file, line in places if f"{os.sep}numba{os.sep}" not in file), "a kernel")


class ByKind:
    """A kernel with a version for each kind of example, which the type of its first argument says.

    Numba takes the version when it compiles the kernel that calls it, so that a run compiles those of its own kind.
    ``default`` is the version of all other types; or a plain function, which says what a version must do, if there is
    none.
    """

    def __init__(self, default: Callable[..., Any]) -> None:
        functools.update_wrapper(self, default)
        self._default = default if isinstance(default, Kernel) else None
        self._versions: dict[Any, Kernel] = {}

    def of(self, kind: type) -> Callable[[Kernel], Kernel]:
        """A decorator: the kernel is the version of a named tuple.

        TypeError if the class has one already, or its name is that of a kind of this package: Numba tells types by
        names.
        """

        def add(kernel: Kernel) -> Kernel:
            if kind in self._versions:
                raise TypeError(f"{kind.__name__} has a version of {self.__name__} already: declare the class again")  # type: ignore[attr-defined]
            for other in self._versions:
                packages = {one.__module__.partition(".")[0] for one in (other, kind)}
                if other.__name__ == kind.__name__ and len(packages) > 1 and "torchssvm" in packages:
                    raise TypeError(f"{kind.__name__} is the name of a kind of torchssvm: take another one")
            self._versions[kind] = kernel
            return kernel

        return add

    def version(self, kind: Any) -> Kernel:
        """The version of a named tuple's class; TypeError if there is none."""
        found = self._versions.get(kind, self._default)
        if found is None:
            raise TypeError(f"{getattr(kind, '__name__', kind)} has no version of {self.__name__}")  # type: ignore[attr-defined]
        return found

    def versions(self, kinds: Container[type]) -> list[tuple[str, Kernel]]:
        """The versions of these classes with their names, in this order, and the default."""
        named = [
            (f"{kind.__module__}.{kind.__qualname__}", kernel)
            for kind, kernel in self._versions.items()
            if kind in kinds
        ]
        named.sort(key=lambda version: version[0])
        return named if self._default is None else [*named, ("", self._default)]

    def is_default(self, kind: Any) -> bool:
        """Whether a named tuple has no version of its own."""
        return type(kind) not in self._versions

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from torchssvm.compiler.by_kind import KindFunction

        return KindFunction(self)

    def __call__(self, kind: Any, *arguments: Any) -> Any:
        """Run the version of ``kind``."""
        return self.version(type(kind))(kind, *arguments)


class Vectorised:
    """A function on rows of numbers for kernels: vectors of LLVM, from :mod:`.vector_code`, by its name.

    Stock Numba compiles the function as it is written, and Python runs it.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.plain = Kernel(function, **options)

    @functools.cached_property
    def _numba_type_(self) -> Any:
        if stock.is_on():
            return self.plain._numba_type_
        from numba.core.registry import cpu_target

        from torchssvm.compiler import vector_code

        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(getattr(vector_code, self.plain.__name__))  # type: ignore[attr-defined]

    def __call__(self, *arguments: Any) -> Any:
        """Run the plain loops in Python."""
        return self.plain.py_func(*arguments)


_FAST = {"contract", "nsz", "reassoc"}


def vectorised(function: Callable[..., Any]) -> Any:
    """A vector operation whose result does not depend on the order of its numbers."""
    return Vectorised(function)


def vectorised_sum(function: Callable[..., Any]) -> Any:
    """A vector operation whose sums may be taken in another order."""
    return Vectorised(function, fastmath=_FAST)


def njit(function: Callable[..., Any]) -> Any:
    """Compile in the written order of operations, so that rounding and ties are those of the source."""
    return Kernel(function)


def njit_fastmath(function: Callable[..., Any]) -> Any:
    """Compile so that products may be contracted and sums reordered, and run in vector registers.

    Results are those of the source up to rounding, the same at every call on one machine; NaN and infinities propagate.
    """
    return Kernel(function, fastmath=_FAST)
