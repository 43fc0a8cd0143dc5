"""Kernels of the CPU: functions that Numba compiles at their first call."""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any

from torchssvm.compiler import stock

_spent = 0.0  # seconds of all finished compilations
_since: list[float] = []  # start times of running compilations; kernels compile the kernels that they call
_told = False
_dispatchers = weakref.WeakSet[Any]()  # of kernels that Python calls


def clock() -> float:
    """Seconds of a clock that stops while kernels compile; only differences have a meaning."""
    now = time.perf_counter()
    return now - _spent - (now - _since[0] if _since else 0.0)


def compiling_seconds() -> float:
    """Seconds that this process has spent on compiling kernels, running compilations included."""
    return _spent + (time.perf_counter() - _since[0] if _since else 0.0)


@functools.cache
def watch() -> None:
    """Stop the clock during compilations from now on, and announce the first one on stderr."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            dispatcher = event.data["dispatcher"]
            if dispatcher in _dispatchers:  # programs may compile other functions
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
        print(f"torchssvm compiles kernels, which takes 5 to 30 seconds, {kept}", file=sys.stderr, flush=True)


def announce_nothing() -> None:
    """Leave out the line of the first compilation in this process, for programs that say it themselves."""
    global _told
    _told = True


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

    Numba is imported at that call, since it takes half a second. Kernels release the GIL. They allocate no arrays, and
    write to their arguments.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        # Without Numba's runtime: it counts references, by an atomic operation whenever an array is taken out of a
        # tuple, which took a third of the run time.
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
        options: Any = {"no_cfunc_wrapper": True, **self.targetoptions}  # no C code calls kernels
        made = numba.njit(pipeline_class=KernelCompiler, **options)(self.py_func)
        _dispatchers.add(made)
        with suppress(RuntimeError):  # no folder can be written to: compile in every process
            made._cache = KernelCache(self)
        return made

    @property
    def _numba_type_(self) -> Any:
        """Numba reads it where another kernel calls this one."""
        return self.callee._numba_type_

    @functools.cached_property
    def callee(self) -> Any:
        """What other kernels call and contain: no wrapper for Python or C, and no file."""
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
        """Run the compiled function; Numba raises its TypingError if it makes arrays or lists."""
        dispatcher = self.dispatcher
        return dispatcher(*arguments) if stock.is_on() else dispatcher(*map(_placed, arguments))


def _placed(argument: Any) -> Any:
    """A named tuple in memory; other arguments as they are."""
    if not hasattr(argument, "_fields"):
        return argument
    from torchssvm.compiler.placed import Placed

    return Placed(argument)


class ByKind:
    """A kernel with a version for each kind of example, chosen by the type of its first argument.

    Numba chooses the version when it compiles a caller, so a run compiles the versions of its kind alone. ``default``
    is the version for all other types, or a plain function that says what a version must do.
    """

    def __init__(self, default: Callable[..., Any]) -> None:
        functools.update_wrapper(self, default)
        self._default = default if isinstance(default, Kernel) else None
        self._versions: dict[Any, Kernel] = {}

    def of(self, kind: type) -> Callable[[Kernel], Kernel]:
        """A decorator: the kernel becomes the version for a class of named tuples.

        TypeError if the class has a version, which compiled callers would keep, or if a kind of this package has the
        same name: Numba compares types by name.
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
        """The version for a class of named tuples; TypeError if there is none."""
        version = self._versions.get(kind, self._default)
        if version is None:
            raise TypeError(f"{getattr(kind, '__name__', kind)} has no version of {self.__name__}")  # type: ignore[attr-defined]
        return version

    def versions(self, kinds: Container[type]) -> list[tuple[str, Kernel]]:
        """The versions for these classes with their names, in order of the names, and the default."""
        named = [
            (f"{kind.__module__}.{kind.__qualname__}", kernel)
            for kind, kernel in self._versions.items()
            if kind in kinds
        ]
        named.sort(key=lambda version: version[0])
        return named if self._default is None else [*named, ("", self._default)]

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from torchssvm.compiler.by_kind import KindFunction

        return KindFunction(self)

    def __call__(self, kind: Any, *arguments: Any) -> Any:
        """Run the version of ``kind``."""
        return self.version(type(kind))(kind, *arguments)


class ByAddress(ByKind):
    """A function by kind of ``(kind, examples, ...)``, which kernels that know no kind call by an address.

    Annotations declare the types of arguments and of what every version returns. An argument without one has its type
    by its name, such as ``scratch``.
    """

    slots = 0
    """The number of these functions."""

    def __init__(self, default: Callable[..., Any]) -> None:
        super().__init__(default)
        self.slot = ByAddress.slots  # the place of its address in ``examples.calls``
        ByAddress.slots += 1
        function = default.py_func if isinstance(default, Kernel) else default
        names, declared = function.__code__.co_varnames[: function.__code__.co_argcount], function.__annotations__
        self.parameters, self.returned = [(name, declared.get(name, "")) for name in names], declared["return"]
        self.described = f"{self.slot} {self.parameters} {self.returned}"

    @functools.cached_property
    def _numba_type_(self) -> Any:
        if stock.is_on():
            return super()._numba_type_
        from torchssvm.compiler.by_address import AddressFunction

        return AddressFunction(self)


class Addresses:
    """Functions by address whose versions of one kind are compiled together.

    A kernel calls it as ``addresses(calls, types)``, with a :class:`.by_address.Types`. The call writes the addresses
    of the versions to ``calls``.
    """

    def __init__(self, *functions: ByAddress) -> None:
        self.functions, self.__module__ = functions, __name__
        self.described = self.__qualname__ = " ".join(function.__qualname__ for function in functions)  # type: ignore[attr-defined]

    def versions(self, kinds: Container[type]) -> list[tuple[str, Kernel]]:
        """As of :meth:`ByKind.versions`, of all functions."""
        return [version for function in self.functions for version in function.versions(kinds)]

    def __call__(self, calls: Any, types: Any) -> None:
        """Only kernels call it."""
        raise NotImplementedError

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from torchssvm.compiler.by_address import AddressesType

        return AddressesType(self)


class Vectorised:
    """A function on rows of numbers for kernels, which call the function of its name in :mod:`.vector_code`.

    Stock Numba compiles the plain loops, and Python runs them.
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
    """A vector operation whose sums may be reordered."""
    return Vectorised(function, fastmath=_FAST)


def njit(function: Callable[..., Any]) -> Any:
    """Compile without reordering, so that rounding and ties are as written."""
    return Kernel(function)


def njit_fastmath(function: Callable[..., Any]) -> Any:
    """Compile so that products may be contracted and sums reordered, and run in vector registers.

    Results equal the plain ones up to rounding, and are the same at every call on one machine. NaN and infinities
    propagate.
    """
    return Kernel(function, fastmath=_FAST)
