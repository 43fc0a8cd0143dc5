"""Named tuples in memory, as kernels read them.

Numba would unpack a tuple in code that it compiles with every kernel that takes it: some thousand instructions for the
examples, half of all code of the compiled loop.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import typeof, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import NativeValue, typeof_impl, unbox

from torchssvm.compiler.kernel_code import Fields, is_hidden

_known: dict[Any, Fields] = {}


def type_of(value: Any) -> Any:
    """Numba's type of a value; named tuples are :class:`.Fields`, whichever package declares them."""
    if not hasattr(value, "_fields"):
        return typeof(value)
    key = type(value), tuple(map(_key, value))
    if key not in _known:
        _known[key] = Fields(tuple(map(type_of, value)), type(value))
    return _known[key]


def _key(value: Any) -> Any:
    """What Numba's type of a value depends on; Numba takes ten times as long to say the type."""
    if type(value) is np.ndarray:
        flags = value.flags
        return value.dtype, value.ndim, flags.c_contiguous, flags.f_contiguous, flags.writeable, flags.aligned
    return (type(value), *map(_key, value)) if isinstance(value, tuple) else type(value)


class Placed:
    """A value in memory, of type ``type`` at ``address``; its arrays are not copied."""

    def __init__(self, value: Any) -> None:
        self.type = type_of(value)
        self._parts: list[Any] = [value]  # what the address leads to
        self.address = self._place(self.type, value)

    def _place(self, kind: Any, value: Any) -> int:
        content = self._struct(kind, value) if isinstance(kind, Fields) else self._content(kind, value)
        buffer = np.frombuffer(content or bytes(8), np.uint8)
        self._parts.append(buffer)
        return int(buffer.__array_interface__["data"][0])

    def _content(self, kind: Any, value: Any) -> bytes:
        if isinstance(kind, types.Array):
            place = value.__array_interface__["data"][0]
            sizes = (0, 0, value.size, value.itemsize, place, *value.shape, *value.strides)  # no owner, no parent
            return struct.pack(f"{len(sizes)}q", *sizes)
        if isinstance(kind, Fields):
            return struct.pack("q", self._place(kind, value))
        if isinstance(kind, types.BaseTuple):
            return self._struct(kind, value)
        if isinstance(kind, types.NoneType):
            return bytes(8)
        if isinstance(kind, types.Boolean):
            return struct.pack("?", value)
        if isinstance(kind, types.Number):
            return np.array(value, str(kind)).tobytes()
        raise TypeError(f"{value!r} is in a named tuple of a kernel: use numbers, arrays and named tuples")

    def _struct(self, kind: Any, values: Any) -> bytes:
        size, places = _layout(kind)
        content = bytearray(size)
        for each, value, (place, hidden) in zip(kind, values, places, strict=True):
            part = struct.pack("q", self._place(each, value)) if hidden else self._content(each, value)
            content[place : place + len(part)] = part
        return bytes(content)


@functools.cache
def _layout(kind: Any) -> tuple[int, list[tuple[int, bool]]]:
    """The size of a tuple in bytes, where each field begins, and whether it is behind a pointer."""
    context, fields = cpu_target.target_context, isinstance(kind, Fields)
    layout = context.data_model_manager[kind].fields if fields else context.get_value_type(kind)
    size = layout.get_abi_size(context.target_data)
    if isinstance(layout, ir.ArrayType):
        return size, [(at * size // len(kind), False) for at in range(len(kind))]
    places = (layout.get_element_offset(context.target_data, at) for at in range(len(kind)))
    return size, [(place, fields and is_hidden(kind, kind.fields[at])) for at, place in enumerate(places)]


@typeof_impl.register(Placed)
def _typeof(value: Any, context: Any) -> Any:
    return value.type


@unbox(Fields)
def _unbox(kind: Any, obj: Any, c: Any) -> NativeValue:
    number = c.pyapi.object_getattr_string(obj, "address")
    address = c.builder.inttoptr(c.pyapi.long_as_longlong(number), cgutils.voidptr_t)
    c.pyapi.decref(number)
    return NativeValue(address)
