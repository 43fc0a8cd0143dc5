"""Kernels of a kind by address, so that the kernels that call them are compiled once, for all kinds.

A kernel that knows no kind gets examples and scratch arrays with *hidden* fields: pointers to values whose types only
the kind's kernels know. ``examples.calls`` has the addresses of these kernels, by ``ByAddress.slot``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import lower_builtin, register_model, typeof_impl
from typing_extensions import override

from torchssvm.compiler.by_kind import KindFunction
from torchssvm.compiler.kernel_code import HIDDEN
from torchssvm.compiler.placed import type_of

_SCALARS = {"int": types.intp, "float": types.float64, "bool": types.boolean, "None": types.none}
_TYPES = {
    **_SCALARS,
    "Labels": types.int64[::1],
    "Marks": types.boolean[::1],
    "Sums": types.float64[:, ::1],
}
_ROWS = {types.float32[:, ::1], types.float64[:, ::1]}


def _returned(function: Any) -> Any:
    """The type that all versions return."""
    parts = function.returned.removeprefix("tuple[").removesuffix("]").split(", ")
    made = [_SCALARS[part] for part in parts]
    return types.Tuple(made) if len(made) > 1 else made[0]


class AddressFunction(KindFunction):
    """Type of a :class:`~torchssvm.compiler.jit.ByAddress`: a call takes the address where the kind is hidden."""

    @override
    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        if args[0] != HIDDEN:
            return super().get_call_type(context, args, kws)
        taken = []
        for (name, annotation), given in zip(self.function.parameters, args, strict=True):
            wanted = _TYPES.get(annotation, given)
            if (annotation == "Rows" and given not in _ROWS) or (isinstance(wanted, types.Array) and given != wanted):
                raise TypingError(f"{self.function.__name__} takes {name}: {annotation}, not {given}")
            taken.append(wanted)
        return signature(_returned(self.function), *taken)

    @override
    def get_impl_key(self, sig: Any) -> Any:
        return super().get_impl_key(sig) if sig.args[0] != HIDDEN else _key(self.function, _call)


@functools.cache
def _key(of: Any, lowering: Any) -> Any:
    """The key by which Numba finds the lowering of calls."""
    key = of, lowering
    lower_builtin(key, types.VarArg(types.Any))(functools.partial(lowering, of))
    return key


def _call(function: Any, context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Call the address in ``examples.calls``."""
    calls = context.get_getattr(sig.args[1], "calls")(context, builder, sig.args[1], args[1], "calls")
    place = builder.gep(builder.extract_value(calls, 4), [cgutils.intp_t(function.slot)])
    callee = context.call_conv.get_function_type(sig.return_type, sig.args).as_pointer()
    address = builder.inttoptr(builder.load(place), callee)
    status, result = context.call_conv.call_function(builder, address, sig.return_type, sig.args, args)
    with cgutils.if_unlikely(builder, status.is_error):
        context.call_conv.return_status_propagate(builder, status)
    return result


class AddressesType(types.Callable, types.Dummy):
    """Type of :class:`~torchssvm.compiler.jit.Addresses`: a call compiles the versions of a kind."""

    def __init__(self, addresses: Any) -> None:
        self.addresses = addresses
        super().__init__(f"Addresses({addresses.described})")

    @override
    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        for _ in _versions(self.addresses, args[1]):
            pass
        return signature(types.none, *args)

    @override
    def get_call_signatures(self) -> Any:
        return (), True

    @override
    def get_impl_key(self, sig: Any) -> Any:
        return _key(self.addresses, _write)


register_model(AddressFunction)(models.OpaqueModel)
register_model(AddressesType)(models.OpaqueModel)


def _versions(addresses: Any, given: Any) -> Iterator[tuple[int, Any]]:
    """Slots and compiled versions, for the types of examples, model, blocks and scratch arrays."""
    named = dict(zip(("examples", "model", "blocks", "scratch"), given.instance_type, strict=True))
    named["kind"] = kind = _field_type(named["examples"], "kind")
    rows = _field_type(named["model"], "emission")
    for function in addresses.functions:
        taken = tuple(named.get(name) or _TYPES.get(annotation, rows) for name, annotation in function.parameters)
        dispatcher = function.version(getattr(kind, "instance_class", None)).callee
        dispatcher.compile(taken)
        made = dispatcher.overloads[taken]
        if types.unliteral(made.signature.return_type) != _returned(function):
            raise TypingError(f"{function.__name__} of {kind} must return {function.returned}")
        yield function.slot, made


def _field_type(kind: Any, name: str) -> Any:
    return kind[kind.fields.index(name)]


def _write(addresses: Any, context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Write the addresses to the first argument."""
    places = builder.extract_value(args[0], 4)
    for slot, made in _versions(addresses, sig.args[1]):
        context.add_linking_libs([made.library])
        function = context.declare_function(builder.module, made.fndesc)
        builder.store(builder.ptrtoint(function, cgutils.intp_t), builder.gep(places, [cgutils.intp_t(slot)]))
    return context.get_dummy_value()


class Types:
    """Types of arguments, as an argument of a kernel that reads nothing else of them."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.types = types.TypeRef(types.Tuple(tuple(map(type_of, values))))


@typeof_impl.register(Types)
def _typeof(value: Any, context: Any) -> Any:
    return value.types
