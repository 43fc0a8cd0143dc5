"""What the machine code of a kernel is made from: its code, the kernels it calls, the constants it reads."""

from __future__ import annotations

import dis
import functools
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np

from torchssvm.compiler.hidden_fields import hidden_fields

_COMPILER = (
    "jit",
    "kernel_code",
    "kernel_compiler",
    "by_kind",
    "by_address",
    "vector_code",
    "vector_panels",
    "vectors",
)
_FIXED = {"builtins", "math", "numba", "numpy", "operator"}  # packages whose functions change with their version alone


class NotConstant(Exception):
    """A kernel reads a value that has no lasting description."""


_first: dict[Any, bytes] = {}
"""The description of each function when it was first asked for; Numba keeps the constants that it then read."""


def digest_of(kernel: Any, classes: Iterable[type]) -> str:
    """A digest of all code that a kernel is compiled from, for examples of these classes of named tuples.

    Functions are taken as they are in memory, since that is what Numba compiles: an edit of a file that was imported
    before it does not count, and an edit of a comment changes nothing.

    Raises:
        NotConstant: A function reads a value that may change, such as a list, or one that this process has changed.
    """
    classes, contents, callees = set(classes), dict[Any, bytes](), dict[Any, None]()
    versions: list[tuple[str, Any]] = [("", kernel)]
    while waiting := [called for _, called in versions if called not in contents]:
        for one in waiting:
            contents[one], called, made = _content(one)
            if _first.setdefault(one, contents[one]) != contents[one]:
                raise NotConstant(f"{one.__qualname__} reads a value that has changed")
            callees |= dict.fromkeys(called)
            classes |= made
        versions = [
            version
            for callee in callees
            for version in (callee.versions(classes) if hasattr(callee, "versions") else [("", callee)])
        ]
    digest = hashlib.sha256(_compiler())
    for text in (*contents.values(), *(f"{kind} {called.__qualname__}".encode() for kind, called in versions)):
        digest.update(text)
    return digest.hexdigest()


@functools.cache
def _compiler() -> bytes:
    """A digest of what turns functions into machine code."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {np.__version__}".encode())
    for name in _COMPILER:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.digest()


def _content(kernel: Any) -> tuple[bytes, list[Any], set[type]]:
    """A description of one function and of the constants it reads, the kernels it calls, the named tuples it makes."""
    function, options = kernel.py_func, {**kernel.targetoptions, "locals": getattr(kernel, "locals", {})}
    text = [_constant(function.__defaults__), *sorted(f"{key} {_sorted(value)}" for key, value in options.items())]
    callees, made = [], set()
    for code in _codes(function.__code__):
        constants = tuple(value for value in code.co_consts if not isinstance(value, CodeType))
        text.append(_constant((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)))
        for name, value in _values_read(function, code):
            if _is_callee(value):
                callees.append(value)
                text.append(f"{name} {value.__module__}.{value.__qualname__} {getattr(value, 'described', '')}")
            else:
                text.append(f"{name} {_constant(value)}")
            if hasattr(value, "_fields"):
                made.add(value if isinstance(value, type) else type(value))
    return "\n".join(text).encode(), callees, made


def _values_read(function: Any, code: CodeType) -> Iterator[tuple[str, Any]]:
    """The globals and the variables of enclosing functions that one piece of a function's code reads."""
    enclosed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    yield from ((name, enclosed[name].cell_contents) for name in code.co_freevars if name in enclosed)
    named = [(name, function.__globals__[name]) for name in code.co_names if name in function.__globals__]
    if all(_is_callee(value) or _lasts(value) for _, value in named):
        yield from named  # with globals that are named as an attribute is: harmless, and ten times as fast
        return
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
            name, value = step.argval, function.__globals__[step.argval]
            while isinstance(value, ModuleType) and steps[at + 1].opname in ("LOAD_ATTR", "LOAD_METHOD"):
                at += 1
                name, value = f"{name}.{steps[at].argval}", getattr(value, steps[at].argval, None)
            yield name, value


def _is_callee(value: Any) -> bool:
    return hasattr(value, "py_func") or hasattr(value, "versions")


def _lasts(value: Any) -> bool:
    try:
        return bool(_constant(value))
    except NotConstant:
        return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _sorted(value: Any) -> str:
    return repr(sorted(value)) if isinstance(value, set | frozenset) else repr(value)


def _constant(value: Any) -> str:
    """A description of a value that is the same in every process."""
    if (
        value is None
        or value is ...
        or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype)
    ):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, tuple):
        kind = describe_class(type(value)) if hasattr(value, "_fields") else "tuple"
        return f"{kind} ({', '.join(map(_constant, value))})"
    if isinstance(value, slice):
        return f"slice {_constant((value.start, value.stop, value.step))}"
    if isinstance(value, frozenset):
        return f"frozenset ({', '.join(sorted(map(_constant, value)))})"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"array {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if type(value).__module__ == "torchssvm.compiler.jit":
        return f"{type(value).__name__} {value.__name__}"
    if isinstance(value, ModuleType) and value.__name__ in _FIXED:
        return f"module {value.__name__}"
    if isinstance(value, type) and hasattr(value, "_fields"):
        return describe_class(value)
    if str(getattr(value, "__module__", None)).partition(".")[0] in _FIXED and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    raise NotConstant(f"{type(value).__name__} {value!r}")


def describe_class(kind: Any) -> str:
    """The name and the fields of a named tuple's class."""
    return f"{kind.__module__}.{kind.__qualname__}{kind._fields}{hidden_fields.get(kind, ())}"
