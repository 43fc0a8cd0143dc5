"""Named tuples in memory, as kernels read them.

Numba would unpack a tuple in code that it compiles with every kernel that takes it: some thousand instructions for the
examples, half of all code of the compiled loop.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numba import typeof
from numba.core import cgutils
from numba.extending import NativeValue, typeof_impl, unbox

from torchssvm.compiler.hidden_fields import hidden_fields
from torchssvm.compiler.kernel_code import Fields

_CODES = {"float64": "d", "float32": "f", "bool": "?"} | {
    f"{sign}int{bits}": code.upper() if sign else code
    for bits, code in ((64, "q"), (32, "i"), (16, "h"), (8, "b"))
    for sign in ("", "u")
}
_POINTER, _ARRAY, _TUPLE, _NUMBER = range(4)


class _Plan:
    """How tuples with fields of the same types are laid out: as a structure of C, like LLVM's."""

    def __init__(self, value: Any) -> None:
        hidden = hidden_fields.get(type(value), ())
        names = getattr(value, "_fields", [""] * len(value))
        fields = [self._field(item, name in hidden) for item, name in zip(value, names, strict=True)]
        self.steps, formats = [step for step, _ in fields], [code for _, code in fields]
        largest = next((code for code in "qdifhb" if any(code in one.lower() for one in formats)), "b")
        self.format = "".join([f"0{largest}", *formats, f"0{largest}"])
        self.pack = struct.Struct(self.format).pack
        self.type = Fields(tuple(map(type_of, value)), type(value)) if hasattr(value, "_fields") else None

    @staticmethod
    def _field(value: Any, is_hidden: bool) -> tuple[int, str]:
        if is_hidden or value is None or hasattr(value, "_fields"):
            return _POINTER, "q"
        if type(value) is np.ndarray:
            return _ARRAY, f"{5 + 2 * value.ndim}q"
        if isinstance(value, tuple):
            return _TUPLE, _plan_of(value).format
        code = _CODES.get(str(typeof(value)))
        if code is None:
            raise TypeError(f"{value!r} is in a named tuple of a kernel: use numbers, arrays and named tuples")
        return _NUMBER, code


_plans: dict[Any, _Plan] = {}


def _plan_of(value: Any) -> _Plan:
    key = _key(value)
    if key not in _plans:
        _plans[key] = _Plan(value)
    return _plans[key]


def _key(value: Any) -> Any:
    """What Numba's type of a value depends on; Numba takes ten times as long to say the type."""
    if type(value) is np.ndarray:
        flags = value.flags
        return value.dtype, value.ndim, flags.c_contiguous, flags.f_contiguous, flags.writeable, flags.aligned
    return (type(value), *map(_key, value)) if isinstance(value, tuple) else type(value)


def type_of(value: Any) -> Any:
    """Numba's type of a value; named tuples are :class:`.Fields`, whichever package declares them."""
    return _plan_of(value).type if hasattr(value, "_fields") else typeof(value)


class Placed:
    """A named tuple in memory, of type ``type`` at ``address``; its arrays are not copied.

    A value of another type, such as an array, is laid out as a tuple with this field alone.
    """

    def __init__(self, value: Any) -> None:
        self._parts: list[Any] = [value]  # what the address leads to
        values = value if hasattr(value, "_fields") else (value,)
        plan = _plan_of(values)
        if plan.type is not None:
            self.type = plan.type
        self.address = self._place(plan, values)

    def _place(self, plan: _Plan, values: Any) -> int:
        buffer = np.frombuffer(plan.pack(*self._numbers(plan, values)), np.uint8)
        self._parts.append(buffer)
        return int(buffer.__array_interface__["data"][0])

    def _numbers(self, plan: _Plan, given: Any) -> list[Any]:
        numbers: list[Any] = []
        for step, value in zip(plan.steps, given, strict=True):
            if step == _NUMBER:
                numbers.append(value)
            elif step == _ARRAY:
                place, owner, parent = value.__array_interface__["data"][0], 0, 0
                numbers += (owner, parent, value.size, value.itemsize, place, *value.shape, *value.strides)
            elif step == _TUPLE:
                numbers += self._numbers(_plan_of(value), value)
            elif value is None or isinstance(value, int):  # nothing, or the address itself
                numbers.append(value or 0)
            else:
                values = value if hasattr(value, "_fields") else (value,)
                numbers.append(self._place(_plan_of(values), values))
        return numbers


@typeof_impl.register(Placed)
def _typeof(value: Any, context: Any) -> Any:
    return value.type


@unbox(Fields)
def _unbox(kind: Any, obj: Any, c: Any) -> NativeValue:
    number = c.pyapi.object_getattr_string(obj, "address")
    address = c.builder.inttoptr(c.pyapi.long_as_longlong(number), cgutils.voidptr_t)
    c.pyapi.decref(number)
    return NativeValue(address)
