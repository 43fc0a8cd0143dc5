"""LLVM's code of kernels: named tuples as pointers, and elements of arrays in few instructions."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.compiler_machinery import register_pass
from numba.core.datamodel import models, register_default
from numba.core.imputils import lower_getattr_generic
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering
from typing_extensions import override

from torchssvm.compiler.hidden_fields import hidden_fields


class Fields(types.NamedTuple):
    """Type of a named tuple of this package, which kernels receive as a pointer to its fields.

    Tuples that a kernel makes keep Numba's type: LLVM assumes that nothing writes to these fields. Fields that the
    class names by ``with_hidden`` are behind a pointer, and an address for kernels that do not know their types.
    """

    def __init__(self, members: Any, kind: type) -> None:
        super().__init__(members, kind)
        # LLVM's code names the types of arguments at every call
        self.name = f"{kind.__name__}_{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"

    def __hash__(self) -> int:
        """Numba hashes the types of arguments at every call; Python keeps the hash of a string."""
        return hash(self.name)


HIDDEN = types.intp
"""Type of an address of a value whose type a kernel does not know."""


@register_default(Fields)
class _FieldsModel(models.TupleModel):
    """A pointer, from which a kernel loads the fields that it reads.

    Numba represents a tuple as one value, with hundreds of numbers for an example. Every use of a field would copy all
    of them, until LLVM removes the copies.
    """

    def get_value_type(self) -> Any:
        """A pointer to bytes: with typed pointers the names of all fields would fill most of the code."""
        return cgutils.voidptr_t

    get_argument_type = get_value_type

    @functools.cached_property
    def fields(self) -> Any:
        """The structure that it points to."""
        members = zip(self._fe_type.fields, self._models, strict=True)
        return ir.LiteralStructType(
            [cgutils.voidptr_t if is_hidden(self._fe_type, name) else one.get_value_type() for name, one in members]
        )

    @functools.cache  # noqa: B019
    def offset(self, target: Any, at: int) -> int:
        """Offset of a field in bytes."""
        return self.fields.get_element_offset(target, at)

    def as_argument(self, builder: Any, value: Any) -> Any:
        return value

    def from_argument(self, builder: Any, value: Any) -> Any:
        return value


def is_hidden(kind: Any, name: str) -> bool:
    """Whether a field is behind a pointer."""
    return name in hidden_fields.get(kind.instance_class, ()) and kind[kind.fields.index(name)] != HIDDEN


@lower_getattr_generic(Fields)
def _field(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    model, at = context.data_model_manager[kind], kind.fields.index(name)
    place = builder.gep(value, [cgutils.intp_t(model.offset(context.target_data, at))], inbounds=True)
    loaded = builder.load(builder.bitcast(place, model.fields.elements[at].as_pointer()))
    module = builder.module
    field = module.add_metadata(["field", module.add_metadata(["torchssvm"]), cgutils.intp_t(0)])
    # nothing writes to fields: LLVM may load one before the loop that uses it
    loaded.set_metadata("tbaa", module.add_metadata([field, field, cgutils.intp_t(0), cgutils.intp_t(1)]))
    of = kind[at]
    if is_hidden(kind, name) and not isinstance(of, Fields | types.Opaque | types.NoneType):
        return builder.load(builder.bitcast(loaded, context.get_value_type(of).as_pointer()))
    return loaded


class _Lower(Lower):
    """Numba's lowering without reference counts, and with few instructions for an array element."""

    def delvar(self, name: str) -> None:
        """Do nothing: no variable owns memory."""

    def storevar(self, value: Any, name: str, argidx: Any = None) -> None:
        """Store a value without reading the old one."""
        self._alloca_var(name, self.typeof(name))
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """Load an element, or a view of the part that the leading indices select."""
        kind = self.typeof(value.name)
        indices = self._indices(kind, index)
        if indices is None:
            return super().lower_getitem(resty, expr, value, index, signature)
        array, builder = self.loadvar(value.name), self.builder
        place, shape = self._place(kind, array, indices)
        if not shape:
            return self.context.cast(builder, self.context.unpack_value(builder, kind.dtype, place), kind.dtype, resty)
        size = functools.reduce(builder.mul, shape)
        strides = cgutils.unpack_tuple(builder, builder.extract_value(array, 6), kind.ndim)[len(indices) :]
        part = ir.Constant(self.context.get_value_type(resty), None)
        whole = (
            size,
            builder.extract_value(array, 3),
            place,
            cgutils.pack_array(builder, shape),
            cgutils.pack_array(builder, strides),
        )
        for at, member in enumerate(whole, 2):
            part = builder.insert_value(part, member, at)
        return part

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        kind = self.typeof(target_var.name)
        indices = self._indices(kind, index_var)
        if indices is None or len(indices) < kind.ndim:
            return super().lower_setitem(target_var, index_var, value_var, signature)
        value = self.context.cast(self.builder, self.loadvar(value_var.name), self.typeof(value_var.name), kind.dtype)
        place, _ = self._place(kind, self.loadvar(target_var.name), indices)
        self.context.pack_value(self.builder, kind.dtype, value, place)
        return None

    def _indices(self, kind: Any, index: Any) -> Any:
        """Types and values of integer indices into a contiguous array; None for any other index."""
        if not isinstance(kind, types.Array) or kind.layout != "C" or not kind.aligned:
            return None
        of: Any = self.typeof(index.name)
        several = isinstance(of, types.BaseTuple)
        every = list(of) if several else [of]
        if not every or not all(isinstance(one, types.Integer) for one in every):
            return None
        value = self.loadvar(index.name)
        values = cgutils.unpack_tuple(self.builder, value, len(every)) if several else [value]
        return list(zip(every, values, strict=True))

    def _place(self, kind: Any, array: Any, indices: Any) -> Any:
        """A pointer to the place, and the sizes of the remaining axes."""
        builder = self.builder
        shape = cgutils.unpack_tuple(builder, builder.extract_value(array, 5), kind.ndim)
        place = cgutils.intp_t(0)
        for axis, size in enumerate(shape):
            if axis:
                place = builder.mul(place, size)
            if axis < len(indices):
                of, index = indices[axis]
                index = self.context.cast(builder, index, of, types.intp if of.signed else types.uintp)
                if of.signed and getattr(of, "literal_value", -1) < 0:  # counted from the end
                    index = builder.select(
                        builder.icmp_signed("<", index, cgutils.intp_t(0)), builder.add(index, size), index
                    )
                place = builder.add(place, index) if axis else index
        return builder.gep(builder.extract_value(array, 4), [place]), shape[len(indices) :]


@register_pass(mutates_CFG=False, analysis_only=False)
class Lowering(NativeLowering):
    """The compiler pass that writes LLVM's code."""

    _name = "torchssvm_lowering"

    @property
    @override
    def lowering_class(self) -> Any:
        return _Lower
